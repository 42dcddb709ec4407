package trust

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// DefaultTrustDomain and DefaultNamespace are the trust domain and namespace of an application that does not set them.
const (
	DefaultTrustDomain = "public"
	DefaultNamespace   = "default"
)

// App is an application as named in certificates.
type App struct {
	TrustDomain string
	Namespace   string
	ID          string
}

// NewApp returns an application. An empty trust domain or namespace means the default one.
func NewApp(trustDomain, namespace, id string) App {
	if trustDomain == "" {
		trustDomain = DefaultTrustDomain
	}
	if namespace == "" {
		namespace = DefaultNamespace
	}
	return App{trustDomain, namespace, id}
}

// String returns the SPIFFE id: spiffe://<trust domain>/ns/<namespace>/<app id>.
func (a App) String() string { return a.uri().String() }

func (a App) uri() *url.URL {
	return &url.URL{Scheme: "spiffe", Host: a.TrustDomain, Path: "/ns/" + a.Namespace + "/" + a.ID}
}

// ParseApp parses the SPIFFE id of an application. It returns false for anything else, including other SPIFFE ids.
func ParseApp(id string) (App, bool) {
	u, err := url.Parse(id)
	if err != nil {
		return App{}, false
	}
	return appOf(u)
}

func appOf(u *url.URL) (App, bool) {
	parts := strings.Split(u.Path, "/")
	if u.Scheme != "spiffe" || u.Host == "" || len(parts) != 4 || parts[0] != "" || parts[1] != "ns" ||
		parts[2] == "" || parts[3] == "" {
		return App{}, false
	}
	a := App{TrustDomain: u.Host, Namespace: parts[2], ID: parts[3]}
	return a, a.String() == u.String() // without user, port, query and fragment
}

// Identity is what a certificate certifies about a node.
type Identity struct {
	Node   string // node id
	Server string // id of the node on the peer port; empty = any server id of the node
	Apps   []App  // applications of the node
}

// Parts of the URIs for the node id and the server id, and the maximum number of URIs.
const (
	uriScheme    = "quorate"
	uriNode      = "node:"
	uriServer    = "server:"
	maxCertNames = 4096 // URIs of one certificate
)

func (id Identity) uris() []*url.URL {
	out := []*url.URL{{Scheme: uriScheme, Opaque: uriNode + id.Node}}
	if id.Server != "" {
		out = append(out, &url.URL{Scheme: uriScheme, Opaque: uriServer + id.Server})
	}
	for _, a := range id.Apps {
		out = append(out, a.uri())
	}
	return out
}

func (id Identity) check() error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Invalid, "trust.Identify", fmt.Sprintf(format, args...))
	}
	switch {
	case id.Node == "":
		return bad("a certificate needs a node id")
	case len(id.Apps) > maxCertNames-2:
		return bad("a certificate names at most %d applications, not %d", maxCertNames-2, len(id.Apps))
	}
	for _, u := range id.uris() {
		if back, err := url.Parse(u.String()); err != nil || back.String() != u.String() {
			return bad("%q cannot stand in a certificate", u.String())
		}
	}
	for _, a := range id.Apps {
		if back, ok := ParseApp(a.String()); !ok || back != a {
			return bad("application %q of namespace %q cannot stand in a certificate", a.ID, a.Namespace)
		}
	}
	return nil
}

// equal reports whether two identities are the same.
func (id Identity) equal(o Identity) bool {
	return id.Node == o.Node && id.Server == o.Server && slices.Equal(id.Apps, o.Apps)
}

// identityOf returns the identity in the URIs of a verified certificate. Node is empty if no URI has the node id. For
// example, an external certificate may have the node id only as a DNS name, which identityOf does not read.
func identityOf(c *x509.Certificate) Identity {
	var id Identity
	for _, u := range c.URIs {
		if a, ok := appOf(u); ok {
			id.Apps = append(id.Apps, a)
			continue
		}
		if u.Scheme != uriScheme {
			continue
		}
		if node, ok := strings.CutPrefix(u.Opaque, uriNode); ok {
			id.Node = node
		}
		if server, ok := strings.CutPrefix(u.Opaque, uriServer); ok {
			id.Server = server
		}
	}
	return id
}

// speaksFor checks that a certificate belongs to a server. The certificate has the identity id and the given DNS names.
// speaksFor returns id with Node and Server filled in, or an error if the certificate belongs to another server.
func (id Identity) speaksFor(server string, dns []string) (Identity, error) {
	switch {
	case id.Server == server && id.Node != "":
		return id, nil
	case id.Server != "":
		return id, distrust(Unfit, fmt.Sprintf("it is the certificate of server %q, not of %q", id.Server, server),
			"two nodes have been mixed up, or a data directory was copied")
	}
	for _, node := range []string{server, nodeOf(server)} {
		if node != "" && (id.Node == node || id.Node == "" && slices.Contains(dns, node)) {
			id.Node, id.Server = node, server
			return id, nil
		}
	}
	said := slices.Clone(dns)
	if id.Node != "" {
		said = []string{id.Node}
	}
	return id, distrust(Unfit, fmt.Sprintf("it is the certificate of node %q, not of %q", strings.Join(said, ", "),
		nodeOf(server)),
		"a certificate names its node in the URI quorate:node:<node id>, or in a DNS name that is the node id")
}

// nodeOf returns the node id in a server id: the part before the last dot.
func nodeOf(server string) string {
	if i := strings.LastIndexByte(server, '.'); i >= 0 {
		return server[:i]
	}
	return server
}

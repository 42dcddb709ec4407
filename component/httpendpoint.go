package component

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quorate/quorate/internal/fault"
)

// HTTPEndpoint is the content of a document of kind HTTPEndpoint. It describes a server outside of the cluster that
// applications may call.
type HTTPEndpoint struct {
	Name    string
	Scopes  []string // ids of the applications that may call it; empty = all
	BaseURL *url.URL
	Pos     Pos

	spec  Spec // its Metadata has the headers and the certificates, with their references
	reneg tls.RenegotiationSupport
}

// Names in HTTPEndpoint.spec.Metadata for the certificates and the private key. All other names there are HTTP headers,
// which cannot contain a space.
const (
	tlsRootCA      = "clientTLS rootCA"
	tlsCertificate = "clientTLS certificate"
	tlsPrivateKey  = "clientTLS privateKey"
)

// EndpointSettings are the settings of an HTTPEndpoint with all references resolved. They contain secrets.
type EndpointSettings struct {
	Header http.Header // sent with each request
	TLS    *tls.Config
	root   string // the certificates of TLS.RootCAs in PEM form
}

// ParseHTTPEndpoint parses a document of kind HTTPEndpoint. Unknown fields are errors with file and line.
func ParseHTTPEndpoint(doc Document) (HTTPEndpoint, error) {
	p := docParser{file: doc.Pos.File}
	e := HTTPEndpoint{Name: doc.Name, Scopes: doc.Scopes, Pos: doc.Pos,
		spec: Spec{Name: doc.Name, Pos: doc.Pos, InitTimeout: DefaultInitTimeout}}
	ignore := func(*yaml.Node) {}
	p.readFields(doc.Body, "", fields{
		"apiVersion": ignore, "kind": ignore, "metadata": ignore, "scopes": ignore, "status": ignore,
		"auth": func(n *yaml.Node) { p.auth(n, &e.spec) },
		"spec": func(n *yaml.Node) { p.endpoint(n, &e) },
	})
	if e.BaseURL == nil && len(p.problems) == 0 {
		p.problems.add(doc.Pos, "for instance https://partner.example/v1", "spec.baseUrl is missing")
	}
	p.problems.order(doc)
	return e, p.problems.Err("component.ParseHTTPEndpoint")
}

func (p *docParser) endpoint(n *yaml.Node, e *HTTPEndpoint) {
	p.readFields(n, "spec", fields{
		"version": func(*yaml.Node) {}, // some users write it, as in components; Dapr ignores it too
		"baseUrl": func(n *yaml.Node) { e.BaseURL = p.baseURL(n) },
		"baseURL": func(n *yaml.Node) { e.BaseURL = p.baseURL(n) }, // Dapr reads names in any case
		"headers": func(n *yaml.Node) {
			for _, item := range p.items(n) {
				if !validHeader(item.Name) {
					p.problems.add(item.Pos, "", "spec.headers: %q is not the name of a header", item.Name)
				}
				e.spec.Metadata = append(e.spec.Metadata, item)
			}
		},
		"clientTLS": func(n *yaml.Node) {
			if !isNull(n) {
				p.clientTLS(n, e)
			}
		},
	})
}

func (p *docParser) baseURL(n *yaml.Node) *url.URL {
	text := p.required(n, "spec.baseUrl")
	u, err := url.Parse(text)
	if text != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil ||
		u.RawQuery != "" || u.Fragment != "") {
		p.problems.add(p.pos(n), "give scheme and host, and a path if needed: https://partner.example/v1",
			"spec.baseUrl is not a base address")
		return nil
	}
	return u
}

func (p *docParser) clientTLS(n *yaml.Node, e *HTTPEndpoint) {
	certificate := func(name string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			if isBlank(n) {
				return
			}
			item := Item{Name: name, Pos: p.pos(n)}
			given := 0
			p.readFields(n, "spec."+name, fields{
				"value":        func(n *yaml.Node) { item.Value = p.value(n); given++ },
				"secretKeyRef": func(n *yaml.Node) { item.Secret = p.secretRef(n); given++ },
				"envRef":       func(n *yaml.Node) { item.Env = p.required(n, "envRef"); given++ },
			})
			if given != 1 {
				p.problems.add(p.pos(n), "", "spec.%s needs value, secretKeyRef or envRef", name)
			}
			e.spec.Metadata = append(e.spec.Metadata, item)
		}
	}
	p.readFields(n, "spec.clientTLS", fields{
		"rootCA": certificate(tlsRootCA), "certificate": certificate(tlsCertificate),
		"privateKey": certificate(tlsPrivateKey),
		"renegotiation": func(n *yaml.Node) {
			switch text := p.text(n, "spec.clientTLS.renegotiation"); strings.TrimPrefix(text, "Renegotiate") {
			case "", "Never":
			case "OnceAsClient":
				e.reneg = tls.RenegotiateOnceAsClient
			case "FreelyAsClient":
				e.reneg = tls.RenegotiateFreelyAsClient
			default:
				p.problems.add(p.pos(n), "use Never, OnceAsClient or FreelyAsClient",
					"spec.clientTLS.renegotiation is %q", text)
			}
		},
	})
}

func validHeader(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`()<>@,;:\"/[]?={}`, r)
	})
}

// SecretStore returns the name of the secret store that the references of the endpoint use; empty = none.
func (e HTTPEndpoint) SecretStore() string { return e.spec.SecretStore }

// CheckSecretStore checks the secret store of the endpoint, like Spec.CheckSecretStore.
func (e HTTPEndpoint) CheckSecretStore(find func(store string) error) error {
	return e.spec.CheckSecretStore(find)
}

// VisibleTo reports whether an application may call the endpoint.
func (e HTTPEndpoint) VisibleTo(app string) bool { return inScope(e.Scopes, []string{app}) }

// Resolve resolves all references, parses the certificates, and returns the settings. Errors never contain a value of
// a reference.
func (e HTTPEndpoint) Resolve(ctx context.Context, from Sources) (EndpointSettings, error) {
	values, err := e.spec.Resolve(ctx, from)
	if err != nil {
		return EndpointSettings{}, err
	}
	out := EndpointSettings{Header: http.Header{},
		TLS: &tls.Config{MinVersion: tls.VersionTLS12, Renegotiation: e.reneg}}
	certificates := map[string]string{}
	for _, v := range values {
		if strings.Contains(v.Name, " ") {
			certificates[v.Name] = v.Value
			continue
		}
		if strings.ContainsAny(v.Value, "\r\n\x00") {
			return out, e.invalid("spec.headers: the value of " + v.Name + " contains a line break")
		}
		out.Header.Set(v.Name, v.Value)
	}
	out.root = certificates[tlsRootCA]
	return out, e.certificates(out.TLS, certificates)
}

func (e HTTPEndpoint) certificates(c *tls.Config, pem map[string]string) error {
	if root := pem[tlsRootCA]; root != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(root)) {
			return e.invalid("spec.clientTLS.rootCA holds no certificate in PEM form")
		}
	}
	cert, key := pem[tlsCertificate], pem[tlsPrivateKey]
	if cert == "" && key == "" {
		return nil
	}
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil { // dropped, because its text may hold a part of the key
		return e.invalid("spec.clientTLS.certificate and privateKey are not a certificate and its key in PEM form")
	}
	c.Certificates = []tls.Certificate{pair}
	return nil
}

func (e HTTPEndpoint) invalid(text string) error {
	return &fault.Error{Code: fault.Invalid, Op: "component.HTTPEndpoint", Key: e.Name,
		Msg: e.Pos.String() + ": HTTPEndpoint " + e.Name + ": " + text}
}

// Digest returns a digest of the endpoint, and of the headers and certificates in its settings. If a reload does not
// change the digest, connections to the endpoint can be kept.
func (e HTTPEndpoint) Digest(s EndpointSettings) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %q %d %v %q\n", e.BaseURL, e.Scopes, e.reneg, s.Header, s.root)
	for _, item := range e.spec.Metadata {
		fmt.Fprintf(h, "%q %q %v\n", item.Name, item.Value, item.Secret)
	}
	for _, c := range s.TLS.Certificates {
		for _, one := range c.Certificate {
			h.Write(one)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

package invoke

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
)

// External is a server outside of the cluster that applications may call.
type External struct {
	Name      string // name in targets of calls, in resiliency policies and in errors
	Base      *url.URL
	Header    http.Header           // set in each request
	VisibleTo func(app string) bool // nil = all applications may call it
	Transport *http.Transport       // see NewTransport
	Origin    any                   // identifies the declaration, so that its connections can be kept
	target    api.App               // for policies and metrics: Name, or "http" for all undeclared addresses
	address   string                // scheme and host of an undeclared address; otherwise empty
	limits    atmostonce.Limits     // of its answers
}

// NewTransport returns a transport for an External.
func NewTransport(secured *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return atmostonce.Transport(&http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext,
		TLSClientConfig: secured, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxIdleConnsPerHost: 32, IdleConnTimeout: 90 * time.Second,
		TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second,
	})
}

// Externals is the set of servers outside the cluster that applications of a node may call. The zero value and a nil
// *Externals are empty. Externals is safe for concurrent use.
type Externals struct {
	Memory atmostonce.Memory // for the headers of answers; nil = no bound

	table atomic.Pointer[externalTable]
}

type externalTable struct {
	declared []*External
	others   *http.Transport // for addresses that are not declared
	open     bool            // every caller may call these addresses; otherwise only callers with a token
}

// Set replaces the declared servers, and closes the idle connections to servers that are no longer declared. undeclared
// is the transport for calls to all other addresses. If open is false, these calls require a valid API token.
func (e *Externals) Set(declared []*External, undeclared *http.Transport, open bool) {
	for _, one := range declared {
		one.target, one.limits = api.App{ID: one.Name}, atmostonce.Limits{Memory: e.Memory}
	}
	old := e.table.Swap(&externalTable{declared, undeclared, open})
	if old == nil {
		return
	}
	for _, one := range old.declared {
		if !slices.ContainsFunc(declared, func(x *External) bool { return x.Transport == one.Transport }) {
			one.Transport.CloseIdleConnections()
		}
	}
}

// Declared returns the servers that are declared.
func (e *Externals) Declared() []*External {
	if e == nil || e.table.Load() == nil {
		return nil
	}
	return e.table.Load().declared
}

// Names returns the names of the servers that an application may call.
func (e *Externals) Names(app string) (out []string) {
	for _, one := range e.Declared() {
		if one.allows(app) {
			out = append(out, one.Name)
		}
	}
	return out
}

func (x *External) allows(app string) bool { return x.VisibleTo == nil || x.VisibleTo(app) }

// find returns the external server for the target of a call, or nil if the target is not external. An error has one of
// these kinds:
//
//   - api.Malformed: The target is an address that cannot be called.
//   - api.Denied: The address is not declared, and the caller may not call such addresses.
//
// proven is Call.Proven.
func (e *Externals) find(caller api.App, target string, proven bool) (*External, error) {
	for _, one := range e.Declared() {
		if one.Name == target && one.allows(caller.ID) {
			return one, nil
		}
	}
	if !IsAddress(target) {
		return nil, nil
	}
	u, err := url.Parse(target)
	if err == nil && u.User != nil {
		return nil, malformed("the address of " + api.Shorten(u.Host) + " contains a user name: declare it as an " +
			"HTTPEndpoint whose header Authorization refers to a secret")
	}
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || !isBasePath(u) {
		return nil, malformed("the address " + api.Shorten(target) + " is not a base address such as " +
			"https://partner.example/v1")
	}
	for _, one := range e.Declared() {
		if one.allows(caller.ID) && one.contains(u) {
			direct := *one
			direct.Base = u
			return &direct, nil
		}
	}
	if e == nil || e.table.Load() == nil || !e.table.Load().open && !proven {
		return nil, &api.Error{Kind: api.Denied, Code: api.CodeDirectInvoke,
			Message: "calls of " + api.Shorten(target) + " are not allowed: declare the address as an HTTPEndpoint, " +
				"call with an API token, or allow all addresses with --allow-any-http-endpoint",
			Details: api.Details{Reason: api.ReasonDenied, Metadata: api.Attributes("endpoint", api.Shorten(target))}}
	}
	return &External{Name: target, Base: u, Transport: e.table.Load().others, target: api.App{ID: "http"},
		address: u.Scheme + "://" + strings.ToLower(u.Host), limits: atmostonce.Limits{Memory: e.Memory}}, nil
}

// isBasePath reports whether the path of u can be put before the path of a method. A slash at the end is ignored. The
// rest of the path must be empty or meet two conditions: it has no empty segments, and ParseMethod returns it
// unchanged.
func isBasePath(u *url.URL) bool {
	text := strings.TrimSuffix(writtenPath(u), "/")
	if text == "" {
		return true
	}
	checked, err := ParseMethod(text)
	return err == nil && text != "/" && checked.Path == text && path.Clean(checked.Decoded) == checked.Decoded
}

// writtenPath returns the path of a parsed URL as it was written. It prefers RawPath to EscapedPath, because
// EscapedPath would encode some paths a second time.
func writtenPath(u *url.URL) string { return cmp.Or(u.RawPath, u.EscapedPath()) }

// contains reports whether an address is the server's base address or lies below it.
func (x *External) contains(u *url.URL) bool {
	rest, ok := strings.CutPrefix(writtenPath(u), strings.TrimSuffix(writtenPath(x.Base), "/"))
	return u.Scheme == x.Base.Scheme && strings.EqualFold(u.Host, x.Base.Host) && ok &&
		(rest == "" || rest[0] == '/')
}

// IsAddress reports whether the target of a call is an HTTP address. Any other target is a name.
func IsAddress(target string) bool {
	lower := strings.ToLower(target)
	return strings.HasPrefix(lower, "http://") || strings.HasPrefix(lower, "https://")
}

// lease returns a lease without an instance, because an external server has no instances to choose from.
func (x *External) lease() *discovery.Lease {
	return discovery.NewLease(discovery.Instance{}, func(discovery.Outcome) {})
}

// url returns the URL of a call: the base path of the server, followed by the path of the method. Both paths are copied
// byte for byte.
func (x *External) url(in *Inbound) *url.URL {
	u := MethodURL(MethodPath{
		Path:    strings.TrimSuffix(writtenPath(x.Base), "/") + in.Method.Path,
		Decoded: strings.TrimSuffix(x.Base.Path, "/") + in.Method.Decoded,
	}, in.Request.URL.RawQuery, in.Request.URL.ForceQuery)
	u.Scheme, u.Host = x.Base.Scheme, x.Base.Host
	if u.Opaque != "" && x.proxied(u) {
		u.Opaque = "//" + u.Host + u.Opaque // a proxy needs the host in the request line
	}
	return u
}

// proxied reports whether requests to u go to an HTTP proxy that reads the request line. With TLS or a SOCKS proxy, the
// request passes through a tunnel, so the proxy does not read it.
func (x *External) proxied(u *url.URL) bool {
	if u.Scheme != "http" || x.Transport.Proxy == nil {
		return false
	}
	proxy, err := x.Transport.Proxy(&http.Request{URL: u})
	return err == nil && proxy != nil && strings.HasPrefix(proxy.Scheme, "http")
}

// call sends a request to the server and returns the answer. The errors are:
//
//	unavailable    the server cannot be reached
//	timeout        the call ended before the server was reached
//	corrupt        the answer is invalid
//	indeterminate  the request was sent, but no answer came
func (x *External) call(in *Inbound) (Answer, error) {
	r := in.Request
	r.URL = x.url(in)
	r.Host = r.URL.Host
	delete(r.Header, "Dapr-Api-Token")
	if !isGRPC(r.Header) {
		delete(r.Header, "Te") // belongs to one connection; ForwardHeader keeps it for applications
	}
	for name, values := range x.Header {
		r.Header[name] = values
	}
	answer, sent, err := atmostonce.RoundTrip(x.Transport, r, x.limits)
	switch {
	case err == nil:
		CleanAnswer(answer)
		return Answer{Response: answer}, nil
	case !sent && r.Context().Err() == nil:
		return Answer{}, &fault.Error{Code: fault.Unavailable, Op: "api.Invoke", Msg: x.Name + " cannot be reached",
			Err: bare(err)}
	case !sent:
		return Answer{}, fault.New(fault.Timeout, "api.Invoke", "the call ended before "+x.Name+" was reached")
	}
	if _, refused := errors.AsType[*atmostonce.BadAnswer](err); refused {
		return Answer{}, &fault.Error{Code: fault.Corrupt, Op: "api.Invoke", Err: bare(err),
			Msg: "the answer of " + x.Name + " was refused"}
	}
	return Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "api.Invoke", Msg: x.Name + " did not answer",
		Err: bare(err)}
}

// bare removes the outermost *url.Error from err, because its text repeats the address. It returns any other error
// unchanged.
func bare(err error) error {
	if e, ok := err.(*url.Error); ok { //nolint:errorlint // only the outermost layer
		return e.Err
	}
	return err
}

package http

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/internal/fault"
)

// guard checks every request before it is routed. It refuses requests from web pages of other sites (see checkOrigin).
// On a loopback listener without a token, it also refuses host names other than localhost (see localHost). It records
// whether the request has a valid token.
type guard struct {
	anyHost bool
	origins origins
	tokens  *api.Tokens
}

func newGuard(c Config) (guard, error) {
	g := guard{anyHost: c.AnyHost || c.Tokens.Required(), tokens: c.Tokens}
	var err error
	g.origins, err = parseOrigins(c.AllowedOrigins)
	return g, err
}

// check returns an error if the request must be refused. answered is true if check has answered the request. A request
// without a token is not refused, because some endpoints need none. Instead, check sets two fields of p:
//
//   - trusted: the request has a valid token, or the API requires no token.
//   - proven: the API requires a token, and the request has a valid one.
func (g *guard) check(p *reply, r *http.Request) (answered bool, err error) {
	if !g.anyHost && !localHost(r.Host) {
		return false, foreignHost("configure an API token to use names")
	}
	p.trusted = g.hasToken(r)
	p.proven = p.trusted && g.tokens.Required()
	return g.checkOrigin(p, r)
}

func foreignHost(fix string) error {
	return api.Forbidden("the Host header must be an IP address or localhost on a listener without a token (" + fix +
		")")
}

// LocalHost returns a handler that protects another handler against DNS rebinding. It answers 403 unless the Host
// header is an IP address, localhost or empty. The error text contains fix, which describes how to allow host names.
func LocalHost(handler http.Handler, fix string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if localHost(r.Host) {
			handler.ServeHTTP(w, r)
			return
		}
		e := api.AsError(foreignHost(fix))
		h := w.Header()
		h[headerContentType] = valueJSON
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write(append(jsonbody.AppendError(nil, e), '}')) // an error here means that the client has gone
	})
}

// HealthOnly returns a handler that serves only the health probes of face. It accepts every Host header, because
// health is no secret.
func HealthOnly(face http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1.0/healthz", "/v1.0/healthz/outbound", "/livez", "/readyz", "/readyz/placed":
		default:
			http.Error(w, "this port serves health probes only: /v1.0/healthz, /v1.0/healthz/outbound, /livez, "+
				"/readyz, /readyz/placed", http.StatusNotFound)
			return
		}
		probe := r.Clone(r.Context())
		probe.Host = "localhost"
		face.ServeHTTP(w, probe)
	})
}

// localHost reports whether a Host header is an IP address, localhost or empty. This protects against DNS rebinding,
// in which the browser sends the host name of the attacker's site. A browser never sends an empty Host header, so an
// empty one is safe.
func localHost(host string) bool {
	if host == "" {
		return true
	}
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}

const headerToken = "Dapr-Api-Token"

// hasToken reports whether a request has a valid token. If the API requires no token, it returns true. Otherwise it
// also removes the token from the headers of the request.
func (g *guard) hasToken(r *http.Request) bool {
	if !g.tokens.Required() {
		return true
	}
	given := header(r, headerToken)
	delete(r.Header, headerToken)
	return g.tokens.Accept(given)
}

// origins are the foreign sites whose pages may send requests.
type origins struct {
	any  bool
	list []string
}

func parseOrigins(texts []string) (origins, error) {
	var o origins
	for _, text := range texts {
		if text == "*" {
			o.any = true
			continue
		}
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.Scheme == "" || u.Path != "" && u.Path != "/" {
			return o, &fault.Error{
				Code: fault.Invalid, Op: "http.New", Msg: "allowed origin " + text + " is not an origin",
				Hint: "write it as https://app.example or http://localhost:8080, or use *",
			}
		}
		o.list = append(o.list, strings.ToLower(u.Scheme+"://"+u.Host))
	}
	return o, nil
}

func (o *origins) allow(origin string) bool {
	return o.any || slices.Contains(o.list, strings.ToLower(origin))
}

// configured reports whether any foreign origin is allowed.
func (o *origins) configured() bool { return o.any || len(o.list) > 0 }

package http

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// guard decides who may speak to a listener before anything of the request is looked at:
// no page of a foreign site, and nobody without a token where there is one.
type guard struct {
	anyHost   bool
	origins   origins
	tokens    *api.Tokens
	openPaths map[string]struct{} // health: no token needed
}

func newGuard(c Config) (guard, error) {
	g := guard{anyHost: c.AnyHost || c.Tokens.Asked(), openPaths: map[string]struct{}{}, tokens: c.Tokens}
	var err error
	g.origins, err = parseOrigins(c.AllowedOrigins)
	return g, err
}

// open frees a path from the need of a token.
func (g *guard) open(path string) { g.openPaths[path] = struct{}{} }

// check returns an error, or answers itself, or lets the request pass.
func (g *guard) check(p *reply, r *http.Request) (answered bool, err error) {
	if !g.anyHost && !localHost(r.Host) {
		return false, api.Forbidden("the Host header must be an IP address or localhost on a listener without a token (configure an API token to use names)")
	}
	if answered, err := g.checkOrigin(p, r); answered || err != nil {
		return answered, err
	}
	return false, g.checkToken(r)
}

// localHost keeps a page whose name was made to point here (DNS rebinding) out: its
// browser sends that name. Nothing that is a browser leaves the header out.
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

// checkToken looks for a token. It goes no further than this.
func (g *guard) checkToken(r *http.Request) error {
	if !g.tokens.Asked() {
		return nil
	}
	given := header(r, headerToken)
	delete(r.Header, headerToken)
	if g.tokens.Accept(given) || g.isOpen(r) {
		return nil
	}
	return api.TokenInvalid()
}

func (g *guard) isOpen(r *http.Request) bool {
	_, open := g.openPaths[r.URL.Path]
	return open && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// origins are the foreign sites whose pages may call.
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

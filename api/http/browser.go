package http

import (
	"net/http"
	"strings"

	"github.com/quorate/quorate/api"
)

const (
	headerOrigin    = "Origin"
	headerFetchSite = "Sec-Fetch-Site"
)

// checkOrigin refuses requests from web pages of other sites. It accepts a request if one of these is true:
//
//   - The request has no headers of a browser.
//   - The page has the origin of this listener.
//   - The configuration allows the site.
//   - The API requires a token, and the request has a valid one, which a foreign page cannot know.
//
// answered is true if the request is a CORS preflight that checkOrigin has answered.
func (g *guard) checkOrigin(p *reply, r *http.Request) (answered bool, err error) {
	origin, site := header(r, headerOrigin), header(r, headerFetchSite)
	if origin == "" {
		if site == "" || site == "same-origin" || site == "none" || g.origins.any || p.proven {
			return false, nil
		}
		return false, foreign("this request comes from a page of another site")
	}
	if sameOrigin(origin, r) {
		return false, nil
	}
	if !g.origins.allow(origin) {
		if g.origins.configured() && isPreflight(r) {
			// The answer has no CORS headers, so the browser does not send the request itself.
			p.Header()["Vary"] = []string{headerOrigin}
			p.WriteHeader(http.StatusOK)
			return true, nil
		}
		if p.proven {
			return false, nil
		}
		return false, foreign("requests of pages from another origin are refused")
	}
	return allowOrigin(p, r, origin), nil
}

func isPreflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && header(r, "Access-Control-Request-Method") != ""
}

func foreign(text string) error {
	return api.Forbidden(text + " (name the origin in --allowed-origins to allow it)")
}

// sameOrigin reports whether origin is the origin of the listener that received r.
func sameOrigin(origin string, r *http.Request) bool {
	scheme, host, ok := strings.Cut(origin, "://")
	want := "http"
	if r.TLS != nil {
		want = "https"
	}
	return ok && scheme == want && strings.EqualFold(host, r.Host)
}

// allowOrigin sets the response headers that let a web page of the given origin read the answer. If the request is
// a CORS preflight, allowOrigin answers it and returns true. A preflight needs no token, because browsers send
// preflights without one.
func allowOrigin(p *reply, r *http.Request, origin string) (answered bool) {
	h := p.Header()
	h["Access-Control-Allow-Origin"] = []string{origin}
	h["Vary"] = []string{headerOrigin}
	h["Access-Control-Expose-Headers"] = []string{"ETag, metadata.ttlExpireTime, Quorate-Session, " +
		"Quorate-Consistency, Quorate-Age, Quorate-Lock-Revision, Quorate-Lock-Expires-In-Ms"}
	if !isPreflight(r) {
		return false
	}
	h["Access-Control-Allow-Methods"] = []string{"HEAD, GET, POST, PUT, PATCH, DELETE"}
	if asked := header(r, "Access-Control-Request-Headers"); asked != "" {
		h["Access-Control-Allow-Headers"] = []string{asked}
	}
	h["Access-Control-Max-Age"] = []string{"600"}
	p.WriteHeader(http.StatusOK)
	return true
}

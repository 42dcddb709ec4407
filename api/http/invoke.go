package http

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/httpcopy"
	"github.com/quorate/quorate/api/invoke"
)

const (
	invokePrefix  = "/v1.0/invoke/"
	headerAppID   = "Dapr-App-Id"
	headerBaggage = "Baggage"
	basicAppID    = "dapr-app-id" // user name in a URL; the password is the application id
)

// invokeRoutes serves calls to methods of applications. It does not need the type core, because calls are streamed and
// their bodies have no size limit.
type invokeRoutes struct {
	service *invoke.Service // nil = calls are not served
	surface *api.Surface
	copier  httpcopy.Copier
}

// routes returns the route of calls, or none if calls are not served. Face also uses this route for requests that
// match no endpoint but name an application (see Face.byHeader).
func (i *invokeRoutes) routes() []route {
	if i.service == nil {
		return nil
	}
	return []route{
		{verbs: anyVerb, path: "/v1.0/invoke/*", serve: i.invokeMethod},
	}
}

// namesApp reports whether a request names an application in the header dapr-app-id or in the user info of the URL.
func namesApp(r *http.Request) bool {
	if header(r, headerAppID) != "" {
		return true
	}
	user, _, ok := r.BasicAuth()
	return ok && user == basicAppID
}

// invokeMethod serves calls to methods of applications. The body limit and the request timeout do not apply, because
// requests and answers are streamed.
func (i *invokeRoutes) invokeMethod(p *reply, r *http.Request) error {
	if err := i.surface.HTTP(invokePrefix); err != nil {
		return err
	}
	call, err := decodeCall(r)
	if err != nil {
		return err
	}
	body := httpcopy.NewBody(r)
	call.Body, call.Proven = body, p.proven
	defer func() { p.received = body.Count() }()
	ctx := httpcopy.Informational(p, r, invoke.CleanHeader)
	answer, err := i.service.Do(ctx, call)
	if err != nil {
		return err
	}
	if answer.Session != "" && header(r, headerSession) != "" {
		answer.Header[headerSession] = []string{answer.Session}
	}
	if _, ok := answer.Header[headerBaggage]; !ok && len(r.Header[headerBaggage]) > 0 {
		answer.Header[headerBaggage] = r.Header[headerBaggage] // as Dapr does, unless the application sends its own
	}
	if answer.StatusCode == http.StatusSwitchingProtocols {
		p.status = answer.StatusCode // the tunnel bypasses the reply
	}
	if err := i.copier.Relay(p, r, body, answer.Response); err != nil {
		if !errors.Is(err, httpcopy.ErrStarted) {
			p.status = 0
			return invoke.Failed(call.Target, err)
		}
		p.broken = true
	}
	return nil
}

// decodeCall returns the call that a request describes. It finds the target application in the header dapr-app-id, in
// the user info of the URL, or in the path, in this order.
func decodeCall(r *http.Request) (*invoke.Call, error) {
	path, query, mark := received(r)
	c := &invoke.Call{Verb: r.Method, Query: query, Mark: mark, Header: r.Header, Length: r.ContentLength,
		Trailer: r.Trailer, Remote: r.RemoteAddr}
	if id := header(r, headerAppID); id != "" {
		c.Target, c.Path = id, path
		return c, nil
	}
	if user, id, ok := r.BasicAuth(); ok && user == basicAppID {
		delete(r.Header, "Authorization")
		c.Target, c.Path = id, path
		return c, nil
	}
	if id, method, ok := addressIn(path); ok {
		c.Target, c.Path = id, method
		return c, nil
	}
	rest, _ := strings.CutPrefix(collapsed(r.Method, path), invokePrefix)
	id, rest, _ := strings.Cut(rest, "/")
	word, method, _ := strings.Cut(rest, "/")
	if id == "" || word != "method" || method == "" {
		return nil, invoke.MethodMissing()
	}
	id, err := url.PathUnescape(id)
	if err != nil {
		return nil, invoke.MethodMissing()
	}
	c.Target, c.Path = id, "/"+method
	return c, nil
}

// addressIn splits a path whose target is an address. For example, /v1.0/invoke/https://host/base/method/name has the
// target https://host/base and the method /name. The scheme may be followed by a single slash, because some clients
// merge slashes. Only the host is decoded, because some clients escape it.
func addressIn(path string) (target, method string, ok bool) {
	rest, ok := strings.CutPrefix(path, invokePrefix)
	scheme, after, found := strings.Cut(rest, ":/")
	if !ok || !found || scheme != "http" && scheme != "https" {
		return "", "", false
	}
	address, method, found := strings.Cut(strings.TrimLeft(after, "/"), "/method/")
	if !found || method == "" {
		return "", "", false
	}
	host, base, _ := strings.Cut(address, "/")
	host, err := url.PathUnescape(host)
	return strings.TrimSuffix(scheme+"://"+host+"/"+base, "/"), "/" + method, err == nil
}

// received returns the path and query of a request exactly as the client sent them, without scheme and host. mark
// reports whether there was a question mark, because an empty query differs from no query.
func received(r *http.Request) (path, query string, mark bool) {
	path, query, mark = strings.Cut(r.RequestURI, "?")
	if !strings.HasPrefix(path, "/") {
		if _, after, ok := strings.Cut(path, "://"); ok {
			_, path, _ = strings.Cut(after, "/")
		}
		path = "/" + path
	}
	return path, query, mark
}

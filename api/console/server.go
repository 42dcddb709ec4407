package console

import (
	"bytes"
	"context"
	_ "embed" // for the assets
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

var (
	//go:embed assets/console.css
	styleSheet string
	//go:embed assets/console.js
	script string
	//go:embed assets/icon.svg
	icon string
)

const (
	maxForm    = 2 << 20                // bytes of a form
	maxStreams = 64                     // open pages that are kept up to date
	updateEach = 500 * time.Millisecond // the least time between two updates of an open page
	heartbeat  = 15 * time.Second
	sendTime   = 20 * time.Second // timeout of sending one update of a page
)

// Config has the dependencies of a Console. Cluster, Data, Blocks, Work, Workflows, Topics, Calls, OpenAPI, Logger and
// Now are required.
type Config struct {
	Cluster   Cluster
	Data      Data
	Blocks    Blocks
	Work      Work
	Workflows Workflows
	Topics    Topics
	Calls     Calls
	Write     bool   // pages may change state and transfer leadership
	OpenAPI   []byte // the description of the HTTP API
	// Token returns the API token of an application of this node; empty = none is needed. It is never shown.
	Token  func(app string) string
	Port   string // port of the console; a part of the name of its cookie
	Logger *slog.Logger
	Now    func() time.Time
}

// Console is the web console of one node. It is safe for concurrent use.
type Console struct {
	config   Config
	sessions *sessions
	watcher  *watcher
	paths    []pathDoc
	mux      *http.ServeMux
	hostname string
	compared comparisons
	streams  chan struct{} // one element for each open stream
	closed   chan struct{}
	close    func()
}

// New returns a console. The caller serves Handler with an HTTP server. The caller must call Console.Close before it
// closes the HTTP server.
func New(c Config) (*Console, error) {
	paths, err := parseOpenAPI(c.OpenAPI)
	if err != nil {
		return nil, err
	}
	con := &Console{config: c, sessions: newSessions("quorate-console-"+c.Port, c.Now),
		watcher: newWatcher(c.Cluster, c.Now), paths: paths, mux: http.NewServeMux(),
		streams: make(chan struct{}, maxStreams), closed: make(chan struct{})}
	con.hostname, _ = os.Hostname() // without one, only addresses and localhost are accepted
	con.compared.closing, con.compared.cease = context.WithCancel(context.Background())
	con.close = sync.OnceFunc(func() {
		close(con.closed)
		con.compared.close()
	})
	con.route()
	return con, nil
}

// Close ends all open event streams, so that the HTTP server can stop. It then cancels running comparisons of replicas
// and waits for them.
func (c *Console) Close() { c.close() }

// Login returns the path of a link that signs one browser in, and when the link expires.
func (c *Console) Login() (path string, expires time.Time) {
	token, expires := c.sessions.login()
	return "/login?token=" + token, expires
}

// route sets up the paths.
func (c *Console) route() {
	c.mux.HandleFunc("GET /login", c.login)
	// Some programs preview a link with HEAD. Such a request must not use the link up.
	c.mux.HandleFunc("HEAD /login", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	c.mux.HandleFunc("GET /assets/{file}", c.asset)
	for _, p := range pages() {
		c.mux.Handle("GET "+p.path, c.signedIn(func(r *request) { c.page(r, p) }))
	}
	change := func(at string, handle func(*request) error) {
		c.mux.Handle("POST "+at, c.signedIn(func(r *request) { c.change(r, handle) }))
	}
	change("/groups/{group}/transfer", (*request).transferLeader)
	change("/state/save", (*request).saveState)
	change("/state/delete", (*request).deleteState)
	change("/locks/release", (*request).releaseLock)
	c.mux.Handle("POST /groups/{group}/compare", c.signedIn((*request).compareReplicas))
	c.mux.Handle("POST /try", c.signedIn(func(r *request) { c.page(r, tryPage()) }))
	c.mux.Handle("POST /logout", c.signedIn(func(r *request) {
		c.sessions.leave(r.w, r.Request)
		c.signIn(r.w, http.StatusOK, "You have signed out.")
	}))
	c.mux.Handle("/", c.signedIn(func(r *request) {
		c.failed(r, http.StatusNotFound, "There is no page "+r.URL.Path+".")
	}))
}

// Handler returns the handler of the console.
func (c *Console) Handler() http.Handler {
	// The protection checks Sec-Fetch-Site and Origin. Forms also have a token.
	protection := http.NewCrossOriginProtection()
	next := protection.Handler(c.mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
			"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !c.knownHost(r.Host) {
			http.Error(w, "The console is reached by an address, localhost or the name of the machine, not by "+
				"the host name of this request.", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// knownHost reports whether a Host header is an IP address, localhost or the name of this machine. The console refuses
// all other names, to protect against DNS rebinding.
func (c *Console) knownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") || c.hostname != "" && strings.EqualFold(host, c.hostname)
}

// request is a request of a browser that has signed in.
type request struct {
	*http.Request
	w       http.ResponseWriter
	console *Console
	session *session
	snap    *Snapshot  // set for pages
	live    *liveCalls // set for an open page of calls
}

// signedIn wraps a handler of pages. It answers 401 to a browser that has not signed in. It answers 403 to a form
// without the CSRF token of the session.
func (c *Console) signedIn(next func(*request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := c.sessions.find(r)
		if s == nil {
			c.signIn(w, http.StatusUnauthorized, "Sign in to see the console.")
			return
		}
		req := &request{Request: r, w: w, console: c, session: s}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			if err := r.ParseForm(); err != nil {
				c.failed(req, http.StatusBadRequest, "The form cannot be read: "+err.Error()+".")
				return
			}
			if !s.allows(r.PostForm.Get("csrf")) {
				c.failed(req, http.StatusForbidden, "This form belongs to another session. Load the page again.")
				return
			}
		}
		next(req)
	})
}

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	if !c.sessions.enter(w, r.URL.Query().Get("token")) {
		c.signIn(w, http.StatusForbidden, "This link was used already, or it has expired.")
		return
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// asset serves the style sheet, the script and the icon.
func (c *Console) asset(w http.ResponseWriter, r *http.Request) {
	kind, body := "", ""
	switch r.PathValue("file") {
	case "console.css":
		kind, body = "text/css", styleSheet
	case "console.js":
		kind, body = "text/javascript", script
	case "icon.svg":
		kind, body = "image/svg+xml", icon
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "max-age=300")
	_, _ = io.WriteString(w, body) // an error here means that the browser has gone
}

// change handles a form that changes something. If the console is read-only, it answers 403. Otherwise it calls handle,
// which must write the response. If handle returns an error, change writes the response instead.
func (c *Console) change(r *request, handle func(*request) error) {
	if !c.config.Write {
		c.failed(r, http.StatusForbidden, readOnlyText)
		return
	}
	if err := handle(r); err != nil {
		c.failed(r, statusOf(err), textOf(err))
	}
}

const readOnlyText = "The console is read-only. Start the node with --console-write to change something here."

// page answers a request with a page. If the browser requests server-sent events, the response stays open, and each new
// version of the content is sent as an event.
func (c *Console) page(r *request, p page) {
	if p.follow != nil && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		c.stream(r, p)
		return
	}
	r.snap = c.watcher.current(r.Context())
	body, err := p.body(r)
	if err != nil {
		c.failed(r, statusOf(err), textOf(err))
		return
	}
	writePage(r.w, http.StatusOK, r.document(p, body))
}

// stream sends the body of a page as a server-sent event whenever it changes.
func (c *Console) stream(r *request, p page) {
	select {
	case c.streams <- struct{}{}:
		defer func() { <-c.streams }()
	default:
		http.Error(r.w, "too many pages are open", http.StatusServiceUnavailable)
		return
	}
	news, closed, err := p.follow(r)
	if err != nil {
		http.Error(r.w, textOf(err), http.StatusServiceUnavailable)
		return
	}
	defer closed()
	out := http.NewResponseController(r.w)
	r.w.Header().Set("Content-Type", "text/event-stream")
	r.w.Header().Set("X-Accel-Buffering", "no")
	alive := time.NewTicker(heartbeat)
	defer alive.Stop()
	var sent []byte
	changed := true
	for {
		event := []byte(": alive\n\n")
		if snap := c.watcher.latest(); snap != nil && changed {
			r.snap = snap
			text, err := fragment(r, p)
			if err != nil || bytes.Equal(text, sent) {
				event = nil
			} else {
				sent, event = text, sse(text)
			}
		}
		if event != nil {
			_ = out.SetWriteDeadline(time.Now().Add(sendTime)) // response writers of tests may have no deadlines
			if _, err := r.w.Write(event); err != nil || out.Flush() != nil {
				return
			}
		}
		changed = false
		select {
		case <-news:
			changed = true
			if !c.pause(r.Context()) {
				return
			}
		case <-alive.C:
			if c.sessions.look(r.Request) == nil { // the session has ended
				return
			}
		case <-c.closed:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// pause waits for the duration updateEach, so that an open page is not updated too often. It returns false if the page
// or the console was closed.
func (c *Console) pause(ctx context.Context) bool {
	t := time.NewTimer(updateEach)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-c.closed:
	case <-ctx.Done():
	}
	return false
}

// fragment renders the body of a page alone.
func fragment(r *request, p page) ([]byte, error) {
	body, err := p.body(r)
	if err != nil {
		return nil, err
	}
	return []byte(r.banner() + body), nil
}

// sse formats text as a server-sent event.
func sse(text []byte) []byte {
	var b bytes.Buffer
	b.WriteString("event: body\n")
	for line := range bytes.Lines(text) {
		b.WriteString("data: ")
		line = bytes.TrimRight(line, "\r\n")
		b.Write(bytes.ReplaceAll(line, []byte("\r"), []byte(" "))) // a carriage return would end the line
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// writePage sends a page.
func writePage(w http.ResponseWriter, status int, page html) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, string(page)) // an error here means that the browser has gone
}

// textOf returns the text of an error for people.
func textOf(err error) string {
	e, ok := errors.AsType[*api.Error](err)
	switch {
	case !ok:
		return fault.Text(err)
	case e.Kind == api.Conflict:
		return "The key has changed since it was shown, or it exists already. Nothing was changed. (" + e.Message + ")"
	default:
		return e.Message
	}
}

// statusOf returns the HTTP status for an error.
func statusOf(err error) int {
	if e, ok := errors.AsType[*api.Error](err); ok {
		switch e.Kind {
		case api.NotFound, api.Missing, api.NotConfigured:
			return http.StatusNotFound
		case api.Conflict:
			return http.StatusConflict
		case api.Malformed:
			return http.StatusBadRequest
		}
		return http.StatusBadGateway
	}
	switch fault.CodeOf(err) {
	case fault.NotFound:
		return http.StatusNotFound
	case fault.Invalid:
		return http.StatusBadRequest
	default:
		return http.StatusBadGateway
	}
}

// audit logs an action of a person at the console.
func (r *request) audit(ctx context.Context, action string, args ...any) {
	r.console.config.Logger.InfoContext(ctx, "audit: console", append([]any{"action", action, "from", r.RemoteAddr},
		args...)...)
}

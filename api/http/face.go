package http

import (
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/internal/admission"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/timeline"
)

// The defaults of Config.
const (
	DefaultMaxBodySize    = 4 << 20 // bytes
	DefaultRequestTimeout = 10 * time.Second
)

// Config is the configuration of a Face. All services belong to one application.
type Config struct {
	App            api.App
	State          *api.State
	Secrets        *api.Secrets
	Bindings       *api.Bindings
	Locks          *api.Locks
	Jobs           *api.Jobs
	Configurations *configurations.Service
	Topics         *pubsub.Service
	Workflows      *workflows.Service
	Health         *api.Health
	Metadata       *api.Metadata
	Actors         *actors.Service
	Invoke         *invoke.Service  // nil = calls to applications are not served
	Shutdown       func(force bool) // asks the process to stop and returns at once

	// Start holds requests while the node starts, except those for health, metadata, shutdown and the OpenAPI
	// description. nil = no request is held.
	Start *api.StartGate

	Tokens         *api.Tokens   // API tokens; nil = no token is needed
	AllowedOrigins []string      // browser origins such as https://app.example, or "*"; empty = only the own origin
	AnyHost        bool          // without tokens: accept any Host header, not only IP addresses and localhost
	MaxBodySize    int64         // bytes; 0 = DefaultMaxBodySize, negative = no limit
	RequestTimeout time.Duration // for one service call, and for reading one body; 0 = DefaultRequestTimeout

	Pipeline *Pipeline         // middleware; nil = none
	Surface  *api.Surface      // which endpoints are served; nil = all
	Calls    *api.CallLog      // logs requests; nil = no log
	Tracer   api.RequestTracer // nil = no spans

	Requests *admission.Budget // memory of requests being served, shared by all faces of the node; nil = no bound
	Answers  *admission.Budget // memory of answers being sent; nil = no bound

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Observer   Observer // nil = none
}

// Face serves the API of one application over HTTP. It is safe for concurrent use.
type Face struct {
	*core
	start    *api.StartGate
	pipeline *Pipeline
	surface  *api.Surface
	calls    *api.CallLog
	app      string            // id of the application, for the log of calls
	tracer   api.RequestTracer // nil = no spans
	log      *slog.Logger

	mux      *chi.Mux
	get      *endpoint       // serves GET of one key; see direct
	save     *endpoint       // serves POST of items; see direct
	call     *endpoint       // serves calls of applications; see direct. nil = they are not served
	exempt   map[string]bool // paths that need no token
	guard    guard
	away     api.TurnedAway
	metrics  *metrics
	observer Observer  // of requests; nil = none
	replies  sync.Pool // of *reply
}

// New creates a Face and registers its metrics. It does no I/O. It returns fault.Invalid if an allowed origin is
// malformed.
func New(c Config) (*Face, error) {
	f := &Face{
		core: newCore(c), start: c.Start, pipeline: c.Pipeline, surface: c.Surface, calls: c.Calls,
		app: c.App.ID, tracer: c.Tracer, log: c.Logger, mux: chi.NewMux(), exempt: map[string]bool{},
		observer: c.Observer,
	}
	var err error
	if f.guard, err = newGuard(c); err != nil {
		return nil, err
	}
	if f.metrics, err = newMetrics(c.App, c.Registerer); err != nil {
		return nil, fault.Wrap(err, "http.New", "registering metrics")
	}
	f.replies.New = func() any { return new(reply) }
	for _, b := range f.blocks(c) {
		f.register(b.routes())
	}
	unmatched := f.metrics.route("unmatched", "")
	f.mux.NotFound((&endpoint{face: f, serve: f.notFound, count: unmatched}).ServeHTTP)
	f.mux.MethodNotAllowed((&endpoint{face: f, serve: f.methodNotAllowed, count: unmatched}).ServeHTTP)
	return f, nil
}

// handler serves one endpoint. It writes the answer and returns nil, or returns an error, which the caller sends as
// the answer.
type handler func(p *reply, r *http.Request) error

// endpoint is a handler with the metrics and the properties of its route.
type endpoint struct {
	face   *Face
	serve  handler
	path   string // pattern of its paths; empty = none
	count  *routeMetrics
	open   bool // needs no token
	early  bool // is served while the node starts
	traced bool // has a span
}

// ServeHTTP serves a request. w must be a *reply. A request without a valid token is refused, unless the endpoint is
// open.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := w.(*reply)
	if !p.trusted && !e.open {
		e.face.turnAway(p, r, api.TokenInvalid())
		return
	}
	p.count = e.count
	if !e.early {
		e.face.start.Wait(r.Context(), e.face.timeout)
	}
	if span := e.startSpan(r); span != nil {
		defer endSpan(span, p)
	}
	err := e.allowed()
	if err == nil {
		err = e.serve(p, r)
	}
	if err != nil {
		e.face.fail(p, r, err)
	}
}

// register adds routes to the mux. A path is also served with a trailing slash, unless it ends with the wildcard * or
// the route is exact.
func (f *Face) register(routes []route) {
	for _, rt := range routes {
		for _, verb := range verbs(rt) {
			e := &endpoint{face: f, serve: rt.serve, path: rt.path, count: f.metrics.route(rt.path, verb),
				open: rt.open, early: rt.open || rt.early, traced: f.tracer != nil && isTraced(rt.path)}
			for _, path := range paths(rt) {
				if verb == anyVerb {
					f.mux.Handle(path, e)
					f.call = e
					continue
				}
				f.mux.Method(verb, path, e)
				switch {
				case rt.often && verb == http.MethodGet:
					f.get = e
				case rt.often && verb == http.MethodPost:
					f.save = e
				}
				if rt.open {
					f.exempt[path] = true
				}
			}
		}
	}
}

func verbs(rt route) []string {
	list := strings.Fields(rt.verbs)
	if slices.Contains(list, http.MethodGet) && !rt.noHead {
		list = append(list, http.MethodHead)
	}
	return list
}

func paths(rt route) []string {
	if rt.exact || strings.HasSuffix(rt.path, "*") {
		return []string{rt.path}
	}
	return []string{rt.path, rt.path + "/"}
}

func (f *Face) notFound(p *reply, r *http.Request) error {
	if f.byHeader(r) {
		return f.call.serve(p, r)
	}
	return api.PathNotFound(r.URL.Path)
}

// byHeader reports whether a request that matches no endpoint is a call to an application that the request names (see
// namesApp). It returns false if the path is another spelling of a path that needs no token, such as "/V1.0//healthz".
func (f *Face) byHeader(r *http.Request) bool {
	return f.call != nil && !f.exempt[strings.ToLower(path.Clean("/"+r.URL.Path))] && namesApp(r)
}

func (f *Face) methodNotAllowed(p *reply, r *http.Request) error {
	// chi also calls this for verbs that it does not know, on any path.
	if f.byHeader(r) || f.call != nil && strings.HasPrefix(r.URL.Path, invokePrefix) {
		return f.call.serve(p, r)
	}
	allowed := f.allowed(r)
	if len(allowed) == 0 {
		return api.PathNotFound(r.URL.Path)
	}
	list := strings.Join(allowed, ", ")
	p.Header()["Allow"] = []string{list}
	return api.MethodNotAllowed(r.Method, list)
}

// allowed returns the verbs that have a route for the path of r.
func (f *Face) allowed(r *http.Request) []string {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var out []string
	for _, verb := range []string{"GET", "HEAD", "POST", "PUT", "DELETE"} {
		if f.mux.Match(chi.NewRouteContext(), verb, path) {
			out = append(out, verb)
		}
	}
	return out
}

// ServeHTTP checks one request, routes it to its endpoint, and counts it.
func (f *Face) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := f.replies.Get().(*reply)
	*p = reply{ResponseWriter: w, ctx: r.Context(), start: time.Now(), count: f.metrics.refused,
		answer: f.answers.Share()}
	f.metrics.inFlight.Add(1)
	timeline.Mark(timeline.Request)
	defer f.finish(p, r)
	if answered, err := f.guard.check(p, r); err != nil {
		f.turnAway(p, r, err)
	} else if !answered {
		f.dispatch(p, r)
	}
}

// turnAway logs and answers a request that the guard or the token check refused.
func (f *Face) turnAway(p *reply, r *http.Request, err error) {
	f.away.Note(f.log, r.RemoteAddr, r.Method, err)
	f.fail(p, r, err)
}

// direct finds the endpoint of a frequent request without the mux, which is slower (ADR 44 has the measurement).
// Frequent requests are reads of one key, saves of items, and calls to methods of applications. For all other requests,
// direct returns nil. The tests TestDirect_* check that direct and the mux choose the same endpoints.
func (f *Face) direct(r *http.Request) *endpoint {
	path := r.URL.RawPath // as the mux does
	if path == "" {
		path = r.URL.Path
	}
	if rest, ok := strings.CutPrefix(path, invokePrefix); ok && rest != "" && !strings.Contains(path, "//") &&
		knownVerb(r.Method) != otherVerb {
		return f.call
	}
	rest, ok := strings.CutPrefix(path, statePrefix)
	if !ok {
		return nil
	}
	slash := strings.IndexByte(rest, '/')
	switch {
	case r.Method == http.MethodGet && slash > 0 && slash < len(rest)-1:
		return f.get
	case r.Method == http.MethodPost && slash < 0 && rest != "":
		return f.save
	}
	return nil
}

// finish counts the request, releases its memory, and recovers from a panic of its handler.
func (f *Face) finish(p *reply, r *http.Request) {
	cause := recover()
	if cause != nil && cause != http.ErrAbortHandler { //nolint:errorlint // the value itself is the signal
		f.panicked(p, r, cause)
	}
	timeline.Mark(timeline.Response)
	p.share.Release()
	p.answer.Release()
	f.metrics.inFlight.Add(-1)
	p.count.observe(p, r.Method)
	if f.observer != nil {
		f.observer.ServedHTTP(r.Method, r.URL.Path, p.status, p.received, p.sent, time.Since(p.start))
	}
	f.logCall(p, r)
	if cause == http.ErrAbortHandler || p.broken { //nolint:errorlint // see above
		panic(http.ErrAbortHandler) // an answer that is cut short must not look complete
	}
	*p = reply{}
	f.replies.Put(p)
}

// panicked logs a panic in a handler, and answers with status 500. If a part of the answer was already sent, it sets
// p.broken instead. The log contains no text that may include a value or a secret.
func (f *Face) panicked(p *reply, r *http.Request, cause any) {
	f.log.Error("a request ended in a panic; please report it",
		"method", r.Method, "route", p.count.pattern, "panic", fault.PanicText(cause), "stack", string(debug.Stack()))
	if p.status != 0 {
		p.broken = true
		return
	}
	f.fail(p, r, api.Panicked())
}

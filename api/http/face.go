package http

import (
	"log/slog"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/relay"
	"github.com/quorate/quorate/internal/fault"
)

// The defaults of Config.
const (
	DefaultMaxBodySize    = 4 << 20 // bytes
	DefaultRequestTimeout = 10 * time.Second
)

// Config is what a Face is made of. All services are of one application.
type Config struct {
	App      api.App
	State    *api.State
	Secrets  *api.Secrets
	Bindings *api.Bindings
	Health   *api.Health
	Metadata *api.Metadata
	Invoke   *api.Invoke      // nil = calls of applications are not served
	Shutdown func(force bool) // asks the process to stop and returns at once

	Tokens         *api.Tokens   // API tokens; nil = no token is needed
	AllowedOrigins []string      // browser origins such as https://app.example, or "*"; none = no foreign ones
	AnyHost        bool          // without tokens: accept any Host header, not only IP addresses and localhost
	MaxBodySize    int64         // bytes; 0 = DefaultMaxBodySize, negative = no limit
	RequestTimeout time.Duration // of one service call and of the arrival of a body; 0 = DefaultRequestTimeout

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Face serves the API of one application over HTTP. It is safe for concurrent use.
type Face struct {
	app      api.App
	state    *api.State
	secrets  *api.Secrets
	bindings *api.Bindings
	health   *api.Health
	metadata *api.Metadata
	invoke   *api.Invoke
	copier   relay.Copier
	stop     func(force bool)

	bodyLimit int64
	timeout   time.Duration
	log       *slog.Logger

	mux     *chi.Mux
	get     *endpoint // of the reads of one key; see direct
	guard   guard
	away    api.TurnedAway
	metrics *metrics
	replies sync.Pool // of *reply
	buffers sync.Pool // of *buffer
}

// New makes a Face and registers its metrics. It does no I/O. The error is fault.Invalid
// for an unusable origin.
func New(c Config) (*Face, error) {
	f := &Face{
		app: c.App, state: c.State, secrets: c.Secrets, bindings: c.Bindings, health: c.Health, metadata: c.Metadata, invoke: c.Invoke, stop: c.Shutdown,
		bodyLimit: c.MaxBodySize, timeout: c.RequestTimeout, log: c.Logger, mux: chi.NewMux(),
	}
	if f.bodyLimit == 0 {
		f.bodyLimit = DefaultMaxBodySize
	}
	if f.timeout <= 0 {
		f.timeout = DefaultRequestTimeout
	}
	var err error
	if f.guard, err = newGuard(c); err != nil {
		return nil, err
	}
	if f.metrics, err = newMetrics(c.App, c.Registerer); err != nil {
		return nil, fault.Wrap(err, "http.New", "registering metrics")
	}
	f.replies.New = func() any { return new(reply) }
	f.buffers.New = func() any { return new(buffer) }
	f.register(f.routes())
	return f, nil
}

// handler serves one endpoint: it answers, or returns the error to answer with.
type handler func(p *reply, r *http.Request) error

// endpoint ties a handler to the metrics of its route.
type endpoint struct {
	face  *Face
	serve handler
	count *routeMetrics
}

// ServeHTTP is called by the mux with the reply that Face.ServeHTTP made.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := w.(*reply)
	p.count = e.count
	if err := e.serve(p, r); err != nil {
		e.face.fail(p, r, err)
	}
}

// register adds routes to the mux. Paths without a key tolerate a slash at the end,
// unless they say that they are exact.
func (f *Face) register(routes []route) {
	for _, rt := range routes {
		if rt.verbs == anyVerb && f.invoke == nil {
			continue
		}
		for _, verb := range verbs(rt) {
			e := &endpoint{face: f, serve: rt.serve, count: f.metrics.route(rt.path, verb)}
			for _, path := range paths(rt) {
				if verb == anyVerb {
					f.mux.Handle(path, e)
					continue
				}
				f.mux.Method(verb, path, e)
				if rt.often && verb == http.MethodGet {
					f.get = e
				}
				if rt.open {
					f.guard.open(path)
				}
			}
		}
	}
	unmatched := f.metrics.route("unmatched", "")
	f.mux.NotFound((&endpoint{face: f, serve: f.notFound, count: unmatched}).ServeHTTP)
	f.mux.MethodNotAllowed((&endpoint{face: f, serve: f.methodNotAllowed, count: unmatched}).ServeHTTP)
}

func verbs(rt route) []string {
	list := strings.Fields(rt.verbs)
	if slices.Contains(list, http.MethodGet) {
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
	if f.invoke != nil && f.byHeader(r) {
		return f.invokeMethod(p, r)
	}
	return api.PathNotFound(r.URL.Path)
}

func (f *Face) methodNotAllowed(p *reply, r *http.Request) error {
	if f.invoke != nil && (f.byHeader(r) || strings.HasPrefix(r.URL.Path, invokePrefix)) { // verbs the mux has never heard of
		return f.invokeMethod(p, r)
	}
	allowed := f.allowed(r)
	if len(allowed) == 0 { // a verb the mux has never heard of
		return api.PathNotFound(r.URL.Path)
	}
	list := strings.Join(allowed, ", ")
	p.Header()["Allow"] = []string{list}
	return api.MethodNotAllowed(r.Method, list)
}

// allowed lists the verbs that the path of r knows.
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

// ServeHTTP serves one request: guard, route, count.
func (f *Face) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := f.replies.Get().(*reply)
	*p = reply{ResponseWriter: w, start: time.Now(), count: f.metrics.refused}
	f.metrics.inFlight.Add(1)
	defer f.finish(p, r)
	if answered, err := f.guard.check(p, r); err != nil {
		f.away.Note(f.log, r.RemoteAddr, r.Method, err)
		f.fail(p, r, err)
	} else if e := f.direct(r); !answered && e != nil {
		e.ServeHTTP(p, r)
	} else if !answered {
		f.mux.ServeHTTP(p, r)
	}
}

// direct is the endpoint of what is asked most, the value of one key; nil for all else, and
// for paths that need a closer look. It spares such a request the mux, which is a twentieth of
// what it costs in all.
func (f *Face) direct(r *http.Request) *endpoint {
	if r.Method != http.MethodGet {
		return nil
	}
	path := r.URL.RawPath // as the mux does
	if path == "" {
		path = r.URL.Path
	}
	rest, ok := strings.CutPrefix(path, statePrefix)
	if slash := strings.IndexByte(rest, '/'); !ok || slash <= 0 || slash == len(rest)-1 {
		return nil
	}
	return f.get
}

// finish counts the request and stops a panic from ending more than its own request.
func (f *Face) finish(p *reply, r *http.Request) {
	cause := recover()
	if cause != nil && cause != http.ErrAbortHandler { //nolint:errorlint // the value itself is the signal
		f.panicked(p, r, cause)
	}
	f.metrics.inFlight.Add(-1)
	p.count.observe(p, r.Method)
	if cause == http.ErrAbortHandler || p.broken { //nolint:errorlint // see above
		panic(http.ErrAbortHandler) // an answer that is cut short must not look complete
	}
	*p = reply{}
	f.replies.Put(p)
}

// panicked logs a panic, where it is known not to hold a value, and answers with 500.
func (f *Face) panicked(p *reply, r *http.Request, cause any) {
	f.log.Error("a request ended in a panic; please report it",
		"method", r.Method, "route", p.count.pattern, "panic", describePanic(cause), "stack", string(debug.Stack()))
	if p.status != 0 {
		p.broken = true
		return
	}
	f.fail(p, r, api.Panicked())
}

// describePanic names the type only, but for errors of the Go runtime: the text of
// anything else may hold a value or a secret.
func describePanic(cause any) string {
	if e, ok := cause.(interface{ RuntimeError() }); ok {
		return e.(error).Error()
	}
	return typeName(cause)
}

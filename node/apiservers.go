package node

import (
	"context"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/configurations"
	apigrpc "github.com/quorate/quorate/api/grpc"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/pubsub"
	apiworkflows "github.com/quorate/quorate/api/workflows"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lifecycle"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/tracing"
	"github.com/quorate/quorate/node/actorhost"
	"github.com/quorate/quorate/node/calls"
	"github.com/quorate/quorate/node/catalogue"
	"github.com/quorate/quorate/node/components"
	"github.com/quorate/quorate/node/inputs"
	"github.com/quorate/quorate/node/jobs"
	"github.com/quorate/quorate/node/remoteadmin"
	"github.com/quorate/quorate/node/status"
	"github.com/quorate/quorate/node/subscriptions"
	"github.com/quorate/quorate/node/workflows"
)

// The HTTP listeners of a node, as metrics and closers name them.
const (
	listenerAPI     = "api"
	listenerHealth  = "health"
	listenerMetrics = "metrics"
	listenerAdmin   = "admin socket"
	listenerConsole = "console"
)

const (
	fewConnections   = 256 // connection limit of each listener that does not serve an API
	leastConnections = 64  // smallest connection limit of an API listener
)

// apiServers are all HTTP and gRPC servers of one node: the APIs of its applications, and the listeners for health,
// metrics and administration.
type apiServers struct {
	config   Config
	apps     []AppEntry
	deps     Deps
	closers  *lifecycle.Stack
	shutdown func(force bool) // called by the shutdown endpoint

	start       *api.StartGate // opened when the components are served, or the node closes
	memory      memory
	connections *prometheus.GaugeVec
	cut         *prometheus.CounterVec
	surface     *api.Surface
	pipeline    *apihttp.Pipeline
	callLog     *api.CallLog

	declared         component.Configuration // the Configuration at the start
	tracer           *tracing.Tracer
	traced           *tracing.Declared        // the tracing section that tracer applies
	measured         *component.MetricsConfig // the metrics section that dapr applies; nil = none
	metricsOff       atomic.Bool              // true = the Configuration disables metrics
	anyOnce          sync.Once
	anyTransport     *http.Transport // for addresses that no HTTPEndpoint declares
	componentMetrics *components.Metrics
	reloads          *reloads       // nil = there is no application
	inputs           *inputs.Runner // nil = there is no application
	subscribers      *subscriptions.Runner
	workflows        workflows.Engine

	watches        *api.Watches
	actors         *actorhost.Host
	jobs           jobs.Jobs
	remote         *remoteadmin.Remote
	configurations []*configurations.Service
	subscribed     *configurations.Metrics

	consoleLinks consoleLinks
	dapr         daprNames

	tokens *api.Tokens // for applications without a token of their own; nil until the API of one is opened
	apis   []interface{ Close(context.Context) error }
}

func newAPIServers(c Config, apps []AppEntry, d Deps, closers *lifecycle.Stack,
	shutdown func(force bool)) *apiServers {
	s := &apiServers{
		config: c, apps: apps, deps: d, closers: closers, shutdown: shutdown, start: api.NewStartGate(),
		watches: api.NewWatches(), subscribed: configurations.NewMetrics(),
		memory: newMemory(c.MemoryLimit, c.API.RequestTimeout, d.Registry),
		connections: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_http_connections",
			Help: "Open connections of HTTP listeners."}, []string{"listener"}),
		cut: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_http_connections_cut_total",
			Help: "Connections of HTTP listeners that were closed because there were too many; those without " +
				"a request go first."}, []string{"listener"}),
	}
	d.Registry.MustRegister(append(append(s.watches.Collectors(), s.subscribed.Collectors()...), s.connections,
		s.cut)...)
	s.surface, s.callLog = &api.Surface{}, api.NewCallLog(d.Logger)
	return s
}

// consoleHeader is the smallest header limit of the web console in bytes. The links of the console contain a prefix, a
// key and a page token. Each of these three may have 12 KiB when it is escaped.
const consoleHeader = 48 << 10

// serve starts one HTTP server on l, which runs until the node closes. name is one of the listener constants.
func (s *apiServers) serve(ctx context.Context, name string, l net.Listener, h http.Handler) (*httpserver.Server,
	error) {
	header := int(s.config.API.MaxHeaderSize)
	if name == listenerConsole {
		header = max(header, consoleHeader)
	}
	server := httpserver.New(httpserver.Config{
		Listener: l, Handler: h, Logger: s.deps.Logger, MaxConnections: s.maxConnections(name),
		MaxHeaderBytes: header, DisableH2C: s.config.API.DisableH2C,
		Open: s.connections.WithLabelValues(name), Cut: s.cut.WithLabelValues(name),
	})
	if err := server.Open(ctx); err != nil {
		return nil, err
	}
	return server, s.closers.Push(name, server.Close)
}

// maxConnections returns the connection limit of one listener. The API listeners share half of the file descriptors of
// the process, so that client connections leave enough file descriptors for the store and the cluster. An API listener
// gets at least leastConnections and at most httpserver.DefaultMaxConnections. Any other listener gets fewConnections.
func (s *apiServers) maxConnections(listener string) int {
	if listener != listenerAPI {
		return fewConnections
	}
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return httpserver.DefaultMaxConnections
	}
	share := l.Cur / 2 / uint64(s.countListeners())
	return int(min(max(share, leastConnections), httpserver.DefaultMaxConnections))
}

// countListeners returns how many HTTP and gRPC listeners the APIs of all applications have.
func (s *apiServers) countListeners() int {
	each := 0
	for i, a := range s.apps {
		each++
		if _, _, on := s.config.grpcPort(i == 0, a); on {
			each++
		}
	}
	return each * len(s.config.API.Listen)
}

// closeAPIs returns the close functions of the APIs of all applications.
func (s *apiServers) closeAPIs() []func(context.Context) error {
	var out []func(context.Context) error
	for _, one := range s.apis {
		out = append(out, one.Close)
	}
	return out
}

// appParts are the dependencies of the API of one application.
type appParts struct {
	entry        AppEntry
	calls        *calls.Calls
	components   components.Scoped
	status       *status.Reporter
	catalogue    *catalogue.Catalogue
	actors       *actorhost.Host
	registration status.Actors
}

// actorRuntime describes the actors of the application on this node.
func (p appParts) actorRuntime() api.ActorRuntime {
	out := api.ActorRuntime{Status: "DISABLED"}
	active := p.actors.Active(p.entry.ID)
	for _, kind := range slices.Sorted(maps.Keys(active)) {
		out.Active = append(out.Active, api.ActiveActors{Type: kind, Count: active[kind]})
	}
	_, ok := p.components.ActorStore()
	switch {
	case !ok && !p.status.IsStarted(), ok && p.registration.Registering(p.entry.ID, p.calls.Channel(p.entry.ID)):
		out.Status = "INITIALIZING"
	case ok:
		out.Status, out.HostReady, out.Placement = "RUNNING", true, "placement: connected"
	default:
		out.Placement = "placement: no state store has the actor state"
	}
	return out
}

// services are the services of one application. Its HTTP and gRPC APIs share them, so that state set through one API
// is visible through the other.
type services struct {
	app            api.App
	state          *api.State
	secrets        *api.Secrets
	bindings       *api.Bindings
	locks          *api.Locks
	jobs           *api.Jobs
	configurations *configurations.Service
	topics         *pubsub.Service
	subscriber     *pubsub.Subscriber
	workflows      *apiworkflows.Service
	health         *api.Health
	metadata       *api.Metadata
	actors         *actors.Service
	invoke         *invoke.Service
	tokens         *api.Tokens
	tracer         api.RequestTracer
}

func (s *apiServers) services(p appParts, at *AppAddress) (services, error) {
	app, callee := api.App{ID: p.entry.ID, Namespace: s.config.Namespace}, p.calls.Callee(p.entry.ID)
	parts, seen := p.calls.Parts(), s.dapr.operations(p.entry.ID)
	topics := pubsub.New(pubsub.Options{App: app, Source: p.components, Policy: p.calls.Outbound,
		Tracer: p.calls.BindingTracer(), Observer: s.dapr.messages(p.entry.ID)})
	tokens, err := s.tokensOf(p.entry)
	workers := func() int { return s.workflows.Workers(apiworkflows.Owner(app)) }
	return services{
		app: app,
		state: api.NewState(app, p.components, api.Limits{}).Remember(callee, parts.Sessions).Observe(s.watches).
			Fence(p.components).Publish(topics).Host(s.actors).Report(seen),
		actors:         actors.NewService(callee, s.actors.Runtime),
		secrets:        api.NewSecrets(app, p.components).Report(seen),
		locks:          api.NewLocks(app, p.components),
		jobs:           api.NewJobs(app, &s.jobs),
		configurations: s.configuration(p, app),
		bindings: api.NewBindings(app, p.components, p.calls.Outbound).Trace(p.calls.BindingTracer()).
			Report(seen),
		topics:     topics,
		subscriber: s.subscribers.For(p.entry.ID),
		workflows: apiworkflows.New(apiworkflows.Options{App: app, Logger: s.deps.Logger,
			Engine: workflows.Observed(&s.workflows, s.dapr.workflows(p.entry.ID)),
			Worker: func() workflow.Worker { return workflows.WorkerOf(p.calls.Rules().Conf.Workflow) }}),
		health: api.NewHealth(app, p.status),
		metadata: api.NewMetadata(app, description{p, s.config.Version, workers, at, s.config.API.DeclaredOnly,
			s.subscribers.For(p.entry.ID)},
			api.Limits{}),
		invoke: invoke.New(callee, parts),
		tokens: tokens,
		tracer: p.calls.RequestTracer(),
	}, err
}

// configuration returns the configuration service of an application.
func (s *apiServers) configuration(p appParts, app api.App) *configurations.Service {
	o := configurations.Options{App: app, Callee: p.calls.Callee(p.entry.ID), Stores: p.components,
		Policies: p.calls, Sessions: p.calls.Parts().Sessions, Metrics: s.subscribed, Logger: s.deps.Logger}
	if channel := p.calls.Channel(p.entry.ID); channel != nil {
		o.Receiver = channel
	}
	c := configurations.New(o)
	s.configurations = append(s.configurations, c)
	return c
}

// tokensOf returns the API tokens of an application. An application without a token of its own uses the tokens of the
// node, which may be replaced while the node runs.
func (s *apiServers) tokensOf(a AppEntry) (*api.Tokens, error) {
	if a.Token != "" {
		return api.NewTokens([]string{string(a.Token)})
	}
	if s.tokens == nil {
		t, err := api.NewTokens(reveal(s.config.Security.APITokens))
		if err != nil {
			return nil, err
		}
		s.tokens = t
	}
	return s.tokens, nil
}

// open opens the HTTP API and the gRPC API of one application, and returns their addresses. isFirst is true for the
// application that the command-line flags define. Until all components are open, only requests for health, metadata and
// shutdown are answered. Other requests wait.
func (s *apiServers) open(ctx context.Context, p appParts, isFirst bool) (AppAddress, error) {
	at := &AppAddress{ID: p.entry.ID}
	flag := "--http-port"
	if !isFirst {
		flag = "httpPort of the application " + at.ID + " in apps:"
	}
	shared, err := s.services(p, at)
	if err != nil {
		return *at, err
	}
	if err := s.openHTTP(ctx, p.entry, shared, flag, at); err != nil {
		return *at, err
	}
	return *at, s.openGRPC(ctx, p.entry, shared, isFirst, at)
}

// openHTTP serves the HTTP API of one application.
func (s *apiServers) openHTTP(ctx context.Context, a AppEntry, shared services, flag string, at *AppAddress) error {
	c := s.config.API
	ls, err := s.listen(ctx, a, "http", a.HTTPPort, flag)
	if err != nil {
		return err
	}
	handler, err := apihttp.New(apihttp.Config{
		App: shared.app, State: shared.state, Secrets: shared.secrets, Bindings: shared.bindings, Locks: shared.locks,
		Jobs:           shared.jobs,
		Configurations: shared.configurations,
		Topics:         shared.topics,
		Workflows:      shared.workflows,
		Health:         shared.health, Metadata: shared.metadata, Invoke: shared.invoke, Actors: shared.actors,
		Shutdown: s.shutdown,
		Start:    s.start,
		Pipeline: s.pipeline, Surface: s.surface, Calls: s.callLog, Tracer: shared.tracer,
		Tokens: shared.tokens, AllowedOrigins: c.AllowedOrigins, AnyHost: c.SocketDir != "" || exposed(c.Listen),
		MaxBodySize: c.MaxBodySize, RequestTimeout: c.RequestTimeout, Requests: s.memory.requests,
		Answers: s.memory.answers,
		Logger:  s.deps.Logger, Registerer: s.deps.Registry, Observer: s.dapr.http(a.ID),
	})
	if err != nil {
		closeListeners(ls)
		return err
	}
	for i, l := range ls {
		at.API = append(at.API, addressOf(l))
		server, err := s.serve(ctx, listenerAPI, l, handler)
		if err != nil {
			closeListeners(ls[i+1:])
			return err
		}
		s.apis = append(s.apis, server)
	}
	if a.ID == s.config.App.ID {
		return s.openHealth(ctx, handler)
	}
	return nil
}

// openHealth serves the health probes of the first application on the health port. It does nothing if the settings have
// no health port. During a graceful stop, the health port closes after the APIs, so that probes still get answers.
func (s *apiServers) openHealth(ctx context.Context, face http.Handler) error {
	c := s.config.API
	if !c.Health.Given && c.Health.Number == 0 {
		return nil
	}
	ls, err := listen.TCP(ctx, listen.Request{Hosts: []string{c.HealthListen}, Port: c.Health.Number,
		Flag: "--health-port"})
	if err != nil {
		return err
	}
	_, err = s.serve(ctx, listenerHealth, ls[0], apihttp.HealthOnly(face))
	return err
}

// listen opens the listeners of one API of an application: TCP ports, or one Unix socket.
func (s *apiServers) listen(ctx context.Context, a AppEntry, protocol string, port Port, flag string) ([]net.Listener,
	error) {
	c := s.config.API
	if c.SocketDir == "" {
		return listen.TCP(ctx, listen.Request{Hosts: c.Listen, Port: port.Number, Flag: flag,
			Fallback: s.config.movable(a, port)})
	}
	l, err := listen.Unix(ctx, filepath.Join(c.SocketDir, "dapr-"+a.ID+"-"+protocol+".socket"), "--unix-domain-socket")
	if err != nil {
		return nil, err
	}
	return []net.Listener{l}, nil
}

// addressOf returns the address of a listener: host:port, or unix: and a path.
func addressOf(l net.Listener) string {
	if a, ok := l.Addr().(*net.UnixAddr); ok {
		return "unix:" + a.Name
	}
	return l.Addr().String()
}

func closeListeners(ls []net.Listener) {
	for _, l := range ls {
		_ = l.Close() // no connection was accepted yet
	}
}

// grpcPort returns the port of an application's gRPC API, the name of its setting, and whether the API is enabled.
// The parameter isFirst is true for the application that the command-line flags define.
func (c Config) grpcPort(isFirst bool, a AppEntry) (Port, string, bool) {
	if isFirst {
		return c.API.GRPC, "--grpc-port", !c.API.GRPCOff
	}
	return a.GRPCPort, "grpcPort of the application " + a.ID + " in apps:", !c.API.GRPCOff &&
		(a.GRPCPort.Given || a.GRPCPort.Number != 0)
}

// openGRPC serves the gRPC API of one application. It does nothing if this API is disabled. The parameter isFirst is
// true for the application that the command-line flags define.
func (s *apiServers) openGRPC(ctx context.Context, a AppEntry, shared services, isFirst bool, at *AppAddress) error {
	port, flag, on := s.config.grpcPort(isFirst, a)
	if !on {
		return nil
	}
	c := s.config.API
	ls, err := s.listen(ctx, a, "grpc", port, flag)
	if err != nil {
		return offerOff(err)
	}
	server, err := apigrpc.New(apigrpc.Config{
		App: shared.app, State: shared.state, Secrets: shared.secrets, Bindings: shared.bindings, Locks: shared.locks,
		Jobs:           shared.jobs,
		Configurations: shared.configurations,
		Topics:         shared.topics,
		Workflows:      shared.workflows,
		Subscriber:     shared.subscriber,
		Health:         shared.health, Metadata: shared.metadata, Invoke: shared.invoke, Actors: shared.actors,
		Shutdown: s.shutdown,
		Start:    s.start,
		Surface:  s.surface, Calls: s.callLog, Tracer: shared.tracer,
		Tokens: shared.tokens, MaxBodySize: c.MaxBodySize, RequestTimeout: c.RequestTimeout,
		MaxHeaderSize: c.MaxHeaderSize, MaxConnections: s.maxConnections(listenerAPI),
		Requests: s.memory.requests, Answers: s.memory.answers,
		Logger: s.deps.Logger, Registerer: s.deps.Registry, Stats: s.dapr.grpc(a.ID),
	})
	if err != nil {
		closeListeners(ls)
		return err
	}
	for _, l := range ls {
		at.GRPC = append(at.GRPC, addressOf(l))
		server.Serve(l)
	}
	s.apis = append(s.apis, server)
	return s.closers.Push("grpc api", server.Close)
}

// offerOff adds a hint to err, an error of opening the gRPC port, if the port is in use. The hint shows the flag that
// disables the gRPC API. offerOff returns other errors unchanged.
func offerOff(err error) error {
	f, ok := fault.As(err)
	if !ok || f.Code != fault.Unavailable {
		return err
	}
	more := *f
	more.Hint += "; --enable-grpc=false serves no gRPC"
	return &more
}

// movable reports whether the API of an application may use another port if the default port is in use. It returns true
// if all of these conditions hold:
//
//   - The user has not chosen the port.
//   - The node starts the application as a child process, and therefore can pass the port to it.
//   - The node joins no other nodes.
func (c Config) movable(a AppEntry, port Port) bool {
	return !port.Given && len(c.App.Command) > 0 && a.ID == c.App.ID && !c.Cluster.joining()
}

// apps returns all applications of the settings: first the application from the flags, and then those from the
// settings file.
func (c Config) apps() []AppEntry {
	first := AppEntry{App: c.App, HTTPPort: c.API.HTTP}
	return append([]AppEntry{first}, c.Apps...)
}

func idsOf(apps []AppEntry) []string {
	var out []string
	for _, a := range apps {
		out = append(out, a.ID)
	}
	return out
}

// description collects the metadata that the API of one application returns about the node.
type description struct {
	appParts
	version  string
	workers  func() int  // returns the number of connected workflow workers
	at       *AppAddress // addresses of its APIs; complete once the node has started
	declared bool        // omit built-in components

	subscriber *pubsub.Subscriber
}

// Describe implements api.NodeInfo.
func (d description) Describe() api.Description {
	out := api.Description{RuntimeVersion: d.version, Actors: d.actorRuntime(), Workers: d.workers(),
		Applications: d.catalogue.Applications()}
	if d.status.IsStarted() { // until then the addresses are incomplete
		out.API = api.APIAddresses{HTTP: d.at.API, GRPC: d.at.GRPC}
	}
	out.Channel = d.entry.channel()
	out.HTTPEndpoints = d.calls.Externals().Names(d.entry.ID)
	rules := d.calls.Rules()
	out.Features = rules.Conf.Features
	for _, r := range rules.Resiliency {
		out.Resiliencies = append(out.Resiliencies, r.Name)
	}
	for _, s := range d.components.Statuses() {
		if i, isState := d.components.Components.StateStore(s.Name); s.State != component.Ready || isState &&
			!i.VisibleTo(d.entry.ID) {
			continue
		}
		if d.declared && s.Pos == (component.Pos{}) {
			continue
		}
		out.Components = append(out.Components, api.ComponentInfo{Name: s.Name, Type: s.Type, Version: s.Version,
			Capabilities: capabilities(s)})
	}
	for _, s := range d.subscriber.Subscriptions() {
		info := api.SubscriptionInfo{PubSub: s.PubSub, Topic: s.Topic, Metadata: s.Metadata, DeadLetter: s.DeadLetter,
			Kind: string(s.Kind)}
		for _, r := range s.Paths() {
			info.Rules = append(info.Rules, api.SubscriptionRule{Match: r.Match, Path: r.Path})
		}
		out.Subscriptions = append(out.Subscriptions, info)
	}
	return out
}

// channel describes how the application is reached.
func (a AppEntry) channel() api.AppChannel {
	c := api.AppChannel{Port: a.Port, Protocol: string(a.Protocol), Address: a.Address,
		MaxConcurrency: max(a.MaxConcurrency, 0)}
	if h := a.Health; h.Enabled && a.Port != 0 {
		c.Health = &api.AppHealth{Interval: h.Interval, Timeout: h.Timeout, Threshold: h.Threshold}
		if a.Protocol != ProtocolGRPC && a.Protocol != ProtocolGRPCS {
			c.Health.Path = h.Path
		}
	}
	return c
}

// capabilities returns the capabilities of a component as Dapr reports them. For a state store, they are in Dapr's
// order. A state store that supports ETags and transactions also gets the capability ACTOR, because it can hold actor
// state.
func capabilities(s component.Status) []string {
	if !strings.HasPrefix(s.Type, "state.") {
		return s.Capabilities
	}
	rest := slices.Clone(s.Capabilities)
	var out []string
	for _, f := range []state.Feature{state.FeatureETag, state.FeatureTransactional, state.FeatureTTL,
		state.FeatureDeleteWithPrefix, state.FeatureKeysLike} {
		if i := slices.Index(rest, string(f)); i >= 0 {
			out, rest = append(out, string(f)), slices.Delete(rest, i, i+1)
		}
	}
	out = append(out, rest...)
	if slices.Contains(out, string(state.FeatureETag)) && slices.Contains(out, string(state.FeatureTransactional)) {
		out = append(out, "ACTOR")
	}
	return out
}

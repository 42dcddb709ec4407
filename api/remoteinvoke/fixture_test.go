package remoteinvoke_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/remoteinvoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/internal/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world has several nodes that reach each other over real peer ports.
type world struct {
	t     testing.TB
	mu    sync.Mutex
	nodes map[string]*node
	hooks func(*remoteinvoke.ServerConfig)
	self  netip.Addr // address of every node in forwarding headers

	access map[api.App]*invoke.Access
}

// node has the parts of a node that make and receive calls.
type node struct {
	world   *world
	name    string
	port    *peer.Port
	server  *remoteinvoke.Server
	addr    string
	callee  *invoke.Callee
	invoke  *invoke.Service
	policy  *resiliency.Policies
	api     *httptest.Server
	channel *appchannel.Channel
	app     api.App
	gone    atomic.Bool
	metrics *prometheus.Registry
}

func newWorld(t testing.TB) *world {
	return &world{t: t, nodes: map[string]*node{}, self: netip.MustParseAddr("127.0.0.1")}
}

func (w *world) resolve(_ context.Context, server string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.nodes[server]; n != nil {
		return n.addr, nil
	}
	return "", fault.New(fault.Unavailable, "test", "no address of "+server)
}

func (n *node) Settling(api.App) bool { return false }

// Pick implements invoke.Places. It picks any node that serves the application, and prefers nodes that the last call
// has reached.
func (n *node) Pick(app api.App, tried []discovery.Instance) (*discovery.Lease, error) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	known := false
	var last *discovery.Lease
	for name, other := range n.world.nodes {
		if other.app != app || other.channel == nil {
			continue
		}
		known = true
		skip := false
		for _, t := range tried {
			skip = skip || t.Node == name
		}
		if skip {
			continue
		}
		p := discovery.NewLease(discovery.Instance{App: app, Node: name, Server: name, Local: other == n},
			func(o discovery.Outcome) {
				other.gone.Store(o == discovery.Unreachable)
			})
		if !other.gone.Load() {
			return p, nil
		}
		last = p
	}
	if last != nil {
		return last, nil
	}
	if known {
		return nil, fault.New(fault.Unavailable, "test", "no further instance of "+app.String())
	}
	return nil, fault.New(fault.NotFound, "test", "couldn't find service: "+app.String())
}

// start runs a node. It serves the application with the id app at the address addr, or no application if addr is
// empty.
func (w *world) start(name, app, addr string, change func(*appchannel.Options)) *node {
	w.t.Helper()
	n := &node{world: w, name: name, app: api.App{ID: app}, policy: resiliency.NewPolicies(),
		metrics: prometheus.NewRegistry()}
	log := slog.New(slog.DiscardHandler)
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	var err error
	n.port, err = peer.New(peer.Options{Self: func() peer.Identity {
		return peer.Identity{Server: name, Cluster: "c"}
	}, Resolve: w.resolve, Logger: log, Registerer: prometheus.NewRegistry()})
	must(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	n.addr = l.Addr().String()
	must(n.port.Open(l))
	metrics, err := invoke.NewMetrics(n.metrics, nil)
	must(err)
	tr, err := tracing.Open(context.Background(), tracing.Options{Env: func(string) (string, bool) {
		return "", false
	}})
	must(err)
	sessions := api.NewSessions(nil)
	n.callee = invoke.NewCallee(sessions, metrics, tracer{tr})
	client := remoteinvoke.NewClient(remoteinvoke.ClientConfig{Dial: n.port.Tunnel,
		Self: func() netip.Addr { return w.self }})
	conf := remoteinvoke.ServerConfig{Listener: n.port.Tunnels(), Callee: n.callee, Logger: log,
		Prove: func(peer.Caller, api.App) (string, bool) {
			return "", false
		}}
	if w.hooks != nil {
		w.hooks(&conf)
	}
	server := remoteinvoke.NewServer(conf)
	server.Open()
	n.server = server
	routes := &invoke.Routes{}
	routes.Open(n, client)
	n.invoke = invoke.New(n.app, invoke.Parts{Routes: routes, Here: n.callee, Sessions: sessions,
		Policies: n.policy, Tracer: tracer{tr}, Metrics: metrics, Logger: log})
	n.serveApp(addr, change, log)
	face, err := apihttp.New(apihttp.Config{App: n.app, Invoke: n.invoke, Logger: log,
		Registerer: prometheus.NewRegistry()})
	must(err)
	n.api = httptest.NewUnstartedServer(face)
	n.api.Config.Protocols = new(http.Protocols)
	n.api.Config.Protocols.SetHTTP1(true)
	n.api.Config.Protocols.SetUnencryptedHTTP2(true)
	n.api.Start()
	w.mu.Lock()
	w.nodes[name] = n
	w.mu.Unlock()
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		n.api.CloseClientConnections()
		n.api.Close()
		client.Close()
		if err := server.Close(ctx); err != nil {
			w.t.Error(err)
		}
		if n.channel != nil {
			_ = n.channel.Close()
		}
		_ = n.port.Close()
	})
	return n
}

func (n *node) serveApp(addr string, change func(*appchannel.Options), log *slog.Logger) {
	if addr == "" {
		return
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		n.world.t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		n.world.t.Fatal(err)
	}
	o := appchannel.Options{Address: host, Port: number, Logger: log}
	if change != nil {
		change(&o)
	}
	c, err := appchannel.New(o)
	if err != nil {
		n.world.t.Fatal(err)
	}
	c.Open()
	n.channel = c
	n.callee.Serve(map[api.App]invoke.Channel{n.app: c}, n.world.access)
}

type tracer struct{ *tracing.Tracer }

func (t tracer) Start(ctx context.Context, h http.Header, _ invoke.SpanSide, name string) invoke.Span {
	return span{t.Tracer.Start(ctx, h, tracing.Client, name)}
}

type span struct{ *tracing.Span }

func (s span) End(r *http.Response, err error) {
	status := 0
	if r != nil {
		status = r.StatusCode
	}
	s.Span.End(status, err)
}

// app starts an application with the handler h, and returns its address.
func app(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// pair returns the nodes a and b. Node b serves the application "web", which tests call at node a.
func pair(t testing.TB, h http.HandlerFunc) (a, b *node) {
	t.Helper()
	w := newWorld(t)
	b = w.start("b", "web", app(t, h), nil)
	a = w.start("a", "shop", "", nil)
	return a, b
}

func (n *node) url(path string) string { return n.api.URL + path }

// client returns an HTTP client whose idle connections are closed when the test ends.
func client(t testing.TB) *http.Client {
	c := &http.Client{Transport: &http.Transport{DisableCompression: true}, Timeout: 5 * time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func body(t testing.TB, r *http.Response) string {
	t.Helper()
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatal(what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

package peer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// network connects the nodes of a test: with loopback TCP, or with pipes in memory, which also work with the virtual
// time of synctest.
type network struct {
	memory bool

	mu        sync.Mutex
	places    map[string]string
	listeners map[string]*pipeListener
	wrap      func(net.Conn) net.Conn // around dialled connections in memory
}

func newNetwork(memory bool) *network {
	return &network{memory: memory, places: map[string]string{}, listeners: map[string]*pipeListener{}}
}

func (n *network) listen(t testing.TB, addr string) net.Listener {
	t.Helper()
	if !n.memory {
		if addr == "" {
			addr = fmt.Sprintf("127.0.0.1:%d", testutil.SparePort(t)) // a test may listen there again
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr == "" {
		addr = fmt.Sprintf("mem-%d", len(n.listeners))
	}
	l := &pipeListener{addr: addr, conns: make(chan net.Conn), done: make(chan struct{})}
	n.listeners[addr] = l
	return l
}

func (n *network) place(server, addr string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.places[server] = addr
}

func (n *network) resolve(_ context.Context, server string) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if addr := n.places[server]; addr != "" {
		return addr, nil
	}
	return "", fault.New(fault.NotFound, "test.resolve", "no address of server "+server)
}

func (n *network) dial(ctx context.Context, addr string) (net.Conn, error) {
	n.mu.Lock()
	l, wrap := n.listeners[addr], n.wrap
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	select {
	case l.conns <- there:
	case <-l.done:
		return nil, errors.New("connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if wrap != nil {
		return wrap(here), nil
	}
	return here, nil
}

type pipeListener struct {
	addr  string
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return pipeAddr(l.addr) }

type pipeAddr string

func (pipeAddr) Network() string  { return "mem" }
func (a pipeAddr) String() string { return string(a) }

// node is a port with its log and metrics.
type node struct {
	*peer.Port
	id   string
	addr string
	reg  *prometheus.Registry

	mu   sync.Mutex
	self peer.Identity
}

func (n *node) identity() peer.Identity {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.self
}

func (n *node) become(self peer.Identity) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.self = self
}

// setup changes a node before it is opened.
type setup func(*peer.Options, *node)

func identity(cluster string, epoch uint64) setup {
	return func(_ *peer.Options, n *node) { n.self.Cluster, n.self.Epoch = cluster, epoch }
}

func at(addr string) setup { return func(_ *peer.Options, n *node) { n.addr = addr } }

func options(change func(*peer.Options)) setup {
	return func(o *peer.Options, _ *node) { change(o) }
}

func make1(t testing.TB, net *network, id string, setups ...setup) (*node, peer.Options) {
	t.Helper()
	n := &node{id: id, reg: prometheus.NewRegistry(), self: peer.Identity{Server: id, Cluster: "c", Epoch: 1}}
	o := peer.Options{
		Self: n.identity, Resolve: net.resolve, Registerer: n.reg,
		Logger: slog.New(slog.DiscardHandler),
	}
	if net.memory {
		o.Dial = net.dial
	} else { // on a busy machine, real connections may take long
		o.Timing.Dial, o.Timing.Handshake, o.Timing.Raft, o.Timing.Dead = time.Minute, time.Minute, time.Minute,
			time.Minute
	}
	for _, s := range setups {
		s(&o, n)
	}
	return n, o
}

// prepare makes a node that is not open yet.
func prepare(t testing.TB, net *network, id string, methods []peer.Method, setups ...setup) *node {
	t.Helper()
	n, o := make1(t, net, id, setups...)
	var err error
	if n.Port, err = peer.New(o); err != nil {
		t.Fatal(err)
	}
	for _, m := range methods {
		if err := n.Handle(m); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// start opens a node; it is closed with the test.
func start(t testing.TB, net *network, id string, methods []peer.Method, setups ...setup) *node {
	t.Helper()
	n := prepare(t, net, id, methods, setups...)
	n.open(t, net)
	return n
}

func (n *node) open(t testing.TB, net *network) {
	t.Helper()
	l := net.listen(t, n.addr)
	n.addr = l.Addr().String()
	net.place(n.id, n.addr)
	if err := n.Open(l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("closing %s: %v", n.id, err)
		}
	})
}

// metric sums the samples of a metric whose labels include the given ones.
func (n *node) metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	families, err := n.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != "quorate_peer_"+name {
			continue
		}
	samples:
		for _, m := range f.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			for i := 0; i < len(labels); i += 2 {
				if have[labels[i]] != labels[i+1] {
					continue samples
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for limit := time.After(2 * time.Minute); ; { // ends a test that hangs
		if ok() {
			return
		}
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// within returns a context that ends after d, so that no test hangs.
func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func echo(name string) peer.Method {
	return peer.Method{Name: name, Handle: func(_ context.Context, r peer.Request) ([]byte, error) {
		return r.Payload, nil
	}}
}

func wantCode(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Errorf("error has code %q, want %q: %v", fault.CodeOf(err), code, err)
	}
}

func wantReason(t testing.TB, err error, want peer.Reason) {
	t.Helper()
	if got, ok := peer.RefusedBecause(err); !ok || got != want {
		t.Errorf("refused because of %v (%t), want %v: %v", got, ok, want, err)
	}
}

// tcp dials without the client of the port.
func (n *network) tcp(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }

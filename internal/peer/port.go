// Package peer implements the TCP port through which nodes communicate. Raft groups, calls and tunnels share this port.
// A call is a request with an answer. A tunnel is a connection for the protocol of another package.
//
// Each connection begins with a preamble that names caller, callee, cluster, epoch and purpose. The package owns this
// preamble, dialing and accepting, mutual TLS, the Raft transport of each group, calls, and tunnels. All calls to one
// server share two connections.
//
// The package does not interpret the data of groups, calls and tunnels. Servers are addressed by id, and
// Options.Resolve returns the network address before each dial. The caller provides certificates.
//
// An open Port has one goroutine for each listener, for each connection in its preamble, and for each running handler.
// Each connection for calls has a reader, a writer and a watcher. Each group has the goroutines of
// raft.NetworkTransport. Close ends all goroutines.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/pending"
)

// Port is the peer port of a node. All methods are safe for concurrent use.
type Port struct {
	opts    Options
	metrics *metrics
	conns   *registry
	health  *health
	pending *pending.Set
	dials   dialSlots
	quiet   *quiet
	calls   *Client
	joins   *Client
	tunnels *tunnels

	ctx    context.Context // ends when Close begins
	cancel context.CancelFunc
	wg     sync.WaitGroup
	closed sync.Once
	err    error

	mu        sync.Mutex // guards what follows
	state     portState
	listeners []net.Listener
	methods   map[string]*method
	groups    map[uint32]*Transport
	servers   map[*callee]struct{}
}

type portState uint8

const (
	portNew portState = iota
	portOpen
	portClosed
)

// New checks o and registers the metrics. It does no I/O. It returns fault.Invalid if o is invalid, and
// fault.Internal if the metrics are already registered.
func New(o Options) (*Port, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	p := &Port{
		opts: o, metrics: m, conns: newRegistry(o.Limits.Connections, m), health: newHealth(o.Timing.Backoff),
		dials: dialSlots{servers: map[string]*slots{}},
		pending: pending.New(pending.Limits{Total: o.Limits.Pending, PerSource: o.Limits.PendingPerSource,
			FirstByte: o.Timing.FirstByte}), quiet: newQuiet(),
		tunnels: newTunnels(), methods: map[string]*method{}, groups: map[uint32]*Transport{},
		servers: map[*callee]struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.calls, p.joins = newClient(p, kindCall), newClient(p, kindJoin)
	return p, nil
}

// Handle adds a method that other nodes may call. It returns fault.Invalid if the method is invalid or was already
// added, or if the port is open.
func (p *Port) Handle(m Method) error {
	checked, err := newMethod(m, p.opts.Limits.Message, p.metrics)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.state != portNew:
		return fault.New(fault.Invalid, "peer.Handle", "method "+m.Name+" cannot be added: the port is open")
	case p.methods[m.Name] != nil:
		return fault.New(fault.Invalid, "peer.Handle", "method "+m.Name+" was already added")
	}
	p.methods[m.Name] = checked
	return nil
}

// Open starts to accept connections on listeners, and permits dialing. Without listeners, the port only dials. Close
// closes the listeners. Open returns fault.Invalid if the port is already open, and fault.Unavailable if it has been
// closed.
func (p *Port) Open(listeners ...net.Listener) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case portOpen:
		return fault.New(fault.Invalid, "peer.Open", "the peer port is open already")
	case portClosed:
		return errPortClosed("peer.Open")
	}
	p.state, p.listeners = portOpen, listeners
	for _, l := range listeners {
		p.wg.Go(func() { p.accept(l) })
	}
	p.wg.Go(p.cutSilent)
	return nil
}

// Client returns the client for methods of other servers of the cluster.
func (p *Port) Client() *Client { return p.calls }

// Join returns the client for joining a cluster. The client can call only methods with Method.Join set. It also works
// while this node or the called server does not belong to a cluster yet.
func (p *Port) Join() *Client { return p.joins }

// Alive reports to the port that a server is running again, for example according to gossip. The port then dials the
// server without further backoff, and sends the requests that wait for it.
func (p *Port) Alive(server string) { p.health.reported(server) }

// LostSince returns the time at which dials for Raft to a server began to fail. It returns true only if these dials
// have failed for at least 2 seconds without a connection in between, and if the last one failed at most 10 seconds
// ago.
func (p *Port) LostSince(server string) (time.Time, bool) { return p.health.lostSince(server) }

// Refresh closes the connections that were opened while this node had another cluster or epoch, except connections for
// joining. Call it after every change of the epoch, so that servers with the previous epoch are disconnected.
func (p *Port) Refresh() { p.conns.refresh(p.opts.Self()) }

// Direction is the side that dialled a connection, as seen from this node.
type Direction uint8

// The directions.
const (
	Outbound Direction = 1 << iota // dialled by this node
	Inbound                        // dialled by the other node
)

// Cut simulates a network failure for tests. It closes the connections with server in the given directions, and
// refuses new ones until Heal. Without directions, it cuts both.
func (p *Port) Cut(server string, directions ...Direction) {
	p.conns.cut(server, both(directions))
}

// Heal undoes Cut.
func (p *Port) Heal(server string, directions ...Direction) {
	p.conns.heal(server, both(directions))
	p.health.contact(server)
}

func both(directions []Direction) (all Direction) {
	for _, d := range directions {
		all |= d
	}
	if all == 0 {
		return Outbound | Inbound
	}
	return all
}

// Close stops listening, closes all Raft transports and connections, cancels running handlers and waits for all
// goroutines. The caller must close the Raft groups before it calls Close. Close is idempotent.
func (p *Port) Close() error {
	p.closed.Do(func() {
		transports, servers := p.shut()
		var errs []error
		for _, t := range transports {
			errs = append(errs, t.Close())
		}
		drain(servers, p.opts.Timing.Drain)
		p.calls.close()
		p.joins.close()
		_ = p.tunnels.Close() // always nil
		p.conns.close()
		p.wg.Wait()
		p.err = errors.Join(errs...)
	})
	return p.err
}

// shut stops accepting and dialing. It returns the transports and the connections for calls that Close must still
// close.
func (p *Port) shut() (transports []*Transport, servers []*callee) {
	p.mu.Lock()
	p.state = portClosed
	listeners := p.listeners
	for _, t := range p.groups {
		transports = append(transports, t)
	}
	for s := range p.servers {
		servers = append(servers, s)
	}
	p.mu.Unlock()
	p.cancel()
	p.pending.Close()
	for _, l := range listeners {
		_ = l.Close() // an error has no consequence, because the port is closing
	}
	return transports, servers
}

// spawn runs f in a new goroutine, and Close waits for this goroutine. If the port is closed, spawn does not run f and
// returns false.
func (p *Port) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == portClosed {
		return false
	}
	p.wg.Go(f)
	return true
}

// ready returns an error if the port cannot dial.
func (p *Port) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case portNew:
		return fault.New(fault.Unavailable, "peer.dial", "the peer port is not open yet")
	case portClosed:
		return errPortClosed("peer.dial")
	}
	return nil
}

func errPortClosed(op string) *fault.Error {
	return fault.New(fault.Unavailable, op, "the peer port of this node is closed")
}

func (p *Port) transport(group uint32) *Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.groups[group]
}

// Raft returns a new transport for a Raft group. In this transport, the address of a server is its id. Raft may be
// called before Open, but the transport reaches no server until the port is open. Raft returns fault.Invalid if the
// group already has an open transport, and fault.Unavailable if the port is closed.
func (p *Port) Raft(group uint32) (*Transport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == portClosed {
		return nil, errPortClosed("peer.Raft")
	}
	if p.groups[group] != nil {
		return nil, fault.New(fault.Invalid, "peer.Raft", fmt.Sprintf("group %d has a transport already", group))
	}
	t := newTransport(p, group)
	p.groups[group] = t
	return t, nil
}

func (p *Port) forget(t *Transport) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.groups[t.group] == t {
		delete(p.groups, t.group)
	}
}

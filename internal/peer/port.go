// Package peer is the one TCP port of a node: Raft groups and node-to-node calls share it.
//
// It owns the preamble that opens every connection (who calls, of which cluster and epoch,
// whom, and what for), the dialling and accepting of connections, mutual TLS, one Raft
// transport for each group, a request/answer and streaming layer that carries many calls
// over two connections for each peer, and tunnels: plain connections for whoever brings a
// protocol of its own. A server id becomes a network address only
// when it is dialled, by a resolver that is handed in. It must never know what a group
// replicates, what a call means, gossip, or where certificates come from.
//
// Goroutines of an open Port, all ended by Close: one for each listener; one for each
// connection in its preamble; for each connection of calls a reader, a writer and a
// watcher; one for each handler that runs; those of raft.NetworkTransport for each group.
package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/quorate/quorate/internal/fault"
)

// Port is the peer port of a node. All methods are safe for concurrent use.
type Port struct {
	opts    Options
	metrics *metrics
	conns   *registry
	health  *health
	pending *pending
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

// New checks o and registers the metrics. It does no I/O. Errors: invalid; internal if the
// metrics are registered already.
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
		pending: newPending(o.Limits.Pending), quiet: newQuiet(),
		tunnels: newTunnels(), methods: map[string]*method{}, groups: map[uint32]*Transport{}, servers: map[*callee]struct{}{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.calls, p.joins = newClient(p, kindCall), newClient(p, kindJoin)
	return p, nil
}

// Handle adds a method that other nodes may call. It must come before Open. Errors: invalid.
func (p *Port) Handle(m Method) error {
	checked, err := newMethod(m, p.opts.Limits.Message, p.metrics)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.state != portNew:
		return fault.New(fault.Invalid, "peer.Handle", "method "+m.Name+" comes too late: the port is open")
	case p.methods[m.Name] != nil:
		return fault.New(fault.Invalid, "peer.Handle", "method "+m.Name+" is there already")
	}
	p.methods[m.Name] = checked
	return nil
}

// Open starts to accept on listeners, which belong to the port from now on, and allows
// dialling. With no listener the port only dials. Errors: invalid if it was opened before;
// unavailable if it was closed.
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

// Client calls methods of other servers of the cluster.
func (p *Port) Client() *Client { return p.calls }

// Join calls methods that are open to and on servers without a cluster (Method.Join). A
// server that has no cluster yet can make no other calls.
func (p *Port) Join() *Client { return p.joins }

// Alive says that server is known to be up again, for example by gossip: whoever waits for
// it tries at once instead of after its back-off.
func (p *Port) Alive(server string) { p.health.contact(server) }

// Refresh cuts the connections that were made under an identity this node no longer has.
// It must be called after the cluster epoch was raised, for that is what fences the members
// of before.
func (p *Port) Refresh() { p.conns.refresh(p.opts.Self()) }

// Direction tells who dialled, seen from this node.
type Direction uint8

// The directions.
const (
	Outbound Direction = 1 << iota // dialled by this node
	Inbound                        // dialled by the other
)

// Cut ends the connections with server in the given directions (none = both) and allows no
// new ones until Heal. It is the fault injection of tests: a network that fails.
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

// Close stops listening, ends every Raft transport, tells callers that nothing new is
// taken, ends the context of running handlers and waits for them, cuts every connection,
// and waits for every goroutine. A Raft group should be closed before. Idempotent.
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

// shut turns the port away from the world and returns what is to be closed.
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
	p.pending.close()
	for _, l := range listeners {
		_ = l.Close() // it is going away: nothing can be done about a failure
	}
	return transports, servers
}

// spawn runs f in a goroutine that Close waits for, unless the port is closed.
func (p *Port) spawn(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == portClosed {
		return false
	}
	p.wg.Go(f)
	return true
}

// ready reports why the port cannot dial.
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

// Raft makes the transport of a Raft group. Raft addresses are server ids. It may come
// before Open; until then nobody is reached. Errors: invalid if the group has one that is
// not closed; unavailable if the port is closed.
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

package peer

import (
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"github.com/quorate/quorate/internal/fault"
)

// conn is a connection whose preamble is finished.
type conn struct {
	net.Conn
	kind      kind
	direction Direction
	server    string   // id of the server at the other end
	caller    Caller   // the verified identity of the other end
	self      Identity // identity of this node when the connection was made
	number    uint64   // increases with each connection
	registry  *registry
	once      sync.Once
}

// NetConn returns the underlying connection, as tls.Conn.NetConn does.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection at once and removes it from the registry. It sends no TLS close-notify, because sending
// could block if the peer does not read. The protocols on the connection do not need a close-notify.
func (c *conn) Close() error {
	c.forget()
	if t, ok := c.Conn.(*tls.Conn); ok {
		return t.NetConn().Close()
	}
	return c.Conn.Close()
}

func (c *conn) forget() { c.once.Do(func() { c.registry.remove(c) }) }

// registry holds all connections, so that they can be closed.
type registry struct {
	max     int
	metrics *metrics

	mu     sync.Mutex // guards what follows
	open   map[*conn]struct{}
	tunnel int                  // number of tunnels
	severe map[string]Direction // servers cut by a test
	last   uint64
	closed bool
}

func newRegistry(limit int, m *metrics) *registry {
	return &registry{max: limit, metrics: m, open: map[*conn]struct{}{}, severe: map[string]Direction{}}
}

// add adds a connection, or returns why it is refused.
func (r *registry) add(c *conn) *Refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return refuse(ReasonClosing, fault.Unavailable, "the node is stopping", "")
	case r.severe[c.server]&c.direction != 0:
		return errCut(c.server)
	case c.kind == kindTunnel && r.tunnel >= r.max*3/4: // leaves connections for groups and calls
		return refuse(ReasonBusy, fault.Unavailable,
			fmt.Sprintf("%d connections for calls of applications are open already", r.tunnel),
			"see quorate_peer_connections")
	case len(r.open) >= r.max:
		return refuse(ReasonBusy, fault.Unavailable, fmt.Sprintf("%d peer connections are open already", r.max),
			"see quorate_peer_connections for whose they are")
	}
	r.last++
	c.registry, c.number = r, r.last
	r.open[c] = struct{}{}
	if c.kind == kindTunnel {
		r.tunnel++
	}
	r.metrics.connections(c.kind, c.direction).Inc()
	return nil
}

func errCut(server string) *Refusal {
	return refuse(ReasonCut, fault.Unavailable, fmt.Sprintf("the network to server %q is cut by a test", server), "")
}

func (r *registry) remove(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
	if c.kind == kindTunnel {
		r.tunnel--
	}
	r.metrics.connections(c.kind, c.direction).Dec()
}

// isCut reports whether a test has cut the connections with server in direction d.
func (r *registry) isCut(server string, d Direction) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.severe[server]&d != 0
}

func (r *registry) cut(server string, d Direction) {
	r.mu.Lock()
	r.severe[server] |= d
	r.mu.Unlock()
	r.end(func(c *conn) bool { return c.server == server && c.direction&d != 0 })
}

func (r *registry) heal(server string, d Direction) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.severe[server] &^= d; r.severe[server] == 0 {
		delete(r.severe, server)
	}
}

// refresh closes the connections that were opened when the identity of this node differed from self. It does not close
// connections for joining.
func (r *registry) refresh(self Identity) {
	r.end(func(c *conn) bool { return c.kind != kindJoin && c.self != self })
}

// thin closes the oldest inbound connections of a kind from one server, until at most keep are left. Too many may be
// open because old connections remain after a network failure.
func (r *registry) thin(server string, k kind, keep int) {
	for {
		var oldest *conn
		count := 0
		r.mu.Lock()
		for c := range r.open {
			if c.server != server || c.kind != k || c.direction != Inbound {
				continue
			}
			if count++; oldest == nil || c.number < oldest.number {
				oldest = c
			}
		}
		r.mu.Unlock()
		if count <= keep {
			return
		}
		_ = oldest.Close() // the owner of the connection reports the error
	}
}

// all returns the open connections.
func (r *registry) all() []*conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.open))
}

// lost closes the tunnels with server.
func (r *registry) lost(server string) {
	r.end(func(c *conn) bool { return c.server == server && c.kind == kindTunnel })
}

// end closes the connections for which match returns true.
func (r *registry) end(match func(*conn) bool) {
	var chosen []*conn
	r.mu.Lock()
	for c := range r.open {
		if match(c) {
			chosen = append(chosen, c)
		}
	}
	r.mu.Unlock()
	for _, c := range chosen {
		_ = c.Close() // the owner of the connection reports the error
	}
}

func (r *registry) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.end(func(*conn) bool { return true })
}

package grpc

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/peer"

	"github.com/quorate/quorate/internal/connlimit"
)

// bounded is a listener with a connection limit. If there are too many connections, the listener closes the connection
// that has been idle longest. A connection is idle if it has no open calls. Calls of the health service do not count,
// because clients can make them without a token.
type bounded struct {
	net.Listener
	crowd *connlimit.Limiter
	open  *openConns
}

// openConns is the set of open connections of all listeners of a Server. The zero value is empty and ready to use. It
// is safe for concurrent use.
type openConns struct {
	mu    sync.Mutex // guards what follows
	conns map[*conn]struct{}
}

func (o *openConns) add(c *conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conns == nil {
		o.conns = map[*conn]struct{}{}
	}
	o.conns[c] = struct{}{}
}

func (o *openConns) remove(c *conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.conns, c)
}

// closeIf closes the connections for which condition returns true.
func (o *openConns) closeIf(condition func(*conn) bool) {
	for _, c := range o.list() {
		if condition(c) {
			_ = c.Close() // grpc-go gets an error from Read
		}
	}
}

func (o *openConns) list() []*conn {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.conns))
}

// helloSize is the minimum number of bytes that a client sends when it opens a connection. They are the HTTP/2 preface
// and an empty settings frame.
const helloSize = len(http2.ClientPreface) + 9

// opened reports whether the client has sent at least helloSize bytes, and thus has opened the connection.
func (c *conn) opened() bool { return c.received.Load() >= int64(helloSize) }

// idle reports whether the connection carries no call.
func (c *conn) idle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls == 0
}

// Accept returns the next connection. If the connection limit is exceeded and no other connection is idle, the
// returned connection is already closed, and its first Read fails.
func (l *bounded) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	out := &conn{Conn: c, crowd: l.crowd, open: l.open}
	out.answered.L = &out.gate
	l.open.add(out)
	l.crowd.Join(out)
	return out, nil
}

// conn is a connection that counts its open calls. connOf finds the conn of a call by the peer address of the call. A
// conn is safe for concurrent use.
type conn struct {
	net.Conn
	crowd    *connlimit.Limiter
	open     *openConns
	received atomic.Int64 // bytes read, counted until opened returns true

	mu     sync.Mutex // guards what follows; locked before the mutex of the connection limit
	calls  int
	closed bool

	paused   atomic.Bool // lets Read skip the lock gate
	gate     sync.Mutex  // guards what follows
	answered sync.Cond
	refused  int  // calls that were refused and have not ended
	unsent   bool // an answer to a refused call may not be sent yet
	writing  bool
	gone     bool
	answers  map[*answer]struct{} // answers that are not sent completely
}

// address is the address of the peer. It also holds the connection, for connOf.
type address struct {
	net.Addr
	conn *conn
}

func (c *conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

// Close closes the connection, and releases its slot in the connection limit once.
func (c *conn) Close() error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.crowd.Leave(c)
	}
	c.mu.Unlock()
	c.open.remove(c)
	c.gate.Lock()
	c.gone = true
	c.answered.Broadcast()
	left := c.answers
	c.answers = nil
	c.gate.Unlock()
	err := c.Conn.Close()
	for a := range left { // grpc-go does not free queued messages of a closed connection
		a.end()
	}
	return err
}

// begin records that an answer is being sent over the connection. finish removes the record. If the connection is
// closed, begin records nothing and returns false.
func (c *conn) begin(a *answer) bool {
	c.gate.Lock()
	defer c.gate.Unlock()
	if c.gone {
		return false
	}
	if c.answers == nil {
		c.answers = map[*answer]struct{}{}
	}
	c.answers[a] = struct{}{}
	return true
}

func (c *conn) finish(a *answer) {
	c.gate.Lock()
	defer c.gate.Unlock()
	delete(c.answers, a)
}

// pause stops reading from the connection because a call was refused. Without the pause, grpc-go could buffer one
// flow-control window of data for each refused call. The caller must call resume when the call ends. Reading continues
// after the answers to all refused calls are written.
func (c *conn) pause() {
	c.gate.Lock()
	defer c.gate.Unlock()
	c.refused++
	c.unsent = true
	c.paused.Store(true)
}

func (c *conn) resume() {
	c.gate.Lock()
	defer c.gate.Unlock()
	c.refused--
	c.answered.Broadcast()
}

// Read reads from the connection. While the connection is paused, it blocks until the answers to all refused calls
// are sent.
func (c *conn) Read(b []byte) (int, error) {
	if c.paused.Load() {
		c.gate.Lock()
		for !c.gone && (c.refused > 0 || c.unsent && c.writing) {
			c.answered.Wait()
		}
		c.gate.Unlock()
	}
	n, err := c.Conn.Read(b)
	if !c.opened() {
		c.received.Add(int64(n))
	}
	return n, err
}

// Write writes to the connection, and wakes Read when the answers to refused calls are sent.
func (c *conn) Write(b []byte) (int, error) {
	c.gate.Lock()
	c.writing = true
	c.gate.Unlock()
	n, err := c.Conn.Write(b)
	c.gate.Lock()
	defer c.gate.Unlock()
	c.writing = false
	if c.refused == 0 {
		c.unsent = false
		c.paused.Store(false)
	}
	c.answered.Broadcast()
	return n, err
}

// enter counts the start of a call on the connection.
func (c *conn) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls++; c.calls == 1 && !c.closed {
		c.crowd.Busy(c)
	}
}

// leave counts the end of a call.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls--; c.calls == 0 && !c.closed {
		c.crowd.Idle(c)
	}
}

// hold counts a call on its connection, so that the connection limit does not close the connection. The caller must
// call release when the call ends.
func hold(ctx context.Context) (release func()) {
	c := connOf(ctx)
	if c == nil {
		return func() {}
	}
	c.enter()
	return c.leave
}

// connOf returns the connection of a call, or nil if the call did not come through a bounded listener.
func connOf(ctx context.Context) *conn {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(address); ok {
			return a.conn
		}
	}
	return nil
}

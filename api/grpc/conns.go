package grpc

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/peer"

	"github.com/quorate/quorate/internal/crowd"
)

// bounded is a listener whose connections are bounded in number. Those that carry no call
// go first; what needs no token and lasts, a watch of health, is no call in this sense.
type bounded struct {
	net.Listener
	crowd *crowd.Crowd
}

// Accept takes the next connection. One that was one too many is closed already: whoever
// serves it finds out at once.
func (l *bounded) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	out := &conn{Conn: c, crowd: l.crowd}
	l.crowd.Join(out)
	return out, nil
}

// conn is a connection that knows how many calls it carries. Calls find it as the address
// of their peer. Safe for concurrent use.
type conn struct {
	net.Conn
	crowd *crowd.Crowd

	mu     sync.Mutex // guards what follows; stands above the crowd's
	calls  int
	closed bool
}

// address is that of the other side, and a way to the connection.
type address struct {
	net.Addr
	conn *conn
}

func (c *conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

// Close closes the connection; the crowd hears of it once.
func (c *conn) Close() error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.crowd.Leave(c)
	}
	c.mu.Unlock()
	return c.Conn.Close()
}

// enter says that the connection carries one more call.
func (c *conn) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls++; c.calls == 1 && !c.closed {
		c.crowd.Busy(c)
	}
}

// leave says that a call has ended.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls--; c.calls == 0 && !c.closed {
		c.crowd.Idle(c)
	}
}

// hold keeps the connection of a call from being closed for others; the call ends with
// what it returns.
func hold(ctx context.Context) (release func()) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return func() {}
	}
	a, ok := p.Addr.(address)
	if !ok {
		return func() {}
	}
	a.conn.enter()
	return a.conn.leave
}

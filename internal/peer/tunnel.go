package peer

import (
	"context"
	"net"
	"sync"
)

// tunnels is the listener for connections that carry the protocol of another package.
type tunnels struct {
	incoming chan net.Conn
	done     chan struct{}
	once     sync.Once
}

func newTunnels() *tunnels {
	return &tunnels{incoming: make(chan net.Conn), done: make(chan struct{})}
}

// offer passes a connection to Accept.
func (t *tunnels) offer(c *conn) {
	select {
	case t.incoming <- c:
	case <-t.done:
		_ = c.Close() // the connection is not used
	}
}

func (t *tunnels) Accept() (net.Conn, error) {
	select {
	case c := <-t.incoming:
		return c, nil
	case <-t.done:
		return nil, net.ErrClosed
	}
}

func (t *tunnels) Close() error {
	t.once.Do(func() { close(t.done) })
	return nil
}

func (t *tunnels) Addr() net.Addr { return address("tunnels") }

// Tunnel opens a connection to server for the protocol of another package. The listener from Tunnels accepts the
// connection at the server. The caller of Tunnel must close the connection. If Tunnel fails, it returns
// fault.Unavailable, and no data was sent.
//
// If dials to the server have failed recently, Tunnel fails at once until the backoff ends. If many tunnels to the
// server are being opened, Tunnel waits.
func (p *Port) Tunnel(ctx context.Context, server string) (net.Conn, error) {
	if err := p.health.blocked(target{server, false}); err != nil {
		return nil, err
	}
	give, err := p.dials.take(ctx, server)
	if err != nil {
		return nil, err
	}
	defer give()
	if err := p.health.blocked(target{server, false}); err != nil { // another dial has failed meanwhile
		return nil, err
	}
	c, err := p.dial(ctx, server, kindTunnel, 0)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Tunnels returns the listener that accepts the tunnels of other nodes. Every call returns the same listener. After
// this listener is closed, new tunnels are closed at once. RemotePeer returns the identity of the other end of a
// tunnel.
func (p *Port) Tunnels() net.Listener { return p.tunnels }

// Lost reports to the port that a server has failed, for example according to gossip. The port then closes the tunnels
// to and from the server. Otherwise requests over these tunnels could wait for minutes.
func (p *Port) Lost(server string) { p.conns.lost(server) }

// RemotePeer returns the identity of the other end of a tunnel that the listener of Tunnels has accepted.
func RemotePeer(c net.Conn) Caller {
	if in, ok := c.(*conn); ok {
		return in.caller
	}
	return Caller{}
}

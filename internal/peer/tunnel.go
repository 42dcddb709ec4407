package peer

import (
	"context"
	"net"
	"sync"
)

// tunnels is the listener of the connections that carry a protocol of somebody else.
type tunnels struct {
	incoming chan net.Conn
	done     chan struct{}
	once     sync.Once
}

func newTunnels() *tunnels {
	return &tunnels{incoming: make(chan net.Conn), done: make(chan struct{})}
}

// offer gives a connection to whoever accepts.
func (t *tunnels) offer(c *conn) {
	select {
	case t.incoming <- c:
	case <-t.done:
		_ = c.Close() // nobody has used it
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

// Tunnel opens a connection to server for a protocol of the caller's own: what is written
// comes out of the listener that Tunnels returns there. The caller closes it. Whatever goes
// wrong, the error is unavailable and nothing was sent; a server that could not be reached
// a moment ago is not dialled again at once.
func (p *Port) Tunnel(ctx context.Context, server string) (net.Conn, error) {
	if err := p.health.blocked(target{server, false}); err != nil {
		return nil, err
	}
	c, err := p.dial(ctx, server, kindTunnel, 0)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Tunnels is the listener of tunnels that other nodes open; there is one. Closing it
// refuses further ones. RemotePeer tells who is at the other end of an accepted one.
func (p *Port) Tunnels() net.Listener { return p.tunnels }

// Lost says that server is known to be gone, for example by gossip: tunnels to and from it
// end, whose traffic could otherwise wait for minutes for an answer from a dead network.
func (p *Port) Lost(server string) { p.conns.lost(server) }

// RemotePeer tells who is at the other end of an accepted tunnel.
func RemotePeer(c net.Conn) Caller {
	if in, ok := c.(*conn); ok {
		return in.caller
	}
	return Caller{}
}

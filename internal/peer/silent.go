package peer

import (
	"crypto/tls"
	"net"
	"time"
)

const (
	silence     = 10 * time.Second // how long nothing of what was sent may be acknowledged
	silencePoll = 2 * time.Second
)

// cutSilent ends tunnels over which nothing gets through any more, until the port closes.
// Calls would hang for a quarter of an hour else, where the network fails between two
// nodes alone: others reach both, and gossip has no reason to call either of them lost.
func (p *Port) cutSilent() {
	tick := time.NewTicker(silencePoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			return
		}
		for _, c := range p.conns.all() {
			if c.kind == kindTunnel && c.silent(silence) {
				p.opts.Logger.Info("calls to a server get no further: the network to it fails", "server", c.server)
				_ = c.Close() // its owner reports what it was doing
			}
		}
	}
}

// silent reports whether what was sent was repeated for a time, and the other end's kernel
// has acknowledged nothing. One whose application does not read acknowledges all the same.
func (c *conn) silent(limit time.Duration) bool {
	raw := c.Conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	t, ok := raw.(*net.TCPConn)
	return ok && unheard(t) > limit
}

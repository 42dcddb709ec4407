package peer

import (
	"crypto/tls"

	"github.com/quorate/quorate/internal/fault"
)

// Renew replaces the connections for calls and for Raft groups, in both directions. Call it after the certificate of
// this node has changed. No request is lost, because calls in progress are finished first and Raft repeats its
// requests.
//
// Renew does not close tunnels, nor connections that carry a snapshot. Without TLS, it does nothing.
func (p *Port) Renew() {
	if p.opts.TLS == nil {
		return
	}
	p.calls.retire()
	p.joins.retire()
	p.mu.Lock()
	var servers []*callee
	for s := range p.servers {
		servers = append(servers, s)
	}
	p.mu.Unlock()
	for _, s := range servers {
		s.retire()
	}
	p.conns.end(func(c *conn) bool { return c.kind == kindRaft })
}

// retire permits no new calls on the current connections. Calls in progress can finish.
func (c *Client) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.links {
		for i := range l.lanes {
			if line := l.lanes[i].current(); line != nil {
				line.retire()
			}
		}
	}
}

func (l *line) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = true
	l.rouse()
}

// retire sends the caller a go-away frame. The caller then closes the connection when it has received all answers. The
// callee does not close the connection itself, because answers that are still on the way could be lost.
func (c *callee) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return
	}
	c.leaving, c.retired, c.goAway = true, true, true
	c.rouse()
}

// Recheck verifies the certificates of all open connections again. It closes a connection if the certificate of the
// other side has expired, or if the token or authority of this certificate is no longer accepted. Call Recheck
// periodically, and after a change of the tokens or authorities.
func (p *Port) Recheck() {
	if p.opts.TLS == nil {
		return
	}
	for _, c := range p.conns.all() {
		t, ok := c.Conn.(*tls.Conn)
		if !ok {
			continue
		}
		_, err := p.opts.VerifyPeer(t.ConnectionState(), c.server)
		if err == nil {
			continue
		}
		r := distrusted("its other end", err)
		p.metrics.refused(r.Reason, c.direction).Inc()
		if p.quiet.allows(r.Reason, c.server) {
			p.opts.Logger.Warn("peer connection ended", "server", c.server, "kind", c.kind.String(),
				"reason", r.Reason.String(), "error", fault.Text(r))
		}
		_ = c.Close() // the owner of the connection reports the error
	}
}

package peer

import (
	"crypto/tls"

	"github.com/quorate/quorate/internal/fault"
)

// Renew says that this node has another certificate now. Connections under the last one are
// replaced, whoever dialled them, and no call is lost by it: those of calls finish what
// they carry and take nothing new, those of groups end and their requests are repeated, and
// a snapshot goes on to its end.
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

// retire lets every connection finish what it carries.
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

// retire tells the caller to make another connection. The caller ends this one when it has
// the answers to what was taken: ended from here, it could lose what is on its way.
func (c *callee) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return
	}
	c.leaving, c.retired, c.goAway = true, true, true
	c.rouse()
}

// Recheck verifies the other end of every connection again and cuts those that are not
// trusted any more: because a certificate has expired, or rests on a token or an authority
// that was withdrawn. To be called when what is trusted has changed, and now and then.
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
			p.opts.Logger.Warn("peer connection ended", "server", c.server, "kind", c.kind.String(), "reason", r.Reason.String(), "error", fault.Text(r))
		}
		_ = c.Close() // its owner reports what it was doing
	}
}

package peer

import (
	"crypto/tls"
	"net"
	"time"
)

const (
	silence     = 10 * time.Second // longest time without an acknowledgement of sent data
	silencePoll = 2 * time.Second
)

// cutSilent closes tunnels whose other side no longer acknowledges data. It runs until the port closes.
//
// The network between two nodes may fail while both still reach the rest of the cluster. Without cutSilent, calls
// between these two nodes would then hang for a quarter of an hour.
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
				p.opts.Logger.Info("tunnel closed: the server acknowledges no data", "server", c.server)
				_ = c.Close() // the owner of the connection reports the error
			}
		}
	}
}

// silent reports whether the other side of c has acknowledged nothing for longer than limit, although data was
// retransmitted. A slow application does not cause this, because the kernel acknowledges the data. On systems that do
// not report acknowledgements, silent always returns false.
func (c *conn) silent(limit time.Duration) bool {
	raw := c.Conn
	if t, ok := raw.(*tls.Conn); ok {
		raw = t.NetConn()
	}
	t, ok := raw.(*net.TCPConn)
	return ok && unheard(t) > limit
}

package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// dialTCP opens a TCP connection.
func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// keepAlive returns settings that detect the failure of the other host. With them, an idle connection fails about 11
// seconds after that host has died.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}
}

// tune sets two options of a TCP connection. Keep-alive detects the failure of an idle connection sooner. A limit of
// unsent data prevents small messages from waiting behind large ones. tune ignores errors, because a connection also
// works without these options.
func tune(c net.Conn) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	_ = t.SetKeepAliveConfig(keepAlive())
	limitUnsent(t)
}

// dial opens a connection to a server. If it fails, no request was sent. The error is then fault.Unavailable, and it
// names the server, its address and the cause.
func (p *Port) dial(ctx context.Context, to string, k kind, group uint32) (*conn, error) {
	if err := p.ready(); err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, p.opts.Timing.Dial)
	defer cancel()
	c, addr, err := p.reach(limited, to, k, group)
	if err != nil {
		err = p.unreached(to, addr, k, err)
		if !errors.Is(ctx.Err(), context.Canceled) { // a cancelled dial says nothing about the server
			p.health.failed(target{to, k.raft()}, err)
		}
		return nil, err
	}
	p.health.contact(to)
	return c, nil
}

// unreached counts a failed dial, and returns the error for the caller of dial. If one of the two nodes does not trust
// the other, unreached also logs the error.
func (p *Port) unreached(to, addr string, k kind, err error) error {
	p.metrics.dialFailures(k).Inc()
	if addr != "" {
		addr = " at " + addr
	}
	out := &fault.Error{Code: fault.Unavailable, Op: "peer.dial",
		Msg: fmt.Sprintf("server %q%s cannot be reached", to, addr), Err: err}
	var r *Refusal
	if !errors.As(err, &r) {
		return out
	}
	p.metrics.refused(r.Reason, Outbound).Inc()
	if !r.here {
		out.Msg = fmt.Sprintf("server %q%s refused the connection", to, addr)
	}
	if r.Reason.trust() && p.quiet.allows(r.Reason, to) {
		p.opts.Logger.Warn("no peer connection", "server", to, "kind", k.String(), "reason", r.Reason.String(),
			"error", out.Text())
	}
	return out
}

// reach resolves and dials a server, and performs TLS and the preamble.
func (p *Port) reach(ctx context.Context, to string, k kind, group uint32) (_ *conn, addr string, err error) {
	self := p.opts.Self()
	if len(self.Server) == 0 || len(self.Server) > maxID || len(self.Cluster) > maxID || len(to) == 0 ||
		len(to) > maxID {
		return nil, "", fault.New(fault.Invalid, "peer.dial",
			fmt.Sprintf("server ids have 1 to %d bytes, cluster ids at most %d", maxID, maxID))
	}
	if p.conns.isCut(to, Outbound) {
		return nil, "", errCut(to)
	}
	if addr, err = p.opts.Resolve(ctx, to); err != nil {
		return nil, "", fault.Wrap(err, "peer.dial", "its address is not known")
	}
	raw, err := p.opts.Dial(ctx, addr)
	if err != nil {
		return nil, addr, err
	}
	c, err := p.introduce(ctx, raw, self, hello{kind: k, Epoch: self.Epoch, Cluster: self.Cluster, From: self.Server,
		To: to, group: group})
	if err != nil {
		_ = raw.Close()
		return nil, addr, err
	}
	return c, addr, nil
}

// introduce performs TLS and the preamble on a dialled connection.
func (p *Port) introduce(ctx context.Context, raw net.Conn, self Identity, h hello) (*conn, error) {
	stop := bind(ctx, raw)
	defer stop()
	tune(raw)
	secure, state, err := p.secureClient(ctx, raw, h.To)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: secure, kind: h.kind, direction: Outbound, server: h.To, self: self}
	if err := p.prove(c, state); err != nil {
		return nil, err
	}
	if err := greet(secure, h); err != nil {
		return nil, remoteAlert(h.To, err)
	}
	if r := p.register(c); r != nil {
		return nil, r
	}
	if err := c.settle(nil, stop); err != nil {
		return nil, err
	}
	return c, nil
}

// greet sends the hello h and reads the answer of the other server. It checks the server, cluster and epoch in this
// answer by the rules of admit. So a connection to a wrong server fails even if that server accepts it.
func greet(c net.Conn, h hello) error {
	if _, err := c.Write(h.encode()); err != nil {
		return err
	}
	them, err := readAnswer(c)
	if err != nil {
		return err
	}
	if r := admit(them, h); r != nil {
		return r
	}
	return nil
}

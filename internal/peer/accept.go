package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/pending"
)

// callConnections is how many connections for calls this node keeps open from one other server. If there are more, it
// closes the oldest. The other server normally opens two. After a network failure or a renewal of certificates, old
// connections may remain for a while.
const callConnections = 8

// accept accepts connections until l is closed.
func (p *Port) accept(l net.Listener) {
	var pause time.Duration
	for {
		c, err := l.Accept()
		if err == nil {
			pause = 0
			p.receive(c)
			continue
		}
		if p.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		if pause == 0 { // log only the first of several failures
			p.opts.Logger.Error("cannot accept peer connections; check the limit of open files",
				"listener", l.Addr().String(), "error", err)
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		wait(p.ctx, pause)
	}
}

func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// receive reads the preamble of c in a new goroutine. It then passes the connection to the listener for tunnels, to
// Raft or to the code that serves calls, unless the connection is refused.
func (p *Port) receive(c net.Conn) {
	tune(c)
	waiting := p.pending.Add(c)
	started := p.spawn(func() {
		owned, h, err := p.welcome(waiting)
		if cut := waiting.Done(); err != nil {
			err = p.explainCut(cut, err)
		}
		if err != nil {
			_ = c.Close()
			p.refused(c, h, err)
			return
		}
		p.health.contact(h.From)
		p.give(owned, h)
	})
	if !started {
		waiting.Done()
		_ = c.Close()
	}
}

// explainCut returns the error for a connection that failed during its preamble. If this node closed the connection
// because of a limit, the error is a refusal that names the limit. Otherwise explainCut returns err.
func (p *Port) explainCut(cut pending.Cut, err error) error {
	switch cut {
	case pending.TooMany, pending.TooManyOf:
		return refuse(ReasonBusy, fault.Unavailable, p.pending.Explain(cut),
			"find out which program at that address opens connections to the peer port without using them, and "+
				"block it with a firewall")
	case pending.Silent:
		return refuse(ReasonTimeout, fault.Timeout, p.pending.Explain(cut),
			"only Quorate nodes may dial the peer port")
	}
	return err
}

// welcome performs TLS, reads the preamble of an accepted connection and sends the answer. The connection stops being
// pending before the answer is sent, so that the limits for pending connections cannot close it while it carries a
// request.
func (p *Port) welcome(raw *pending.Conn) (*conn, hello, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.opts.Timing.Handshake)
	defer cancel()
	stop := bind(ctx, raw)
	defer stop()
	secure, state, h, err := p.secureServer(ctx, raw)
	if err != nil {
		return nil, h, err
	}
	h, err = readHello(secure)
	c := &conn{Conn: secure, kind: h.kind, direction: Inbound, server: h.From, self: p.opts.Self()}
	if err == nil {
		err = p.judge(c, h, state)
	}
	if err != nil {
		tell(secure, err)
		return nil, h, err
	}
	if raw.Done() != pending.NotCut {
		_ = c.Close() // pending has closed it; this also removes it from the registry
		return nil, h, net.ErrClosed
	}
	if err := c.settle(encodeAnswer(c.self, nil), stop); err != nil {
		return nil, h, err
	}
	return c, h, nil
}

// tell sends a refusal to the dialing node. It does nothing if err is not a Refusal, or if its reason is ReasonCut.
func tell(c net.Conn, err error) {
	var r *Refusal
	if errors.As(err, &r) && r.Reason != ReasonCut {
		_, _ = c.Write(encodeAnswer(Identity{}, r)) // an error does not matter: the caller closes the connection
	}
}

// settle completes the preamble of a registered connection. It sends the answer, if there is one, and removes the
// deadline of the handshake. stop is the result of bind. If settle fails, for example because the handshake has timed
// out, it closes the connection.
func (c *conn) settle(answer []byte, stop func() bool) error {
	var err error
	if len(answer) > 0 {
		_, err = c.Write(answer)
	}
	if err == nil && !stop() {
		err = context.DeadlineExceeded
	}
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = c.Close()
	}
	return err
}

// judge verifies and admits a connection, then adds it to the registry.
func (p *Port) judge(c *conn, h hello, state *tls.ConnectionState) error {
	if err := p.prove(c, state); err != nil {
		return err
	}
	if r := admit(c.self, h); r != nil {
		return r
	}
	if h.kind.raft() && p.transport(h.group) == nil {
		return refuse(ReasonUnknownGroup, fault.Unavailable,
			fmt.Sprintf("server %q does not run group %d", h.To, h.group), "it may be starting")
	}
	if r := p.register(c); r != nil {
		return r
	}
	return nil
}

// register adds a connection to the registry, or returns why the connection is refused. It refuses a connection if the
// cluster or epoch of this node has changed since the hello arrived, unless the connection is for joining. Refresh
// could not close this connection, because the connection was not registered yet.
func (p *Port) register(c *conn) *Refusal {
	if r := p.conns.add(c); r != nil {
		return r
	}
	if c.kind != kindJoin && c.self != p.opts.Self() {
		c.forget()
		return refuse(ReasonChanged, fault.Unavailable,
			fmt.Sprintf("cluster or epoch of server %q has just changed", c.self.Server),
			"it can be tried again at once")
	}
	return nil
}

// give passes a tunnel to the listener for tunnels, and a Raft connection to the transport of its group. It serves a
// connection for calls itself, and returns when that connection ends.
func (p *Port) give(c *conn, h hello) {
	switch {
	case h.kind == kindTunnel:
		p.tunnels.offer(c)
	case !h.kind.raft():
		p.conns.thin(h.From, h.kind, callConnections)
		p.serveCalls(c, h)
	default:
		t := p.transport(h.group)
		if t == nil || !t.layer.offer(c, h.kind) {
			_ = c.Close() // the group has been closed meanwhile
		}
	}
}

// refused counts and logs a refused connection. It does nothing for ReasonCut, or if this node is closing.
func (p *Port) refused(c net.Conn, h hello, err error) {
	reason := reasonOf(err)
	if p.ctx.Err() != nil || reason == ReasonCut {
		return
	}
	p.metrics.refused(reason, Inbound).Inc()
	who := h.From
	if who == "" {
		who, _, _ = net.SplitHostPort(c.RemoteAddr().String())
	}
	if p.quiet.allows(reason, who) {
		p.opts.Logger.Log(p.ctx, p.quiet.level(reason), "peer connection refused", "remote", c.RemoteAddr().String(),
			"server", h.From, "kind", h.kind.String(), "reason", reason.String(), "error", fault.Text(err))
	}
}

// reasonOf returns the reason for which a preamble failed.
func reasonOf(err error) Reason {
	if r, ok := RefusedBecause(err); ok {
		return r
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return ReasonTimeout
	}
	return ReasonMalformed
}

// bind makes reads and writes of c fail when ctx ends. The caller must call stop when c no longer depends on ctx. stop
// returns false if ctx had already ended.
func bind(ctx context.Context, c net.Conn) (stop func() bool) {
	if d, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(d) // a connection that fails here fails at its first read
	}
	var once sync.Once
	undone := false
	after := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() bool {
		once.Do(func() { undone = after() })
		return undone
	}
}

package peer

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// callConnections is how many connections of calls one server may have here. It uses two;
// those of before a network failure or a renewal may linger.
const callConnections = 8

// accept takes connections until l is closed.
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
		if pause == 0 { // once for each row of failures
			p.opts.Logger.Error("cannot accept peer connections; check the limit of open files", "listener", l.Addr().String(), "error", err)
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

// receive reads the preamble in a goroutine of its own.
func (p *Port) receive(c net.Conn) {
	done := p.pending.add(c)
	started := p.spawn(func() {
		owned, h, err := p.welcome(c)
		if cut := done(); cut && err != nil {
			err = refuse(ReasonBusy, fault.Unavailable,
				fmt.Sprintf("%d connections were in their preamble, and this was the oldest", p.pending.max), "somebody opens connections and says nothing")
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
		done()
		_ = c.Close()
	}
}

// welcome goes through TLS and the preamble of an accepted connection.
func (p *Port) welcome(raw net.Conn) (*conn, hello, error) {
	ctx, cancel := context.WithTimeout(p.ctx, p.opts.Timing.Handshake)
	defer cancel()
	stop := bind(ctx, raw)
	defer stop()
	tune(raw)
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
	if err := c.settle(encodeAnswer(c.self, nil), stop); err != nil {
		return nil, h, err
	}
	return c, h, nil
}

// tell sends a refusal. Garbage gets no answer, nor what a test has cut.
func tell(c net.Conn, err error) {
	var r *Refusal
	if errors.As(err, &r) && r.Reason != ReasonCut {
		_, _ = c.Write(encodeAnswer(Identity{}, r)) // it is about to be closed anyway
	}
}

// settle ends the preamble of a registered connection: it sends answer, if there is one,
// and lifts the deadline. After an error the connection is closed.
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

// judge decides about a connection, and takes it into the registry.
func (p *Port) judge(c *conn, h hello, state *tls.ConnectionState) error {
	if err := p.prove(c, state); err != nil {
		return err
	}
	if r := admit(c.self, h); r != nil {
		return r
	}
	if h.kind.raft() && p.transport(h.group) == nil {
		return refuse(ReasonUnknownGroup, fault.Unavailable, fmt.Sprintf("server %q does not run group %d", h.To, h.group), "it may be starting")
	}
	if r := p.register(c); r != nil {
		return r
	}
	return nil
}

// register takes a connection into the registry. Whoever changes the identity refreshes
// the registry afterwards, so it is looked at again once the connection is in.
func (p *Port) register(c *conn) *Refusal {
	if r := p.conns.add(c); r != nil {
		return r
	}
	if c.kind != kindJoin && c.self != p.opts.Self() {
		c.forget()
		return refuse(ReasonChanged, fault.Unavailable, fmt.Sprintf("cluster or epoch of server %q has just changed", c.self.Server), "it can be tried again at once")
	}
	return nil
}

// give hands a connection to whom it is for. The goroutine of the preamble goes on as the
// reader of calls.
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

// refused counts and tells of a connection that was not taken.
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
		p.opts.Logger.Warn("peer connection refused", "remote", c.RemoteAddr().String(), "server", h.From, "kind", h.kind.String(), "reason", reason.String(), "error", fault.Text(err))
	}
}

// reasonOf names what ended a preamble.
func reasonOf(err error) Reason {
	if r, ok := RefusedBecause(err); ok {
		return r
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		return ReasonTimeout
	}
	return ReasonMalformed
}

// bind ends the I/O of c when ctx ends. stop undoes that; it returns false if it is too late.
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

// pending are the accepted connections that have not said who they are. One too many cuts
// the oldest: an honest preamble takes milliseconds, so the oldest is the least honest.
type pending struct {
	max int

	mu     sync.Mutex // guards what follows
	conns  list.List
	closed bool
}

// waiting is a connection in its preamble.
type waiting struct {
	net.Conn
	cut bool
}

func newPending(limit int) *pending { return &pending{max: limit} }

// add takes c in until done is called, which reports whether c was cut.
func (p *pending) add(c net.Conn) (done func() bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &waiting{Conn: c}
	e := p.conns.PushBack(w)
	if p.closed {
		_ = c.Close()
	}
	if p.conns.Len() > p.max {
		oldest := p.conns.Remove(p.conns.Front()).(*waiting)
		oldest.cut = true
		_ = oldest.Close() // its preamble finds out
	}
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conns.Remove(e) // nothing happens if it has been removed
		return w.cut
	}
}

func (p *pending) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for e := p.conns.Front(); e != nil; e = e.Next() {
		_ = e.Value.(*waiting).Close()
	}
}

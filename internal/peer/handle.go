package peer

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/quorate/quorate/internal/fault"
)

// proceed starts the handler once the request is complete.
func (c *callee) proceed(s *stream) {
	if t := s.task; c.err == nil && t.owner && !t.running && !t.over && (s.in.fin || s.in.size < 0) {
		t.running = true
		c.tasks.Go(func() { c.handle(s) })
	}
}

func (c *callee) handle(s *stream) {
	answer, err := c.invoke(s)
	if _, known := fault.As(err); !known && fault.Is(err, fault.Timeout) {
		err = &fault.Error{Code: fault.Indeterminate, Op: "peer.Call", Msg: fmt.Sprintf("method %q was stopped at its deadline: it may have been done", s.task.method.Name), Err: err}
	}
	if err == nil && len(answer) > s.task.method.MaxAnswer {
		err = fault.New(fault.TooLarge, "peer.Call", fmt.Sprintf("the answer of method %q has %d bytes, the limit is %d", s.task.method.Name, len(answer), s.task.method.MaxAnswer))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.task.running = false
	c.answer(s, s.task.method, answer, err)
}

// invoke runs the handler. A handler that panics must not take down every node that the
// request is sent to.
func (c *callee) invoke(s *stream) (answer []byte, err error) {
	t := s.task
	defer func() {
		if v := recover(); v != nil {
			c.port.opts.Logger.Error("a peer handler panicked; this is a defect", "method", t.method.Name, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			answer, err = nil, fault.New(fault.Internal, "peer.Call", fmt.Sprintf("method %q failed by a defect; see the log of server %q", t.method.Name, c.conn.self.Server))
		}
	}()
	if err := c.tooLate(t); err != nil {
		return nil, err
	}
	if t.method.HandleStream != nil {
		stop := context.AfterFunc(t.ctx, func() { s.interrupt(t.ctx) })
		defer stop()
		return nil, t.method.HandleStream(t.ctx, Request{From: c.from, Payload: t.opening}, body{s})
	}
	return t.method.Handle(t.ctx, Request{From: c.from, Payload: s.in.buf})
}

// tooLate says why a call is not worth beginning.
func (c *callee) tooLate(t *task) error {
	switch {
	case c.ctx.Err() != nil:
		return errStopping(c.conn.self.Server)
	case t.ctx.Err() != nil:
		return fault.New(fault.Timeout, "peer.Call", fmt.Sprintf("the deadline passed before server %q could begin", c.conn.self.Server))
	}
	return nil
}

func errStopping(server string) error {
	return fault.New(fault.Unavailable, "peer.Call", fmt.Sprintf("server %q is stopping", server))
}

// body is the callee's end of a stream.
type body struct{ s *stream }

func (b body) Read(p []byte) (int, error)  { return b.s.read(p) }
func (b body) Write(p []byte) (int, error) { return b.s.write(p) }

// interrupt ends the reads and writes of a handler whose context has ended.
func (s *stream) interrupt(ctx context.Context) {
	s.mux.mu.Lock()
	defer s.mux.mu.Unlock()
	if s.in.err == nil || s.in.err == io.EOF {
		s.in.err = &fault.Error{Code: fault.Timeout, Op: "peer.Stream", Msg: "the caller is gone, or its deadline has passed", Err: context.Cause(ctx)}
	}
	s.in.buf, s.in.off, s.halted = nil, 0, true
	s.wakeUp()
}

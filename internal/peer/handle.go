package peer

import (
	"fmt"
	"runtime/debug"

	"github.com/quorate/quorate/internal/fault"
)

// proceed starts the handler of a call, if the whole request has arrived and the call has a slot of its gate. A gate
// limits the concurrent calls of one method.
func (c *callee) proceed(s *stream) {
	if t := s.task; c.err == nil && t.owner && !t.running && !t.over && s.in.fin {
		t.running = true
		c.tasks.Go(func() { c.handle(s) })
	}
}

func (c *callee) handle(s *stream) {
	answer, err := c.invoke(s)
	if _, known := fault.As(err); !known && fault.Is(err, fault.Timeout) {
		err = &fault.Error{Code: fault.Indeterminate, Op: "peer.Call",
			Msg: fmt.Sprintf("method %q was stopped at its deadline: it may have been done", s.task.method.Name),
			Err: err}
	}
	if err == nil && len(answer) > s.task.method.MaxAnswer {
		err = fault.New(fault.TooLarge, "peer.Call",
			fmt.Sprintf("the answer of method %q has %d bytes, the limit is %d", s.task.method.Name, len(answer),
				s.task.method.MaxAnswer))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.task.running = false
	c.answer(s, s.task.method, answer, err)
}

// invoke runs the handler of a call. If the handler panics, invoke logs the panic and returns an error, so that a bad
// request does not end the process.
func (c *callee) invoke(s *stream) (answer []byte, err error) {
	t := s.task
	defer func() {
		if v := recover(); v != nil {
			c.port.opts.Logger.Error("a peer handler panicked; this is a defect", "method", t.method.Name,
				"panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			answer, err = nil, fault.New(fault.Internal, "peer.Call",
				fmt.Sprintf("the handler of method %q panicked; see the log of server %q", t.method.Name,
					c.conn.self.Server))
		}
	}()
	if err := c.tooLate(t); err != nil {
		return nil, err
	}
	return t.method.Handle(t.ctx, Request{From: c.from, Payload: s.in.buf})
}

// tooLate returns an error if the handler of a call must not be started any more.
func (c *callee) tooLate(t *task) error {
	ended := t.ctx.Err() // read first, because a server that stops ends its own context before those of its calls
	switch {
	case c.ctx.Err() != nil:
		return errStopping(c.conn.self.Server)
	case ended != nil:
		return fault.New(fault.Timeout, "peer.Call",
			fmt.Sprintf("the deadline passed before server %q could begin", c.conn.self.Server))
	}
	return nil
}

func errStopping(server string) error {
	return fault.New(fault.Unavailable, "peer.Call", fmt.Sprintf("server %q is stopping", server))
}

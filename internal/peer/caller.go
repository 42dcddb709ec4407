package peer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/quorate/quorate/internal/fault"
)

// line is the calling end of a connection that carries calls.
type line struct {
	*mux
	limit   int  // maximum bytes of an answer
	leaving bool // the other side accepts no new calls; guarded by mux.mu
}

// call is a call at the caller. Its fields are set before done is closed.
type call struct {
	done   chan struct{}
	answer []byte
	err    error
	// again is true if the callee did not accept the call, for a reason that concerns only this connection. The call
	// can then be repeated on another connection.
	again bool
}

func newLine(c *conn, t Timing, limit int) *line {
	l := &line{limit: limit}
	l.mux = newMux(c, l, t)
	return l
}

// usable reports whether the line accepts new calls.
func (l *line) usable() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err == nil && !l.leaving
}

// over implements role.
func (l *line) over() error {
	if l.leaving && len(l.streams) == 0 {
		return errIdle()
	}
	return nil
}

// sent implements role.
func (l *line) sent(*stream) {}

// lost implements role.
func (l *line) lost(s *stream) {
	if s.out.sent {
		l.end(s, l.errLost())
		return
	}
	l.endUnsent(s, l.err)
}

func (l *line) errLost() error {
	return &fault.Error{Code: fault.Indeterminate, Op: "peer.Call", Err: cause(l.err),
		Msg: fmt.Sprintf("the connection to server %q was lost before it answered: the call may have been done",
			l.conn.server)}
}

// cause returns a readable error for the end of a connection.
func cause(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.New("it closed the connection")
	}
	return err
}

func (l *line) endUnsent(s *stream, why error) {
	s.call.again = true
	l.end(s, &fault.Error{Code: fault.Unavailable, Op: "peer.Call", Err: cause(why),
		Msg: fmt.Sprintf("the connection to server %q ended before the request was sent", l.conn.server)})
}

// end sets the outcome of a call.
func (l *line) end(s *stream, err error) {
	delete(l.streams, s.id)
	s.gone = true
	if !s.out.reset {
		l.turns.remove(s)
	}
	s.out.head, s.out.rest = nil, nil // the caller may reuse its payload
	if s.call.err = err; err == nil {
		s.call.answer = s.in.buf
	}
	close(s.call.done)
	if l.leaving {
		l.rouse()
	}
}

// take implements role.
func (l *line) take(f frame, body []byte) error {
	if f.kind == frameGoAway {
		l.leave(f.stream)
		return nil
	}
	s := l.streams[f.stream]
	if s == nil {
		if f.stream > l.last {
			return errProtocol("stream %d was never opened", f.stream)
		}
		return nil // the caller has given up this call
	}
	switch f.kind {
	case frameAnswer:
		return l.answer(s, f, body)
	case frameData:
		if s.in.target == 0 {
			return errProtocol("payload came before its answer")
		}
		return l.data(s, body, f.fin())
	case frameFail:
		l.end(s, fault.Unmarshal(body))
		return nil
	}
	return errProtocol("a frame of type %d goes from caller to callee", f.kind)
}

// leave handles a go-away frame, which means that the callee accepts no further calls on this connection. last is the
// number of the last stream that the callee has accepted. The calls of later streams were not executed, so they can be
// sent on another connection.
func (l *line) leave(last uint64) {
	l.leaving = true
	for _, s := range l.streams {
		if s.id > last {
			l.endUnsent(s, errStopping(l.conn.server))
		}
	}
	l.rouse()
}

func (l *line) answer(s *stream, f frame, body []byte) error {
	size, payload, err := decodeSize(body)
	switch {
	case err != nil:
		return err
	case s.in.target != 0:
		return errProtocol("a second answer came to a call")
	case size > l.limit:
		l.reset(s)
		l.end(s, fault.New(fault.TooLarge, "peer.Call",
			fmt.Sprintf("the answer of server %q has %d bytes, the limit is %d", l.conn.server, size, l.limit)))
		return nil
	case f.fin() && len(payload) == size:
		s.in.buf, s.in.fin = payload, true
		l.end(s, nil)
		return nil
	}
	s.in.size, s.in.target = size, fullWindow
	return l.data(s, payload, f.fin())
}

func (l *line) data(s *stream, p []byte, fin bool) error {
	if err := s.receive(p, fin); err != nil {
		return err
	}
	if fin {
		l.end(s, nil)
	}
	return nil
}

// begin starts a call and returns its stream. If the line accepts no new calls, the call of the returned stream has
// already failed.
func (l *line) begin(o opening, payload []byte) *stream {
	s := &stream{mux: l.mux, call: &call{done: make(chan struct{})}}
	s.in.credit, s.out.window = firstAnswer, firstRequest
	s.out.first, s.out.head, s.out.rest, s.out.fin = frameOpen, o.encode(), payload, true
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.leaving {
		l.endUnsent(s, l.err)
		return s
	}
	l.last++
	s.id = l.last
	l.streams[s.id] = s
	l.queue(s)
	return s
}

// wait waits until the call of s has ended, and returns its outcome. If ctx ends first, wait cancels the call.
func (l *line) wait(ctx context.Context, s *stream) *call {
	select {
	case <-s.call.done:
	case <-ctx.Done():
		l.abandon(ctx, s)
	}
	return s.call
}

// abandon cancels a call, unless it has ended.
func (l *line) abandon(ctx context.Context, s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-s.call.done:
		return
	default:
	}
	err := &fault.Error{Code: fault.Timeout, Op: "peer.Call",
		Msg: fmt.Sprintf("the request to server %q could not be sent in time", l.conn.server), Err: context.Cause(ctx)}
	if s.out.sent {
		err.Code, err.Msg = fault.Indeterminate,
			fmt.Sprintf("server %q did not answer in time: the call may have been done", l.conn.server)
	}
	l.reset(s)
	l.end(s, err)
}

// reset cancels the call at the other side, if any of it was sent.
func (l *line) reset(s *stream) {
	if s.out.began {
		s.out.reset = true
		l.queue(s)
	}
}

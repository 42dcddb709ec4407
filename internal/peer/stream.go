package peer

import (
	"encoding/binary"
)

// stream is one call on a connection, at either end. All of it is guarded by mux.mu.
type stream struct {
	mux    *mux
	id     uint64
	out    outbox
	in     inbox
	queued bool    // waits for its turn to send
	prev   *stream // previous stream in the queue
	next   *stream
	gone   bool // the call is over, so only a reset may still be sent

	call *call // set only at the caller
	task *task // set only at the callee
}

// outbox is the data that a stream has to send.
type outbox struct {
	first  frameType // type of the next frame; 0 = data
	head   []byte    // sent before the payload of the first frame
	rest   []byte    // payload that is not sent yet
	fin    bool      // rest is the end of the payload
	window int       // bytes that the other side still accepts
	grant  int       // more bytes that the other side may send; not announced yet
	reset  bool
	began  bool // some data was written
	sent   bool // all data was written
}

// ready reports whether a frame can be sent now.
func (s *stream) ready() bool {
	if s.gone {
		return s.out.reset
	}
	return s.out.reset || s.out.grant > 0 || s.out.payload()
}

func (o *outbox) payload() bool {
	if o.sent {
		return false
	}
	return o.first != 0 || len(o.rest) > 0 && o.window > 0 || len(o.rest) == 0 && o.fin
}

// emit appends the next frames of s to b. At most one of these frames has payload.
func (s *stream) emit(b []byte) []byte {
	o := &s.out
	if o.reset {
		o.reset = false
		b = appendFrame(b, frameReset, 0, s.id)
	}
	if s.gone {
		return b
	}
	if o.grant > 0 {
		b = appendFrame(b, frameWindow, 0, s.id, binary.BigEndian.AppendUint32(nil, uint32(o.grant)))
		o.grant = 0
	}
	if o.payload() {
		b = s.emitPayload(b)
	}
	return b
}

func (s *stream) emitPayload(b []byte) []byte {
	o := &s.out
	n := min(len(o.rest), chunk, max(o.window, 0))
	kind, flags := o.first, uint8(0)
	if kind == 0 {
		kind = frameData
	}
	if o.fin && n == len(o.rest) {
		flags, o.sent = flagFin, true
	}
	b = appendFrame(b, kind, flags, s.id, o.head, o.rest[:n])
	o.first, o.head, o.rest, o.began = 0, nil, o.rest[n:], true
	o.window -= n
	return b
}

// inbox is the data that a stream has received.
type inbox struct {
	size   int // bytes of the whole payload
	buf    []byte
	credit int // bytes the other side may still send
	target int // bytes that the other side should be able to send; 0 = grant no more
	fin    bool
}

// receive adds received payload. fin is true if it is the last part of the payload.
func (s *stream) receive(p []byte, fin bool) error {
	in := &s.in
	switch have := len(in.buf) + len(p); {
	case len(p) > in.credit:
		return errProtocol("%d bytes came where %d were granted", len(p), in.credit)
	case in.fin:
		return errProtocol("payload came after its end")
	case have > in.size, fin && have != in.size:
		return errProtocol("%d bytes were announced, %d came", in.size, have)
	}
	in.credit -= len(p)
	in.keep(p)
	in.fin = fin
	s.regrant()
	return nil
}

// keep appends p. It never allocates more memory than the size of the payload.
func (in *inbox) keep(p []byte) {
	if need := len(in.buf) + len(p); need > cap(in.buf) {
		grown := make([]byte, len(in.buf), min(max(need, 2*cap(in.buf), chunk), in.size))
		copy(grown, in.buf)
		in.buf = grown
	}
	in.buf = append(in.buf, p...)
}

// regrant lets the other side send more bytes. It does nothing while the other side may still send at least half of
// in.target, so that few window frames are necessary.
func (s *stream) regrant() {
	in := &s.in
	if in.target == 0 || in.fin || in.credit >= in.target/2 {
		return
	}
	more := min(in.size-len(in.buf), in.target) - in.credit
	if more < 1 {
		return
	}
	in.credit += more
	s.out.grant += more
	s.mux.queue(s)
}

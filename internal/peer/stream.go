package peer

import (
	"encoding/binary"
	"io"
	"sync"

	"github.com/quorate/quorate/internal/fault"
)

// stream is one call on a connection, at either end. All of it is guarded by mux.mu.
type stream struct {
	mux    *mux
	id     uint64
	out    outbox
	in     inbox
	queued bool    // waits for its turn to send
	prev   *stream // in that queue
	next   *stream
	gone   bool // the other side is not interested any more: nothing is sent but a reset
	halted bool // readers and writers on this side get an error

	changed *sync.Cond // of a stream with readers and writers; nil in a unary call
	call    *call      // at the caller
	task    *task      // at the callee
}

// outbox is what a stream has to send.
type outbox struct {
	first  frameType // of the next frame; 0 = data
	flags  uint8
	head   []byte // before the payload of the first frame
	rest   []byte // of the payload
	fin    bool   // rest is the last of it
	window int    // bytes the other side takes yet
	grant  int    // bytes of its payload to grant
	reset  bool
	began  bool // something was handed to the network
	sent   bool // everything was
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

// emit appends the next frames of s, at most one of them with payload, to b.
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
	kind, flags := o.first, o.flags
	if kind == 0 {
		kind = frameData
	}
	if o.fin && n == len(o.rest) {
		flags, o.sent = flags|flagFin, true
	}
	b = appendFrame(b, kind, flags, s.id, o.head, o.rest[:n])
	o.first, o.flags, o.head, o.rest, o.began = 0, 0, nil, o.rest[n:], true
	o.window -= n
	s.wakeUp()
	return b
}

func (s *stream) wakeUp() {
	if s.changed != nil {
		s.changed.Broadcast()
	}
}

// inbox is what a stream has received.
type inbox struct {
	size   int    // of a unary payload; -1 in a stream
	buf    []byte // what came, from off on
	off    int
	credit int // bytes the other side may send yet
	target int // bytes it should be able to send; 0 = it gets no more
	fin    bool
	err    error // why nothing more comes: io.EOF after the last byte of a stream
}

// receive takes payload that came.
func (s *stream) receive(p []byte, fin bool) error {
	in := &s.in
	switch {
	case len(p) > in.credit:
		return errProtocol("%d bytes came where %d were granted", len(p), in.credit)
	case in.fin:
		return errProtocol("payload came after its end")
	case in.size >= 0 && len(in.buf)+len(p) > in.size, fin && in.size >= 0 && len(in.buf)+len(p) != in.size:
		return errProtocol("%d bytes were announced, %d came", in.size, len(in.buf)+len(p))
	}
	in.credit -= len(p)
	in.keep(p)
	if in.fin = fin; fin && in.size < 0 {
		in.err = io.EOF
	}
	s.regrant()
	s.wakeUp()
	return nil
}

// keep appends p. A unary payload never gets more memory than its size.
func (in *inbox) keep(p []byte) {
	if in.off > 0 && len(in.buf)+len(p) > cap(in.buf) {
		in.buf, in.off = in.buf[:copy(in.buf, in.buf[in.off:])], 0
	}
	if need := len(in.buf) + len(p); in.size >= 0 && need > cap(in.buf) {
		grown := make([]byte, len(in.buf), min(max(need, 2*cap(in.buf), chunk), in.size))
		copy(grown, in.buf)
		in.buf = grown
	}
	in.buf = append(in.buf, p...)
}

// regrant lets the other side send more, in few and large steps.
func (s *stream) regrant() {
	in := &s.in
	if in.target == 0 || in.fin {
		return
	}
	more, least := in.target-(len(in.buf)-in.off)-in.credit, in.target/4
	if in.size >= 0 {
		more, least = min(in.size-len(in.buf), in.target)-in.credit, 1
		if in.credit >= in.target/2 {
			return
		}
	}
	if more < least {
		return
	}
	in.credit += more
	s.out.grant += more
	s.mux.queue(s)
}

// finish ends a stream in both directions. err is what its reader and writer get.
func (s *stream) finish(err error) {
	s.gone, s.halted = true, true
	if s.in.err == nil {
		s.in.err = err
	}
	s.wakeUp()
}

// read is io.Reader for one end of a stream.
func (s *stream) read(p []byte) (int, error) {
	s.mux.mu.Lock()
	defer s.mux.mu.Unlock()
	in := &s.in
	for len(in.buf) == in.off {
		if in.err != nil {
			return 0, in.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		s.changed.Wait()
	}
	n := copy(p, in.buf[in.off:])
	if in.off += n; in.off == len(in.buf) {
		in.buf, in.off = in.buf[:0], 0
	}
	s.regrant()
	return n, nil
}

// write is io.Writer for one end of a stream. It keeps p no longer than it runs.
func (s *stream) write(p []byte) (int, error) {
	s.mux.mu.Lock()
	defer s.mux.mu.Unlock()
	o := &s.out
	if s.halted || o.fin {
		return 0, s.unwritable()
	}
	o.rest = p
	s.mux.queue(s)
	for len(o.rest) > 0 && !s.halted {
		s.changed.Wait()
	}
	n := len(p) - len(o.rest)
	if o.rest = nil; n < len(p) {
		return n, s.unwritable()
	}
	return n, nil
}

// unwritable is why nothing can be written.
func (s *stream) unwritable() error {
	if s.in.err != nil && s.in.err != io.EOF {
		return s.in.err
	}
	return fault.New(fault.Invalid, "peer.Stream", "the stream is closed for writing")
}

// closeWrite says that nothing more will be written.
func (s *stream) closeWrite() {
	s.mux.mu.Lock()
	defer s.mux.mu.Unlock()
	if !s.gone {
		s.out.fin = true
		s.mux.queue(s)
	}
}

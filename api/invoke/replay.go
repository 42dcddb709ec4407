package invoke

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// replayLimit is the maximum size in bytes of a request body that is buffered for further attempts. A larger body can
// be sent only once.
const replayLimit = 64 << 10

// replay is the body of a call that may be sent several times. Each attempt reads the body from the start. After more
// than replayLimit bytes have been read, no further attempt is possible. When an attempt begins, reads of earlier
// attempts fail.
type replay struct {
	source io.ReadCloser // nil = there is no body
	stream bool          // the length of the body is unknown

	lock  chan struct{} // has an element while it is held; guards what follows, and reading from source
	turn  int
	seen  []byte
	lost  bool // more than replayLimit bytes were read
	ended error
}

func newReplay(body io.ReadCloser, length int64) *replay {
	if body == nil || body == http.NoBody || length == 0 {
		return &replay{}
	}
	return &replay{source: body, stream: length < 0, lock: make(chan struct{}, 1)}
}

// oneMessage is a request body of unknown length that may consist of a single message, such as the body of a unary
// gRPC call.
type oneMessage interface {
	// Single reports whether no more than one message was read.
	Single() bool
}

// spent reports whether the application may have processed a part of a streamed body, so that the call must not be
// repeated. This is possible in two cases:
//
//   - The last attempt is still reading the stream.
//   - A part of the stream was read. The first message of a oneMessage does not count.
func (p *replay) spent() bool {
	if p.source == nil || !p.stream {
		return false
	}
	select {
	case p.lock <- struct{}{}:
	default:
		return true // the last attempt is still reading
	}
	defer p.unlock()
	if m, ok := p.source.(oneMessage); ok && m.Single() {
		return false
	}
	return p.lost || len(p.seen) > 0
}

func (p *replay) unlock() { <-p.lock }

// open returns the body for the next attempt.
func (p *replay) open() io.ReadCloser {
	if p.source == nil {
		return http.NoBody
	}
	p.lock <- struct{}{}
	defer p.unlock()
	p.turn++
	return &replayReader{replay: p, turn: p.turn}
}

// readWait is how long replay.again waits for a read of the last attempt.
const readWait = 100 * time.Millisecond

// again ends the last attempt, and reports whether another attempt can read the whole body. It returns false if too
// much of the body was read (see replayLimit). It also returns false if the last attempt is still waiting for the
// caller to send a part of the body.
func (p *replay) again() bool {
	if p.source == nil {
		return true
	}
	t := time.NewTimer(readWait)
	defer t.Stop()
	select {
	case p.lock <- struct{}{}:
	case <-t.C:
		return false
	}
	defer p.unlock()
	p.turn++
	return !p.lost
}

// replayReader is the body of one attempt.
type replayReader struct {
	replay *replay
	turn   int
	off    int
}

var errAttemptOver = errors.New("this attempt is over")

func (r *replayReader) Read(b []byte) (int, error) {
	p := r.replay
	p.lock <- struct{}{}
	defer p.unlock()
	if r.turn != p.turn {
		return 0, errAttemptOver
	}
	if r.off < len(p.seen) {
		n := copy(b, p.seen[r.off:])
		r.off += n
		return n, nil
	}
	if p.ended != nil {
		return 0, p.ended
	}
	n, err := p.source.Read(b)
	p.remember(b[:n])
	r.off += n
	p.ended = err
	return n, err
}

// remember appends bytes from the source to the buffer. If the buffer would exceed replayLimit, remember discards it.
func (p *replay) remember(b []byte) {
	switch {
	case p.lost:
	case len(p.seen)+len(b) > replayLimit:
		p.seen, p.lost = nil, true
	default:
		p.seen = append(p.seen, b...)
	}
}

// Close does nothing, because the caller owns the source.
func (r *replayReader) Close() error { return nil }

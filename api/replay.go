package api

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// replayLimit is how much of a body is remembered, in bytes, so that a call that surely was
// not received can be made again elsewhere. What is longer streams through.
const replayLimit = 64 << 10

// replay is the body of a call for several attempts. Each attempt reads it from the start,
// as long as no more than replayLimit was taken from it; all but the last attempt are cut off.
type replay struct {
	source io.ReadCloser // nil = there is no body
	turn   int           // guarded by mu

	mu    sync.Mutex // guards what follows, and reading from source
	seen  []byte
	lost  bool // more was read than is remembered
	ended error
}

func newReplay(body io.ReadCloser, length int64) *replay {
	if body == nil || body == http.NoBody || length == 0 {
		return &replay{}
	}
	return &replay{source: body}
}

// open returns the body for the next attempt.
func (p *replay) open() io.ReadCloser {
	if p.source == nil {
		return http.NoBody
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn++
	return &replayReader{of: p, turn: p.turn}
}

// again reports whether another attempt can have the whole body, and cuts off the last.
func (p *replay) again() bool {
	if p.source == nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn++
	return !p.lost
}

// replayReader is the body of one attempt.
type replayReader struct {
	of   *replay
	turn int
	off  int
}

var errAttemptOver = errors.New("this attempt is over")

func (r *replayReader) Read(b []byte) (int, error) {
	p := r.of
	p.mu.Lock()
	defer p.mu.Unlock()
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

// remember keeps what was read, up to the limit. Once that is exceeded nothing is kept.
func (p *replay) remember(b []byte) {
	switch {
	case p.lost:
	case len(p.seen)+len(b) > replayLimit:
		p.seen, p.lost = nil, true
	default:
		p.seen = append(p.seen, b...)
	}
}

// Close ends the attempt. The source belongs to whoever made the call.
func (r *replayReader) Close() error { return nil }

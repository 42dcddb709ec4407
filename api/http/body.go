package http

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/quorate/quorate/api"
)

// buffer is a pooled byte slice. What is read into it or written from it must not be
// kept after release.
type buffer struct{ data []byte }

// maxPooled keeps one huge request from holding its memory for good.
const maxPooled = 1 << 20

func (f *Face) buffer() *buffer { return f.buffers.Get().(*buffer) }

func (f *Face) release(b *buffer) {
	if cap(b.data) > maxPooled {
		return
	}
	b.data = b.data[:0]
	f.buffers.Put(b)
}

// body reads the whole body of a request, within the limit of size and of time. The
// caller releases the buffer.
func (f *Face) body(p *reply, r *http.Request) (*buffer, error) {
	limit := f.bodyLimit
	if limit >= 0 && r.ContentLength > limit {
		return nil, api.BodyTooLarge(limit)
	}
	b := f.buffer()
	if err := f.readInto(b, p, r); err != nil {
		f.release(b)
		return nil, err
	}
	if p.received = int64(len(b.data)); limit >= 0 && p.received > limit {
		f.release(b)
		return nil, api.BodyTooLarge(limit)
	}
	return b, nil
}

// readInto reads up to one byte more than the limit.
func (f *Face) readInto(b *buffer, p *reply, r *http.Request) error {
	if r.ContentLength == 0 || r.Body == nil {
		return nil
	}
	// A body that never ends would hold its goroutine for ever. Connections that know no
	// deadline, as in tests, have nobody to wait for.
	control := http.NewResponseController(p.ResponseWriter)
	_ = control.SetReadDeadline(p.start.Add(f.timeout))
	err := b.fill(r.Body, r.ContentLength, f.bodyLimit)
	if err == nil {
		_ = control.SetReadDeadline(time.Time{})
		return nil
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return api.BodyUnreadable("the body did not arrive within " + f.timeout.String() + " (--request-timeout)")
	}
	return api.BodyUnreadable("the body could not be read to its end")
}

// fill appends everything from r, or limit+1 bytes; size is the length if it is known.
func (b *buffer) fill(r io.Reader, size, limit int64) error {
	const least, firstGuess = 512, 64 << 10
	if want := min(max(size, 0), firstGuess) + least; int64(cap(b.data)) < want {
		b.data = make([]byte, 0, want)
	}
	for limit < 0 || int64(len(b.data)) <= limit {
		if cap(b.data)-len(b.data) < least {
			b.data = append(b.data, make([]byte, cap(b.data)+least)...)[:len(b.data)]
		}
		n, err := r.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

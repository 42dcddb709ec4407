package http

import (
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/http/jsonbody"
	"github.com/quorate/quorate/internal/fault"
)

// buffer is a pooled byte slice. Its bytes must not be used after release.
type buffer struct{ data []byte }

// maxPooled is the maximum capacity in bytes of a buffer that is put back into the pool. Larger buffers are garbage
// collected.
const maxPooled = 1 << 20

func (c *core) buffer() *buffer { return c.buffers.Get().(*buffer) }

func (c *core) release(b *buffer) {
	if cap(b.data) > maxPooled {
		return
	}
	b.data = b.data[:0]
	c.buffers.Put(b)
}

// The memory reserved for a request with a body of n bytes is costFixed + costCopies*n bytes. The three copies are
// the body, its decoded values and the log entry.
const (
	costCopies = 3
	costFixed  = 4 << 10
)

func cost(n int64) int64 { return costFixed + costCopies*n }

// firstPiece is the assumed size, in bytes, of a body of unknown length. If the body is longer, grow reserves more
// memory.
const firstPiece = 64 << 10

// reserve reserves memory for the request in the budget of the node, or returns an error of kind api.Unavailable.
// Face.finish releases the memory.
func (c *core) reserve(p *reply, r *http.Request, bytes int64) error {
	if bytes <= 0 || c.requests == nil {
		return nil
	}
	if err := p.share.Add(r.Context(), bytes); err != nil {
		return api.Overloaded(err)
	}
	return nil
}

// body reserves memory and reads the whole body of a request, within the size limit and the request timeout. The
// caller must release the returned buffer.
func (c *core) body(p *reply, r *http.Request) (*buffer, error) {
	limit := c.bodyLimit
	if limit >= 0 && r.ContentLength > limit {
		return nil, api.BodyTooLarge(limit)
	}
	p.share = c.requests.Share()
	size := r.ContentLength
	if size < 0 {
		size = firstPiece
	}
	if err := c.reserve(p, r, cost(size)); err != nil {
		return nil, err
	}
	b := c.buffer()
	if err := c.readInto(b, p, r); err != nil {
		c.release(b)
		return nil, err
	}
	if p.received = int64(len(b.data)); limit >= 0 && p.received > limit {
		c.release(b)
		return nil, api.BodyTooLarge(limit)
	}
	return b, nil
}

// afford reserves memory for the decoded values of a body. If the body has too many elements, the caller passes the
// error as tooMany. afford reserves nothing and returns an error if tooMany is not nil, or if the body has too much
// metadata. If such a body is also invalid JSON, afford returns the error of the JSON parser instead.
func (c *core) afford(p *reply, r *http.Request, body []byte, t *jsonbody.Tally, tooMany error) error {
	if tooMany == nil {
		tooMany = api.CheckMetadata(t.Metadata)
	}
	if tooMany == nil {
		return c.reserve(p, r, t.Memory())
	}
	if err := jsonbody.Check(body); err != nil {
		return err
	}
	return tooMany
}

// readInto reads the body into b. It may stop early if the body exceeds the size limit.
func (c *core) readInto(b *buffer, p *reply, r *http.Request) error {
	if r.ContentLength == 0 || r.Body == nil {
		return nil
	}
	// Without a deadline, a body that never ends would hold its goroutine forever. Response writers in tests
	// support no deadlines, so the error is ignored.
	control := http.NewResponseController(p.ResponseWriter)
	_ = control.SetReadDeadline(p.start.Add(c.timeout))
	err := c.fill(b, p, r, control)
	if err == nil {
		_ = control.SetReadDeadline(time.Time{})
		return nil
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return api.BodyUnreadable("the body did not arrive within " + c.timeout.String() + " (--request-timeout)")
	}
	return api.BodyUnreadable("the body could not be read to its end")
}

// fill appends the body to b. It may stop early if the body exceeds the size limit, which the caller checks. It may
// abort the request if the client sends slowly while other requests wait for memory.
func (c *core) fill(b *buffer, p *reply, r *http.Request, control *http.ResponseController) error {
	const least = 512
	reserved := r.ContentLength
	if reserved < 0 {
		reserved = firstPiece
	}
	if want := reserved + least; int64(cap(b.data)) < want {
		b.data = make([]byte, 0, want)
	}
	// Memory is reserved already, so the transfer begins before the first byte arrives.
	transfer := p.share.Transfer(func() { _ = control.SetReadDeadline(time.Now()) })
	defer transfer.End()
	for c.bodyLimit < 0 || int64(len(b.data)) <= c.bodyLimit {
		if err := c.grow(b, p, r, &reserved); err != nil {
			return err
		}
		if cap(b.data)-len(b.data) < least {
			b.data = append(b.data, make([]byte, cap(b.data)+least)...)[:len(b.data)]
		}
		n, err := r.Body.Read(b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		transfer.Moved(n)
		if err == nil {
			continue
		}
		transfer.End() // from here on, the result of Cut does not change
		switch {
		case transfer.Cut(): // also at the end of the body: net/http may have canceled the request
			return api.Overloaded(fault.New(fault.Overloaded, "http.body",
				"the body arrived too slowly while other requests waited for memory"))
		case errors.Is(err, io.EOF):
			return nil
		}
		return err
	}
	return nil
}

// grow reserves more memory for a body of unknown length when *reserved bytes have arrived. It then updates *reserved.
func (c *core) grow(b *buffer, p *reply, r *http.Request, reserved *int64) error {
	if r.ContentLength >= 0 || int64(len(b.data)) < *reserved {
		return nil
	}
	next := 4 * *reserved
	if c.bodyLimit >= 0 {
		next = c.bodyLimit // in one step, because a request that holds much memory must not wait for more
	}
	err := c.reserve(p, r, costCopies*(next-*reserved))
	*reserved = max(next, *reserved)
	return err
}

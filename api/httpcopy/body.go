package httpcopy

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Body is the body of a forwarded request. It counts the bytes that the HTTP transport reads. The transport may still
// read the body after the answer has arrived.
type Body struct {
	io.ReadCloser
	length int64
	count  atomic.Int64
	ended  atomic.Bool
}

// NewBody returns the body of r.
func NewBody(r *http.Request) *Body { return &Body{ReadCloser: r.Body, length: r.ContentLength} }

// Read reads from the body and counts the bytes.
func (b *Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.count.Add(int64(n))
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// Count returns the number of bytes read so far.
func (b *Body) Count() int64 { return b.count.Load() }

func (b *Body) done() bool {
	return b.ended.Load() || b.length >= 0 && b.count.Load() >= b.length
}

// drainTime bounds how long the rest of a request body is read after an answer, or before an error answer. If the
// server closed the connection at once, TCP could reset the connection before the client has read the answer.
const drainTime = 250 * time.Millisecond

// duplex permits the answer on w to begin before the whole HTTP/1.1 request was read. By default, net/http discards
// the unread rest of the request when the answer begins, although the rest is still being forwarded. If duplex returns
// true and an answer has begun, the caller must call drain after the answer. net/http then closes the connection.
func (b *Body) duplex(w http.ResponseWriter, r *http.Request) bool {
	if r.ProtoMajor != 1 || b.done() {
		return false
	}
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		return false // the writer does not support full duplex
	}
	w.Header()["Connection"] = []string{"close"}
	return true
}

// drain reads and discards the rest of the body, for at most drainTime.
func (b *Body) drain(w http.ResponseWriter) {
	control := http.NewResponseController(w)
	_ = control.Flush() // fails only if the client has closed the connection
	_ = control.SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.Copy(io.Discard, b.ReadCloser)
}

// LimitRest limits how long an error answer on w waits for the rest of an HTTP/1.1 request. Before net/http sends such
// an answer, it reads up to 256 KiB of the rest. Without a limit, the answer to a client that pauses would never be
// sent. net/http resets the deadline before the next request.
func (b *Body) LimitRest(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && !b.done() {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime)) // test writers may have none
	}
}

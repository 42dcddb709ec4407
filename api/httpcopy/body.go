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

// drainTime limits how long the server reads and discards the rest of a request body after an answer, or before an
// error answer. If the server closed the connection at once, TCP could reset it before the client has read the answer.
const drainTime = 250 * time.Millisecond

// duplex lets the answer on w begin while the HTTP/1.1 request is still being forwarded. By default, net/http would
// discard the rest of the request. If duplex returns true and the caller begins an answer, the caller must call drain
// after the answer. net/http closes the connection after the answer.
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

// LimitRest limits how long an error answer on w waits for the rest of an HTTP/1.1 request. net/http reads up to 256
// KiB of the rest before it sends the answer, so a client that stops sending could delay the answer forever. The limit
// does not apply to the next request.
func (b *Body) LimitRest(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && !b.done() {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime)) // test writers may have none
	}
}

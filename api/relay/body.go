package relay

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Body is the body of a request that is handed on. It counts what is read: the transport
// that sends it on may read until after the answer has come.
type Body struct {
	io.ReadCloser
	length int64
	count  atomic.Int64
	ended  atomic.Bool
}

// NewBody returns the body of r.
func NewBody(r *http.Request) *Body { return &Body{ReadCloser: r.Body, length: r.ContentLength} }

// Read reads and counts.
func (b *Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.count.Add(int64(n))
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// Count is how many bytes were read.
func (b *Body) Count() int64 { return b.count.Load() }

func (b *Body) done() bool {
	return b.ended.Load() || b.length >= 0 && b.count.Load() >= b.length
}

// drainTime is how long a client may go on sending after the answer is complete, so that
// it reads the answer before its connection is reset.
const drainTime = 250 * time.Millisecond

// duplex prepares for an answer that begins before the whole request was read. Over
// HTTP/1.1 net/http would otherwise throw the rest of the request away, from under whoever
// reads it. Such a connection is not used again: where the request ends would be a guess.
func (b *Body) duplex(w http.ResponseWriter, r *http.Request) bool {
	if r.ProtoMajor != 1 || b.done() {
		return false
	}
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		return false // this writer knows no such thing
	}
	w.Header()["Connection"] = []string{"close"}
	return true
}

// drain gives the client a moment to notice that the answer is there.
func (b *Body) drain(w http.ResponseWriter) {
	control := http.NewResponseController(w)
	_ = control.Flush() // a client that is gone needs no drain
	_ = control.SetReadDeadline(time.Now().Add(drainTime))
	_, _ = io.Copy(io.Discard, b.ReadCloser)
}

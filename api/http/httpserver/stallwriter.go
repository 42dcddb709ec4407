package httpserver

import (
	"net/http"
	"time"
)

// stallPiece is the maximum number of bytes of one write over HTTP/2. Each write must end within the stall time.
const stallPiece = 64 << 10

// stallWriter is the response writer of a request over HTTP/2. If the client accepts no data of the stream for the
// stall time, a write fails and net/http resets the stream. connlimit.Impatient does not notice a stalled stream while
// the client still reads from the connection.
type stallWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	stall   time.Duration
	unsent  bool // something was written after the last flush
}

// begin starts the stall time: it sets the write deadline to the current time plus the stall time.
func (w *stallWriter) begin() {
	_ = w.control.SetWriteDeadline(time.Now().Add(w.stall)) // never fails over HTTP/2
}

// end clears the write deadline. Therefore a stream without data to send, such as an idle watch, has no deadline.
func (w *stallWriter) end() { _ = w.control.SetWriteDeadline(time.Time{}) }

// Write implements http.ResponseWriter.
func (w *stallWriter) Write(b []byte) (n int, err error) {
	defer w.end()
	w.unsent = true
	for {
		w.begin()
		var m int
		m, err = w.ResponseWriter.Write(b[:min(len(b), stallPiece)])
		b, n = b[m:], n+m
		if err != nil || len(b) == 0 {
			return n, err
		}
	}
}

// FlushError sends the buffered data. http.ResponseController calls FlushError.
func (w *stallWriter) FlushError() error {
	w.begin()
	defer w.end()
	err := w.control.Flush()
	w.unsent = w.unsent && err != nil
	return err
}

// Unwrap lets http.ResponseController reach the other methods of the connection.
func (w *stallWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

package watches

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
)

const maxBuffer = 128 << 10 // largest buffer that is kept for reuse

// Sender sends the streams of one application. It is safe for concurrent use.
type Sender struct {
	open    *atomic.Int64 // requests in progress; a watch on a connection that was taken over is one of them
	buffers sync.Pool     // of *[]byte, for watches that have something to send
}

// NewSender returns a Sender. open counts the requests in progress of the application.
func NewSender(open *atomic.Int64) *Sender {
	s := &Sender{open: open}
	s.buffers.New = func() any { return new([]byte) }
	return s
}

// Serve answers a request with a stream of events. If it can take over the connection (see takeOver), it returns true
// at once, and the bytes sent later are added to total. Otherwise, it sends the events itself, and returns false when
// the client has disconnected or the watch has ended.
func (s *Sender) Serve(w http.ResponseWriter, r *http.Request, stream *Stream, total prometheus.Counter) (taken bool) {
	stream.header(w.Header())
	if c := takeOver(w, r); c != nil {
		c.owner.loop.add(c, *stream, s.open, total)
		return true
	}
	s.run(r.Context(), stream, w)
	return false
}

// run writes events until the client has gone or the watch ends.
func (s *Sender) run(ctx context.Context, stream *Stream, w http.ResponseWriter) {
	control := http.NewResponseController(w)
	send := func(encode func([]byte) []byte) error {
		buffer := s.buffers.Get().(*[]byte)
		*buffer = encode((*buffer)[:0])
		_, err := w.Write(*buffer)
		if cap(*buffer) <= maxBuffer { // larger buffers would keep much memory
			s.buffers.Put(buffer)
		}
		if err != nil {
			return err
		}
		return control.Flush()
	}
	err := send(stream.greet)
	for err == nil {
		var part state.WatchPart
		if part, err = stream.Watch.Next(ctx); err == nil {
			err = send(func(b []byte) []byte { return stream.appendPart(b, &part) })
		} else if ctx.Err() == nil {
			_ = send(func(b []byte) []byte { return stream.appendEnd(b, err) }) // the client may have gone
		}
	}
	stream.Watch.Close(err)
}

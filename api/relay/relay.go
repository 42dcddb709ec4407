// Package relay writes the answer of one HTTP hop out as the answer of another: headers,
// body, trailers, informational answers, and the tunnel after an upgrade.
//
// It owns the copying and its flushing, and nothing else: it must never know where an
// answer comes from. A tunnel has two goroutines, which end before Relay returns.
package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// ErrStarted is in the chain of errors that come after the answer has begun: it was cut
// short, and the connection must not look as if it had ended well.
var ErrStarted = errors.New("the answer had begun")

// bufferSize is how much of a body is held at a time.
const bufferSize = 32 << 10

// Copier relays answers and keeps buffers for that. The zero value is ready; it is safe
// for concurrent use.
type Copier struct{ buffers sync.Pool }

// Relay writes answer to w and closes its body; r is the request it answers, whose body
// was read through in. The answer is flushed piece by piece where nobody knows its length,
// so that streams flow.
func (c *Copier) Relay(w http.ResponseWriter, r *http.Request, in *Body, answer *http.Response) error {
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return c.upgrade(w, r, answer)
	}
	if in.duplex(w, r) {
		defer in.drain(w)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read, or cannot be
	h := w.Header()
	for name, values := range answer.Header {
		h[name] = values
	}
	if _, typed := h["Content-Type"]; !typed {
		h["Content-Type"] = nil // none, rather than one that is guessed
	}
	announced := len(answer.Trailer)
	for name := range answer.Trailer {
		h["Trailer"] = append(h["Trailer"], name)
	}
	w.WriteHeader(answer.StatusCode)
	stream := answer.ContentLength < 0 || announced > 0
	if stream {
		if err := http.NewResponseController(w).Flush(); err != nil {
			return errors.Join(ErrStarted, err)
		}
	}
	if err := c.copy(w, answer.Body, stream); err != nil {
		return errors.Join(ErrStarted, err)
	}
	trailers(h, answer.Trailer, announced)
	return nil
}

// trailers sends what came after the body. Those that were not announced need a mark.
func trailers(h, came http.Header, announced int) {
	for name, values := range came {
		if len(came) != announced {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
}

// copy copies a body.
func (c *Copier) copy(w http.ResponseWriter, body io.Reader, stream bool) error {
	p, _ := c.buffers.Get().(*[bufferSize]byte)
	if p == nil {
		p = new([bufferSize]byte)
	}
	defer c.buffers.Put(p)
	control := http.NewResponseController(w)
	for {
		n, err := body.Read(p[:])
		if n > 0 {
			if _, err := w.Write(p[:n]); err != nil {
				return err
			}
			if stream && !errors.Is(err, io.EOF) {
				if err := control.Flush(); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Informational makes answers of the classes 1xx, such as early hints, pass to w as soon
// as they come. 100 (Continue) is left out: each hop sends its own.
func Informational(ctx context.Context, w http.ResponseWriter) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			if code == http.StatusContinue {
				return nil
			}
			h := w.Header()
			for name, values := range header {
				h[name] = values
			}
			w.WriteHeader(code)
			for name := range header {
				delete(h, name)
			}
			return nil
		},
	})
}

// upgrade turns both connections into one tunnel.
func (c *Copier) upgrade(w http.ResponseWriter, r *http.Request, answer *http.Response) error {
	there, ok := answer.Body.(io.ReadWriteCloser)
	if !ok {
		_ = answer.Body.Close() // it cannot be used
		return fault.New(fault.Internal, "api.relay", "the other side switched protocols on a connection that cannot be written")
	}
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = there.Close() // nobody reads it
		return &fault.Error{Code: fault.Invalid, Op: "api.relay", Msg: "this connection cannot be upgraded", Hint: "use HTTP/1.1", Err: err}
	}
	defer here.Close()  //nolint:errcheck // it has ended
	defer there.Close() //nolint:errcheck // it has ended
	_ = here.SetDeadline(time.Time{})
	head := http.Response{StatusCode: answer.StatusCode, ProtoMajor: 1, ProtoMinor: 1, Header: answer.Header}
	if err = head.Write(buffered); err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return errors.Join(ErrStarted, err)
	}
	stop := context.AfterFunc(r.Context(), func() { _, _ = here.Close(), there.Close() }) // the copies find out
	defer stop()
	tunnel(here, buffered, there)
	return nil
}

// tunnel copies both ways until either side ends.
func tunnel(here net.Conn, read io.Reader, there io.ReadWriteCloser) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(there, read) // either end may close at any time: that is no failure
		_ = there.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(here, there)
		_ = here.Close()
	})
	both.Wait()
}

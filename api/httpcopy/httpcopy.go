// Package httpcopy copies the answer of one HTTP hop to the next hop. It copies headers, body, trailers, informational
// (1xx) answers, and the data of upgraded connections.
//
// It owns the copying and flushing of answers. The caller sends the request and passes its answer to Copier.Relay. An
// upgraded connection has two goroutines, which end before Relay returns.
package httpcopy

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/fault"
)

// ErrStarted is wrapped by errors that occur after a part of the answer was sent. The caller must then abort the
// connection, so that the client sees that the answer is incomplete.
var ErrStarted = errors.New("the answer had begun")

// bufferSize is the size in bytes of a copy buffer.
const bufferSize = 32 << 10

// Copier forwards answers. The zero value is ready to use. It is safe for concurrent use.
type Copier struct{ buffers sync.Pool }

// Relay writes an answer to w and closes the body of the answer. r is the request that was answered, and requestBody is
// its body. If the length of the answer is unknown, Relay flushes after each write. An error wraps ErrStarted if a part
// of the answer was sent.
func (c *Copier) Relay(w http.ResponseWriter, r *http.Request, requestBody *Body, answer *http.Response) error {
	if answer.StatusCode == http.StatusSwitchingProtocols {
		there, ok := answer.Body.(io.ReadWriteCloser)
		if !ok {
			_ = answer.Body.Close() // it is not read
			return fault.New(fault.Corrupt, "api.relay", "the other side switched the protocol without a connection")
		}
		return c.upgrade(w, r, answer, there)
	}
	duplex, started := requestBody.duplex(w, r), false
	defer func() {
		if duplex && started { // if not started, the caller writes an error, and drain would send status 200 first
			requestBody.drain(w)
		}
	}()
	defer answer.Body.Close() //nolint:errcheck // it was read, or cannot be
	p, _ := c.buffers.Get().(*[bufferSize]byte)
	if p == nil {
		p = new([bufferSize]byte)
	}
	defer c.buffers.Put(p)
	read, ended, err := beginning(answer, p[:])
	if err != nil {
		return err
	}
	h := w.Header()
	for name, values := range answer.Header {
		h[name] = values
	}
	if _, typed := h["Content-Type"]; !typed {
		h["Content-Type"] = nil // otherwise net/http guesses the type
	}
	announced := len(answer.Trailer)
	for name := range answer.Trailer {
		h["Trailer"] = append(h["Trailer"], name)
	}
	started = true
	w.WriteHeader(answer.StatusCode)
	stream := answer.ContentLength < 0 || announced > 0
	if stream {
		if err := http.NewResponseController(w).Flush(); err != nil {
			return errors.Join(ErrStarted, err)
		}
	}
	if read > 0 {
		_, err = w.Write(p[:read])
	}
	if err == nil && !ended {
		err = c.copy(w, answer.Body, p, stream)
	}
	if err != nil {
		return errors.Join(ErrStarted, err)
	}
	trailers(h, answer.Trailer, announced)
	return nil
}

// beginning reads the body of answer into p and returns the number of bytes. It reads nothing if the body does not fit
// in p or has an unknown length. It returns an error if the connection fails, or ends before the first byte.
//
// If the connection ends after a part of the body, the received part is forwarded, as in Dapr. beginning then reduces
// the header Content-Length to the size of this part, and ended is true.
func beginning(answer *http.Response, p []byte) (n int, ended bool, err error) {
	if answer.ContentLength <= 0 || answer.ContentLength > int64(len(p)) {
		return 0, false, nil
	}
	n, err = io.ReadFull(answer.Body, p[:answer.ContentLength])
	switch {
	case err == nil:
	case errors.Is(err, io.ErrUnexpectedEOF) && n > 0:
		answer.Header["Content-Length"], ended = []string{strconv.Itoa(n)}, true
	case !errors.Is(err, io.EOF): // the answer to HEAD has a length and no body
		return 0, true, fault.Wrap(err, "api.relay", "the answer ended before its body")
	}
	return n, ended, nil
}

// trailers copies the received trailers to the header h. announced is the number of trailers that the answer has
// announced. If a different number was received, the names get the prefix http.TrailerPrefix, which net/http requires
// for trailers that were not announced.
func trailers(h, came http.Header, announced int) {
	for name, values := range came {
		if len(came) != announced {
			name = http.TrailerPrefix + name
		}
		h[name] = values
	}
}

// copy copies a body to w, with p as the buffer. If stream is true, it flushes each piece.
func (c *Copier) copy(w http.ResponseWriter, body io.Reader, p *[bufferSize]byte, stream bool) error {
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

// Informational returns the context for forwarding a request. With this context, informational answers (1xx) such as
// early hints are forwarded to w as soon as they arrive. clean removes headers from each informational answer. 100
// (Continue) is not forwarded, because each hop sends its own. Clients with HTTP/1.0 get no informational answers.
func Informational(w http.ResponseWriter, r *http.Request, clean func(http.Header)) context.Context {
	if !r.ProtoAtLeast(1, 1) {
		return r.Context()
	}
	return atmostonce.WithInformational(r.Context(), func(code int, header http.Header) error {
		if code == http.StatusContinue {
			return nil
		}
		clean(header)
		h := w.Header()
		final := maps.Clone(h)
		maps.Copy(h, header)
		w.WriteHeader(code)
		clear(h)
		maps.Copy(h, final)
		return nil
	})
}

// upgrade sends the head of answer to the client. It then copies data in both directions between the client and the
// other side, until one of them closes its connection.
func (c *Copier) upgrade(w http.ResponseWriter, r *http.Request, answer *http.Response,
	there io.ReadWriteCloser) error {
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = there.Close() // its data is not read
		return &fault.Error{Code: fault.Invalid, Op: "api.relay", Msg: "this connection cannot be upgraded",
			Hint: "use HTTP/1.1", Err: err}
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
	stop := context.AfterFunc(r.Context(), func() { _, _ = here.Close(), there.Close() }) // the copies then end
	defer stop()
	tunnel(here, buffered, there)
	return nil
}

// tunnel copies data in both directions until either side ends, and closes both sides.
func tunnel(here net.Conn, read io.Reader, there io.ReadWriteCloser) {
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(there, read) // either end may close at any time, so an error is no failure
		_ = there.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(here, there)
		_ = here.Close()
	})
	both.Wait()
}

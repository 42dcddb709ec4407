package atmostonce

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// link is a connection that carries one request at a time.
type link struct {
	conn      *counted
	host      string // host in a URL, with the port if the URL has one
	in        *bufio.Reader
	out       *bufio.Writer
	idleSince time.Time
}

func newLink(conn *counted, host string, t *http.Transport) *link {
	const size = 4 << 10
	return &link{conn: conn, host: host, in: bufio.NewReaderSize(conn, max(t.ReadBufferSize, size)),
		out: bufio.NewWriterSize(conn, max(t.WriteBufferSize, size))}
}

func (l *link) close() { _ = l.conn.Close() } // the error of Close does not matter

// write writes a request, and closes its body.
func (l *link) write(r *http.Request) error {
	err := r.Write(l.out)
	if err == nil {
		err = l.out.Flush()
	}
	return err
}

// exchange is one request and its answer on a connection. It is also the body of the answer.
type exchange struct {
	client *Client
	link   *link
	ctx    context.Context //nolint:containedctx // of the request, which lasts until its answer is read
	stop   func() bool     // stops watching ctx
	heads  heads
	answer *http.Response

	users   atomic.Int32 // users of the connection: the sender of the request body, and the reader of the answer
	spoilt  atomic.Bool  // the connection cannot be kept
	failure atomic.Pointer[error]

	body io.ReadCloser
	keep bool        // the server keeps the connection open after the answer
	read atomic.Bool // the body was read to its end or closed
}

// exchange sends r over l and returns the answer. If the context of r ends before the whole body of the answer is
// read, the connection is closed.
func (c *Client) exchange(l *link, r *http.Request) (answer *http.Response, sent bool, err error) {
	x := &exchange{client: c, link: l, ctx: r.Context()}
	l.conn.mark.Store(l.conn.written.Load())
	x.heads.begin(x.ctx, c.limits, c.transport.MaxResponseHeaderBytes)
	l.conn.heads.Store(&x.heads)
	x.stop = context.AfterFunc(x.ctx, l.close)
	if bodiless(r) {
		x.users.Store(1)
		err = l.write(r)
	} else {
		x.users.Store(2)
		go x.send(r)
	}
	if err == nil {
		err = x.receive(r)
	}
	if err != nil {
		if failure := x.failure.Load(); failure != nil {
			err = *failure // the connection was closed for this reason
		} else if refused := x.heads.failure(); refused != nil {
			err = refused // http.ReadResponse may have replaced this error
		}
		err = x.explain(err)
		x.heads.release()
		x.leave(false)
		return nil, l.conn.written.Load() > l.conn.mark.Load(), err
	}
	switch {
	case x.body != nil: // a tunnel
	case x.answer.Body == http.NoBody:
		x.finish(x.keep)
	default:
		x.body, x.answer.Body = x.answer.Body, x
	}
	return x.answer, true, nil
}

// receive reads the status and the headers of the answer to r. It passes earlier informational answers to the
// function that WithInformational has set.
func (x *exchange) receive(r *http.Request) error {
	defer x.link.conn.heads.Store(nil)
	for {
		answer, err := http.ReadResponse(x.link.in, r)
		if err != nil {
			return err
		}
		head, err := x.heads.next()
		if err != nil {
			return err
		}
		head.restore(answer.Header)
		switched := answer.StatusCode == http.StatusSwitchingProtocols
		if switched || answer.StatusCode/100 != 1 {
			x.answer = answer
			x.keep = !answer.Close && !r.Close && !switched && !(head.length && head.coding)
			if switched {
				x.body = io.NopCloser(x.link.in)
				answer.Body = &tunnel{x}
			}
			return check(r, answer)
		}
		if err := informational(x.ctx, answer.StatusCode, answer.Header); err != nil {
			return err
		}
	}
}

// send sends a request with a body. The answer may arrive before the whole body is sent.
func (x *exchange) send(r *http.Request) {
	body := &source{ReadCloser: r.Body}
	r = r.WithContext(x.ctx) // the caller's request keeps its own body
	r.Body = body
	err := x.link.write(r)
	if body.err != nil {
		err = body.err // the error that the body returned, without the wrapper of net/http
	}
	if err != nil {
		x.failure.Store(&err)
	}
	x.leave(err == nil)
}

// source is the body of a request. It records why reading failed.
type source struct {
	io.ReadCloser
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// leave ends the use of the connection by one of its users. The users are the sender of the request body, and the
// reader of the answer. Each of them must call leave once. If whole is false, the user has not sent or read everything,
// and leave closes the connection. When the last user leaves, leave returns the connection to the Client if the
// connection can be used again, and closes it if not.
func (x *exchange) leave(whole bool) {
	if !whole {
		x.spoilt.Store(true)
		x.link.close() // so that the other user of the connection ends too
	}
	if x.users.Add(-1) > 0 {
		return
	}
	if stopped := x.stop(); x.spoilt.Load() || !stopped || x.link.conn.deaf.Load() || x.link.in.Buffered() > 0 {
		x.link.close()
		return
	}
	x.client.put(x.link)
}

// explain returns why the context of the request has ended, if it has, and otherwise err.
func (x *exchange) explain(err error) error {
	if cause := context.Cause(x.ctx); cause != nil {
		return cause
	}
	return err
}

// Read reads the body of the answer.
func (x *exchange) Read(p []byte) (int, error) {
	n, err := x.body.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		err = checkTrailer(x.answer, x.client.limits.fields(), err)
		x.finish(x.keep)
	default:
		err = x.explain(err)
		x.finish(false)
	}
	return n, err
}

// Close ends the reading of the body. If the body was not read to its end, Close closes the connection. Another
// goroutine may call Read at the same time.
func (x *exchange) Close() error {
	x.finish(false)
	return nil
}

func (x *exchange) finish(whole bool) {
	if x.read.CompareAndSwap(false, true) {
		x.heads.release()
		x.leave(whole)
	}
}

// tunnel is the body of an answer that has changed the protocol of the connection.
type tunnel struct{ *exchange }

// Write writes to the connection.
func (t *tunnel) Write(p []byte) (int, error) { return t.link.conn.Conn.Write(p) }

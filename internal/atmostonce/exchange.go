package atmostonce

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"time"
)

// link is a connection that carries one request at a time.
type link struct {
	conn      *counted
	host      string // as in URLs
	in        *bufio.Reader
	out       *bufio.Writer
	maxHead   int64
	head      int64 // bytes that the head of an answer may still have
	idleSince time.Time
}

func newLink(conn *counted, host string, t *http.Transport) *link {
	const size = 4 << 10
	l := &link{conn: conn, host: host, maxHead: t.MaxResponseHeaderBytes}
	if l.maxHead <= 0 {
		l.maxHead = defaultMaxHead
	}
	l.in = bufio.NewReaderSize(l, max(t.ReadBufferSize, size))
	l.out = bufio.NewWriterSize(conn, max(t.WriteBufferSize, size))
	return l
}

func (l *link) close() { _ = l.conn.Close() } // nothing is expected of it any more

var errHeadTooLong = errors.New("the headers of the answer are too long")

// Read reads from the connection. It limits the size of the head of an answer.
func (l *link) Read(p []byte) (int, error) {
	if l.head <= 0 {
		return 0, errHeadTooLong
	}
	n, err := l.conn.Read(p[:min(int64(len(p)), l.head)])
	l.head -= int64(n)
	return n, err
}

// write writes a request, and closes its body.
func (l *link) write(r *http.Request) error {
	err := r.Write(l.out)
	if err == nil {
		err = l.out.Flush()
	}
	return err
}

// answer reads the status and the headers of the answer to r. It passes answers with a 1xx status to the httptrace
// hook.
func (l *link) answer(r *http.Request) (*http.Response, error) {
	for l.head = l.maxHead; ; {
		answer, err := http.ReadResponse(l.in, r)
		if err != nil || answer.StatusCode == http.StatusSwitchingProtocols || answer.StatusCode/100 != 1 {
			l.head = math.MaxInt64
			return answer, err
		}
		if trace := httptrace.ContextClientTrace(r.Context()); trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(answer.StatusCode, textproto.MIMEHeader(answer.Header)); err != nil {
				return nil, err
			}
			l.head = l.maxHead
		}
	}
}

// exchange is one request and its answer on a connection. It is also the body of the answer.
type exchange struct {
	client *Client
	link   *link
	ctx    context.Context //nolint:containedctx // of the request, which lasts until its answer is read
	stop   func() bool     // stops watching ctx

	users   atomic.Int32 // of the connection: the answer, and the request while its body is sent
	spoilt  atomic.Bool  // the connection cannot be kept
	failure atomic.Pointer[error]

	body io.ReadCloser
	keep bool        // the server keeps the connection open after the answer
	read atomic.Bool // to the end, or closed
}

// exchange sends r over l and returns the answer. If the context of r ends before the body of the answer is read, the
// connection is closed.
func (c *Client) exchange(l *link, r *http.Request) (answer *http.Response, sent bool, err error) {
	x := &exchange{client: c, link: l, ctx: r.Context()}
	l.conn.mark.Store(l.conn.written.Load())
	x.stop = context.AfterFunc(x.ctx, l.close)
	if bodiless(r) {
		x.users.Store(1)
		err = l.write(r)
	} else {
		x.users.Store(2)
		go x.send(r)
	}
	if err == nil {
		answer, err = l.answer(r)
	}
	if err != nil {
		if failure := x.failure.Load(); failure != nil {
			err = *failure // the connection was closed for this reason
		}
		err = x.explain(err)
		x.leave(false)
		return nil, l.conn.written.Load() > l.conn.mark.Load(), err
	}
	x.keep = !answer.Close && !r.Close && answer.StatusCode != http.StatusSwitchingProtocols
	switch {
	case switches(answer):
		x.body = io.NopCloser(l.in)
		answer.Body = &tunnel{x}
	case answer.Body == http.NoBody:
		x.leave(x.keep)
	default:
		x.body, answer.Body = answer.Body, x
	}
	return answer, true, nil
}

// switches reports whether an answer changes the protocol of the connection.
func switches(answer *http.Response) bool {
	return answer.StatusCode == http.StatusSwitchingProtocols && answer.Header.Get("Upgrade") != "" &&
		strings.Contains(strings.ToLower(strings.Join(answer.Header["Connection"], ",")), "upgrade")
}

// send sends a request with a body. The answer may arrive before the whole body is sent.
func (x *exchange) send(r *http.Request) {
	body := &source{ReadCloser: r.Body}
	r = r.WithContext(x.ctx) // the body of the original stays what it is
	r.Body = body
	err := x.link.write(r)
	if body.err != nil {
		err = body.err // without the type that net/http wraps it in
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

// leave is called once by each user of the connection: the sender of the request body, and the reader of the answer.
// The parameter whole is true if the user has sent or read everything. If it is false, leave closes the connection at
// once. Otherwise the last call of leave returns the connection to the client, if it can be used again.
func (x *exchange) leave(whole bool) {
	if !whole {
		x.spoilt.Store(true)
		x.link.close() // the other use ends, too
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
		x.leave(whole)
	}
}

// tunnel is the body of an answer that has changed the protocol of the connection.
type tunnel struct{ *exchange }

// Write writes to the connection.
func (t *tunnel) Write(p []byte) (int, error) { return t.link.conn.Conn.Write(p) }

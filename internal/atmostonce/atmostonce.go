// Package atmostonce sends an HTTP request at most once. If the request fails, the package reports whether any of it
// may have left this process.
//
// net/http alone does not guarantee this. If an idle connection turns out to be closed, it sends a request with a safe
// method again, although the server may have executed the first one. This package prevents that repetition. It also
// checks an idle connection before each request, and does not use one that the other side has closed.
//
// The package owns this rule. It also has a client for HTTP/1.1 without TLS that applies the rule at lower cost than
// http.Transport. It has no goroutines, except those of Client.
package atmostonce

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"syscall"
)

// DialFunc opens a connection, as in http.Transport.DialContext.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer wraps dial. The transport given to RoundTrip needs it as its DialContext.
func Dialer(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &counted{Conn: c}, nil
	}
}

// counted is a connection that counts the bytes written to it. It also hides some failed writes.
//
// A server may answer and close the connection before it has read the whole request. The next write then fails, and
// net/http would return the error of this write instead of the answer. So counted reports such a write as successful
// if a part of the request has been written.
type counted struct {
	net.Conn
	written atomic.Int64
	mark    atomic.Int64 // written before the request in progress
	deaf    atomic.Bool
}

func (c *counted) Write(b []byte) (int, error) {
	if c.deaf.Load() {
		return len(b), nil
	}
	c.written.Add(int64(len(b))) // before the write, for readers in other goroutines
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n - len(b)))
	if err != nil && c.written.Load() > c.mark.Load() &&
		(errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)) {
		c.deaf.Store(true)
		return len(b), nil
	}
	return n, err
}

// ErrRepeat is the error of a request that net/http was about to repeat.
var ErrRepeat = errors.New("the connection was closed before an answer came")

// RoundTrip sends r over t. After an error, sent tells whether any of r may have left this process. If sent is false,
// the server has received nothing of r. The httptrace hooks in the context of r are called too.
func RoundTrip(t http.RoundTripper, r *http.Request) (answer *http.Response, sent bool, err error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	s := &sending{cancel: cancel}
	s.hooks = httptrace.ClientTrace{GotConn: s.gotConn, WroteHeaders: s.wroteHeaders}
	answer, err = t.RoundTrip(r.WithContext(httptrace.WithClientTrace(ctx, &s.hooks)))
	if err == nil {
		return answer, true, nil // the context is needed until the body is read, and ends with its parent
	}
	sent = s.began(r.Context())
	if errors.Is(context.Cause(ctx), ErrRepeat) && r.Context().Err() == nil {
		err = ErrRepeat
	}
	cancel(nil)
	return nil, sent, err
}

// sending tracks one request.
type sending struct {
	hooks  httptrace.ClientTrace
	cancel context.CancelCauseFunc

	mu      sync.Mutex // guards what follows
	conn    *counted   // nil before there is one, and over HTTP/2, where requests share it
	before  int64      // written on conn by earlier requests
	shared  bool
	headers bool
}

func (s *sending) gotConn(info httptrace.GotConnInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil && s.conn.written.Load() > s.before {
		s.cancel(ErrRepeat)
		_ = info.Conn.Close() // nothing has been written on it, and nothing will be
		return
	}
	s.conn, s.shared = unwrap(info.Conn)
	if s.conn != nil {
		s.before = s.conn.written.Load()
		s.conn.mark.Store(s.before)
		if info.Reused && ended(s.conn.Conn) {
			_ = info.Conn.Close()         // so that nothing is written on it
			s.conn, s.shared = nil, false // the TLS close_notify that Close writes is not part of the request
		}
	}
}

// unwrap returns the counting connection below c. shared is true if c may carry several requests at a time, as with
// HTTP/2. conn is then nil.
func unwrap(c net.Conn) (conn *counted, shared bool) {
	if t, ok := c.(*tls.Conn); ok {
		if t.ConnectionState().NegotiatedProtocol == "h2" {
			return nil, true
		}
		c = t.NetConn()
	}
	conn, ok := c.(*counted)
	return conn, !ok
}

func (s *sending) wroteHeaders() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.headers = true
}

// began reports whether any of the request may have been sent. If ctx has ended, it returns true for every request
// with a connection of its own, because net/http may still be writing.
func (s *sending) began(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.conn == nil:
		return s.shared && s.headers
	case ctx.Err() != nil:
		return true
	}
	return s.headers && s.conn.written.Load() > s.before
}

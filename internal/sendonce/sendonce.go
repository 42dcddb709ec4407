// Package sendonce sends an HTTP request at most once, and tells whether any of it may
// have left this process.
//
// It owns that knowledge alone: net/http keeps connections, and when one turns out to be
// closed it repeats requests of safe verbs although the other side may have served the
// first. Whoever must know what was surely not done cannot have that. And since a kept
// connection of HTTP/1.1 may have ended before net/http has noticed, it looks at it before it is
// used. The package must never know what is sent, or whom it is for. It has no goroutines.
package sendonce

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

// DialFunc opens a connection, as http.Transport asks for it.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Dialer wraps dial for the DialContext of a transport that RoundTrip is used with.
func Dialer(dial DialFunc) DialFunc {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &counted{Conn: c}, nil
	}
}

// counted counts what is written.
//
// A server may answer before it has read a request to its end, and close the connection.
// net/http gives up when the next write fails, although the answer may be there to be read.
// So once a part of the request is written, what cannot be written any more is dropped: the
// answer, or the end of the connection, tells how it went.
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
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	if err != nil && c.written.Load() > c.mark.Load() && (errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)) {
		c.deaf.Store(true)
		return len(b), nil
	}
	return n, err
}

// ErrRepeat is the error of a request that net/http was about to send a second time.
var ErrRepeat = errors.New("the connection was closed before an answer came")

// RoundTrip sends r over t. If it fails, sent reports whether anything of r may have left:
// when it is false, r surely was not received and its body was not sent. The hooks that
// the context of r may carry (httptrace) are called, too.
func RoundTrip(t http.RoundTripper, r *http.Request) (answer *http.Response, sent bool, err error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	s := &sending{cancel: cancel}
	s.hooks = httptrace.ClientTrace{GotConn: s.gotConn, WroteHeaders: s.wroteHeaders}
	answer, err = t.RoundTrip(r.WithContext(httptrace.WithClientTrace(ctx, &s.hooks)))
	if err == nil {
		return answer, true, nil // the context lives as long as the body, and ends with its parent
	}
	sent = s.began(r.Context())
	if errors.Is(context.Cause(ctx), ErrRepeat) && r.Context().Err() == nil {
		err = ErrRepeat
	}
	cancel(nil)
	return nil, sent, err
}

// sending follows one request.
type sending struct {
	hooks  httptrace.ClientTrace
	cancel context.CancelCauseFunc

	mu      sync.Mutex // guards what follows
	conn    *counted   // nil before there is one, and over HTTP/2, where requests share it
	before  int64      // written on conn by others
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
			s.conn, s.shared = nil, false // a farewell of TLS that Close writes is no part of the request
		}
	}
}

// unwrap finds the counting connection; over HTTP/2 there is nothing to count.
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

// began reports whether anything may have been sent. When the call was given up, net/http
// may still be writing: then a connection is enough.
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

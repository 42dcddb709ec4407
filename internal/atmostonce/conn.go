package atmostonce

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
)

// DialFunc opens a connection, as in http.Transport.DialContext.
type DialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// Transport prepares t for RoundTrip and Client, and returns t. The caller must have set t.DialContext. If
// t.MaxResponseHeaderBytes is 0, Transport sets it to DefaultMaxHead.
func Transport(t *http.Transport) *http.Transport {
	if t.MaxResponseHeaderBytes <= 0 {
		t.MaxResponseHeaderBytes = DefaultMaxHead
	}
	http1 := t.Protocols == nil || t.Protocols.HTTP1()
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &counted{Conn: c, http1: http1}, nil
	}
	if http1 {
		proxy := proxyFunc(t.Proxy)
		if proxy != nil {
			t.Proxy = proxy.untunneled
		}
		t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialTLS(ctx, t, proxy, network, addr)
		}
	}
	return t
}

var errHandshake = errors.New("the TLS handshake took too long")

// dialTLS opens a TLS connection in the same way as the transport t. Reading from the connection also checks the heads
// of answers, unless the server speaks HTTP/2.
func dialTLS(ctx context.Context, t *http.Transport, proxy proxyFunc, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	raw, err := proxy.dial(ctx, t, network, addr)
	if err != nil {
		return nil, err
	}
	if t.TLSHandshakeTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t.TLSHandshakeTimeout, errHandshake)
		defer cancel()
	}
	c := tls.Client(raw, tlsConfig(t, host))
	if err := c.HandshakeContext(ctx); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		_ = raw.Close() // the error of Close does not matter
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol == "h2" {
		return c, nil
	}
	return &secured{Conn: c}, nil
}

// tlsConfig returns the TLS settings for a host.
func tlsConfig(t *http.Transport, host string) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.TLSClientConfig != nil {
		config = t.TLSClientConfig.Clone()
	}
	if config.ServerName == "" {
		config.ServerName = host
	}
	return config
}

// watch checks what is read from a connection. It passes the bytes to the heads of the current request.
type watch struct{ heads atomic.Pointer[heads] }

// read reads from c, and checks the heads of answers. After a failed check, every further read returns the same error,
// because net/http may ignore a single error.
func (w *watch) read(c net.Conn, p []byte) (n int, err error) {
	if err := w.heads.Load().failure(); err != nil {
		return 0, err
	}
	n, err = c.Read(p)
	if h := w.heads.Load(); h != nil && n > 0 {
		if err := h.take(p[:n]); err != nil {
			return 0, err
		}
	}
	return n, err
}

// secured is a connection that carries HTTP/1 over TLS.
type secured struct {
	*tls.Conn
	watch
}

func (s *secured) Read(p []byte) (int, error) { return s.read(s.Conn, p) }

// counted is a connection that counts the bytes written to it. It also hides some failed writes.
//
// A server may answer and close the connection before it has read the whole request. The next write then fails, and
// net/http would return the error of this write instead of the answer. So counted reports such a write as successful
// if a part of the request has been written.
type counted struct {
	net.Conn
	watch
	http1   bool // false = the connection carries HTTP/2 without TLS
	written atomic.Int64
	mark    atomic.Int64 // bytes that were written before the request in progress
	deaf    atomic.Bool
	spoilt  atomic.Bool // the connection must not be used for another request
}

func (c *counted) Read(p []byte) (int, error) { return c.read(c.Conn, p) }

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

// unwrap returns the counted connection below c, and the watcher that checks the heads of answers on c. The watcher is
// nil if these heads cannot be checked. If several requests may use c at the same time, as over HTTP/2, shared is true
// and conn is nil.
func unwrap(c net.Conn) (conn *counted, watcher *watch, shared bool) {
	switch t := c.(type) {
	case *secured:
		watcher, c = &t.watch, t.NetConn()
	case *tls.Conn:
		if t.ConnectionState().NegotiatedProtocol == "h2" {
			return nil, nil, true
		}
		c = t.NetConn()
	case *counted:
		if !t.http1 {
			return nil, nil, true
		}
		watcher = &t.watch
	}
	if proxy, ok := c.(*tls.Conn); ok { // TLS within the TLS of a proxy
		c = proxy.NetConn()
	}
	conn, ok := c.(*counted)
	return conn, watcher, !ok
}

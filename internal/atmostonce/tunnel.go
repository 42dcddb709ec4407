package atmostonce

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// tunnelTime bounds how long an HTTP proxy may take to open a tunnel, as in net/http.
const tunnelTime = time.Minute

var errTunnel = errors.New("the proxy took too long to open a tunnel")

// proxyFunc chooses the proxy of a request, as in http.Transport.Proxy.
type proxyFunc func(*http.Request) (*url.URL, error)

// tunnels reports whether dialTLS opens the tunnel of a request through this proxy. net/http would open it, too, but
// then the heads of the answers could not be watched. It still does so for SOCKS.
func tunnels(proxy *url.URL, err error) bool {
	return err == nil && proxy != nil && (proxy.Scheme == "http" || proxy.Scheme == "https")
}

// untunneled returns the proxies that net/http has to use itself.
func (f proxyFunc) untunneled(r *http.Request) (*url.URL, error) {
	u, err := f(r)
	if r.URL.Scheme == "https" && tunnels(u, err) {
		return nil, nil
	}
	return u, err
}

// dial opens a connection to addr for TLS, through the proxy for that address if there is one.
func (f proxyFunc) dial(ctx context.Context, t *http.Transport, network, addr string) (net.Conn, error) {
	if f == nil {
		return t.DialContext(ctx, network, addr)
	}
	proxy, err := f(&http.Request{URL: &url.URL{Scheme: "https", Host: addr}})
	if !tunnels(proxy, err) {
		return t.DialContext(ctx, network, addr)
	}
	port := proxy.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[proxy.Scheme]
	}
	raw, err := t.DialContext(ctx, network, net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("the proxy cannot be reached: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, tunnelTime, errTunnel)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // ends what waits for the proxy
	c, err := openTunnel(ctx, t, raw, proxy, addr)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close() // nothing is expected of it any more
		return nil, err
	}
	return c, nil
}

// openTunnel asks a proxy for a tunnel to addr. The parameter raw is a connection to the proxy.
func openTunnel(ctx context.Context, t *http.Transport, raw net.Conn, proxy *url.URL, addr string) (net.Conn, error) {
	c := raw
	if proxy.Scheme == "https" {
		config := tlsConfig(t, proxy.Hostname())
		config.NextProtos = nil // it must speak HTTP/1
		secured := tls.Client(raw, config)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, err
		}
		c = secured
	}
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: addr}, Host: addr, Header: http.Header{}}
	if user := proxy.User; user != nil {
		password, _ := user.Password()
		r.Header["Proxy-Authorization"] = []string{"Basic " +
			base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password))}
	}
	if err := r.Write(c); err != nil {
		return nil, err
	}
	in := bufio.NewReader(&io.LimitedReader{R: c, N: t.MaxResponseHeaderBytes})
	answer, err := http.ReadResponse(in, r)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the proxy opens no tunnel: %w", err)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the proxy opens no tunnel: it answered %d", answer.StatusCode)
	case in.Buffered() > 0:
		return nil, errors.New("the proxy sent bytes before the server can have sent any")
	}
	return c, nil
}

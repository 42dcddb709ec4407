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
	"strings"
	"time"

	"golang.org/x/net/proxy"
)

// tunnelTime bounds how long a proxy may take to open a tunnel, as in net/http.
const tunnelTime = time.Minute

var errTunnel = errors.New("the proxy took too long to open a tunnel")

// proxyFunc chooses the proxy of a request, as in http.Transport.Proxy.
type proxyFunc func(*http.Request) (*url.URL, error)

// ports has the default port of each kind of proxy that dialTLS supports, by the scheme of the proxy's URL.
var ports = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}

// tunnels reports whether dialTLS opens the tunnel through a proxy. The parameters are the results of a proxyFunc. If
// net/http opened the tunnel, dialTLS could not check the heads of answers.
func tunnels(proxy *url.URL, err error) bool {
	return err == nil && proxy != nil && ports[proxy.Scheme] != ""
}

// untunneled returns the proxy that net/http must use for r. It returns nil if dialTLS opens a tunnel through the
// proxy instead.
func (f proxyFunc) untunneled(r *http.Request) (*url.URL, error) {
	u, err := f(r)
	if r.URL.Scheme == "https" && tunnels(u, err) {
		return nil, nil
	}
	return u, err
}

// dial opens a connection to addr, on which the caller then performs the TLS handshake. If addr must be reached through
// a proxy of a supported kind, the connection is a tunnel through this proxy.
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
		port = ports[proxy.Scheme]
	}
	raw, err := t.DialContext(ctx, network, net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("the proxy cannot be reached: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, tunnelTime, errTunnel)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() }) // unblocks reads from and writes to the proxy
	open := openTunnel
	if strings.HasPrefix(proxy.Scheme, "socks5") {
		open = openSOCKS
	}
	c, err := open(ctx, t, raw, proxy, addr)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = raw.Close() // the error of Close does not matter
		return nil, err
	}
	return c, nil
}

// openSOCKS requests a tunnel to addr from a SOCKS 5 proxy. The proxy resolves the name of the host. The parameter raw
// is a connection to the proxy.
func openSOCKS(ctx context.Context, _ *http.Transport, raw net.Conn, at *url.URL, addr string) (net.Conn, error) {
	var user *proxy.Auth
	if at.User != nil {
		password, _ := at.User.Password()
		user = &proxy.Auth{User: at.User.Username(), Password: password}
	}
	dialer, err := proxy.SOCKS5("tcp", at.Host, user, dialed{raw})
	if err == nil {
		_, err = dialer.(proxy.ContextDialer).DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("the proxy opens no tunnel: %w", err)
	}
	return raw, nil
}

// dialed is a proxy.ContextDialer with one connection, which is open already.
type dialed struct{ net.Conn }

// Dial returns the connection.
func (d dialed) Dial(string, string) (net.Conn, error) { return d.Conn, nil }

// DialContext returns the connection.
func (d dialed) DialContext(context.Context, string, string) (net.Conn, error) { return d.Conn, nil }

// openTunnel requests a tunnel to addr from an HTTP proxy. The parameter raw is a connection to the proxy.
func openTunnel(ctx context.Context, t *http.Transport, raw net.Conn, proxy *url.URL, addr string) (net.Conn, error) {
	c := raw
	if proxy.Scheme == "https" {
		config := tlsConfig(t, proxy.Hostname())
		config.NextProtos = nil // the proxy must speak HTTP/1
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

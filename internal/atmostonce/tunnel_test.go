package atmostonce_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/internal/atmostonce"
)

// TestAnswers_ThroughTunnelsAreWatched checks that the heads of answers are checked before net/http parses them, even
// if TLS passes through the tunnel of a proxy.
func TestAnswers_ThroughTunnelsAreWatched(t *testing.T) {
	var answer, status, authorization atomic.Value
	server := serving(t, true, func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+answer.Load().(string)+"Content-Length: 0\r\n\r\n")
		_, _ = in.ReadByte()
	})
	for _, secured := range []bool{false, true} {
		status.Store("200 OK")
		proxy, err := url.Parse(serving(t, secured, func(c net.Conn, in *bufio.Reader) {
			r, err := http.ReadRequest(in)
			if err != nil || r.Method != http.MethodConnect {
				return
			}
			authorization.Store(r.Header.Get("Proxy-Authorization"))
			_, _ = io.WriteString(c, "HTTP/1.1 "+status.Load().(string)+"\r\n\r\n")
			to, err := net.Dial("tcp", r.Host)
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(to, in); _ = to.Close() }()
			_, _ = io.Copy(c, to)
		}))
		if err != nil {
			t.Fatal(err)
		}
		proxy.User = url.UserPassword("user", "word")
		send := func() (*http.Response, bool, error) {
			transport := atmostonce.Transport(&http.Transport{DialContext: new(net.Dialer).DialContext,
				Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})
			t.Cleanup(transport.CloseIdleConnections)
			return atmostonce.RoundTrip(transport, request(t, server, ""), atmostonce.Limits{})
		}
		answer.Store("Connection: close, X-Hop\r\n")
		got, _, err := send()
		if err != nil {
			t.Fatal(err)
		}
		_ = got.Body.Close()
		if names := got.Header["Connection"]; !slices.Equal(names, []string{"close, X-Hop"}) ||
			authorization.Load() != "Basic dXNlcjp3b3Jk" {
			t.Errorf("secured %t: the header Connection is %q, the proxy got %q", secured, names, authorization.Load())
		}
		answer.Store(numbered(1000))
		_, sent, err := send()
		if refused, _ := errors.AsType[*atmostonce.BadAnswer](err); refused == nil || !sent ||
			!strings.Contains(refused.Reason, "more than 1000") {
			t.Errorf("secured %t: sent %t, %v", secured, sent, err)
		}
		for _, bad := range []string{"407 no", "200 OK\r\nA: " + strings.Repeat("a", 64<<10), "200 OK\r\n\r\nx"} {
			status.Store(bad)
			if _, sent, err := send(); err == nil || sent {
				t.Errorf("secured %t, the proxy answers %.20q: sent %t, %v", secured, bad, sent, err)
			}
		}
	}
}

// socks serves a SOCKS 5 proxy. It answers each request with code, and opens a tunnel if that is 0. It stores the user
// and the password that it gets.
func socks(t *testing.T, code byte, user *atomic.Value) *url.URL {
	t.Helper()
	proxy, err := url.Parse(serving(t, false, func(c net.Conn, in *bufio.Reader) {
		take := func(n byte) []byte {
			b := make([]byte, n)
			_, _ = io.ReadFull(in, b)
			return b
		}
		take(take(2)[1]) // the methods that the client can use
		_, _ = c.Write([]byte{5, 2})
		name := take(take(2)[1])
		word := take(take(1)[0])
		user.Store(string(name) + ":" + string(word))
		_, _ = c.Write([]byte{1, 0})
		to := take(10) // a version, a command, 0, the kind of an IPv4 address, the address and the port
		_, _ = c.Write([]byte{5, code, 0, 1, 0, 0, 0, 0, 0, 0})
		if code != 0 {
			return
		}
		server, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: to[4:8], Port: int(to[8])<<8 | int(to[9])})
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(server, in); _ = server.Close() }()
		_, _ = io.Copy(c, server)
	}))
	if err != nil {
		t.Fatal(err)
	}
	proxy.Scheme, proxy.User = "socks5", url.UserPassword("user", "word")
	return proxy
}

// TestAnswers_ThroughSOCKSAreWatched checks that the heads of answers are checked before net/http parses them, even if
// TLS passes through a SOCKS proxy.
func TestAnswers_ThroughSOCKSAreWatched(t *testing.T) {
	var answer, user atomic.Value
	server := serving(t, true, func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+answer.Load().(string)+"Content-Length: 0\r\n\r\n")
		_, _ = in.ReadByte()
	})
	send := func(code byte) (*http.Response, bool, error) {
		transport := atmostonce.Transport(&http.Transport{DialContext: new(net.Dialer).DialContext,
			Proxy: http.ProxyURL(socks(t, code, &user)), TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})
		t.Cleanup(transport.CloseIdleConnections)
		return atmostonce.RoundTrip(transport, request(t, server, ""), atmostonce.Limits{})
	}
	answer.Store("Connection: close, X-Hop\r\n")
	got, _, err := send(0)
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Body.Close()
	if names := got.Header["Connection"]; !slices.Equal(names, []string{"close, X-Hop"}) || user.Load() != "user:word" {
		t.Errorf("the header Connection is %q, the proxy got %q", names, user.Load())
	}
	answer.Store(numbered(1000))
	_, sent, err := send(0)
	if refused, _ := errors.AsType[*atmostonce.BadAnswer](err); refused == nil || !sent ||
		!strings.Contains(refused.Reason, "more than 1000") {
		t.Errorf("sent %t, %v", sent, err)
	}
	if _, sent, err := send(5); err == nil || sent || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("the proxy refuses: sent %t, %v", sent, err)
	}
}

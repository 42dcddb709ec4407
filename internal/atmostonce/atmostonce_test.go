package atmostonce_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/atmostonce"
)

// unnoticed is a connection whose reader does not notice the end of the connection until released is closed. This
// simulates a reader that has not been scheduled yet.
type unnoticed struct {
	net.Conn
	ended    func()
	released chan struct{}
}

func (c *unnoticed) NetConn() net.Conn { return c.Conn }

func (c *unnoticed) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.ended()
		<-c.released
	}
	return n, err
}

// kept returns a transport with one idle connection to a server that has stopped. second makes the second connection.
// The server closes without a TLS close_notify.
func kept(t *testing.T, secure bool, second atmostonce.DialFunc) (transport *http.Transport, url string) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var raw atomic.Pointer[net.TCPConn]
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		raw.Store(c.(*net.TCPConn))
		return ctx
	}
	if secure {
		server.StartTLS()
	} else {
		server.Start()
	}
	released, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(released) })
	var once sync.Once
	dials := 0
	transport = atmostonce.Transport(&http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dials++; dials > 1 {
				return second(ctx, network, addr)
			}
			var d net.Dialer
			c, err := d.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &unnoticed{Conn: c, ended: func() { once.Do(func() { close(ended) }) }, released: released}, nil
		}})
	t.Cleanup(transport.CloseIdleConnections)
	answer, sent, err := atmostonce.RoundTrip(transport, request(t, server.URL, ""), atmostonce.Limits{})
	if err != nil || !sent {
		t.Fatalf("sent %t: %v", sent, err)
	}
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	_ = raw.Load().CloseWrite()
	<-ended // the kernel has noticed the end
	t.Cleanup(server.Close)
	return transport, server.URL
}

// request returns a GET, or a POST with a body that can be read only once.
func request(t *testing.T, url, body string) *http.Request {
	t.Helper()
	method, reader := http.MethodGet, io.Reader(nil)
	if body != "" {
		method, reader = http.MethodPost, io.NopCloser(strings.NewReader(body))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a request without a server would wait for ever
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, url, reader)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTransport_EndedConnectionIsNotUsed(t *testing.T) {
	for name, body := range map[string]string{"GET": "", "POST": "text"} {
		for scheme, secure := range map[string]bool{"http": false, "https": true} {
			for fate, second := range map[string]atmostonce.DialFunc{
				"refused": func(context.Context, string, string) (net.Conn, error) {
					return nil, syscall.ECONNREFUSED
				},
				"no answer before the call ends": func(ctx context.Context, _, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				},
			} {
				t.Run(name+" "+scheme+" "+fate, func(t *testing.T) {
					transport, url := kept(t, secure, second)
					r := request(t, url, body)
					if fate != "refused" {
						ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
						defer cancel()
						r = r.WithContext(ctx)
					}
					answer, sent, err := atmostonce.RoundTrip(transport, r, atmostonce.Limits{})
					if err == nil {
						_ = answer.Body.Close()
						t.Fatal("a server that has gone answers")
					}
					if sent {
						t.Errorf("the request may have been received: %v", err)
					}
				})
			}
		}
	}
}

// TestTransport_RequestWithoutBodyUsesNewConnection checks that a request that can be repeated goes over a new
// connection.
func TestTransport_RequestWithoutBodyUsesNewConnection(t *testing.T) {
	for scheme, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(scheme, func(t *testing.T) {
			transport, url := kept(t, secure, new(net.Dialer).DialContext)
			answer, sent, err := atmostonce.RoundTrip(transport, request(t, url, ""), atmostonce.Limits{})
			if err != nil || !sent {
				t.Fatalf("sent %t: %v", sent, err)
			}
			_ = answer.Body.Close()
		})
	}
}

func TestTransport_NoAnswerMayHaveBeenReceived(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = c.Close()
		}
	}))
	defer server.Close()
	transport := atmostonce.Transport(&http.Transport{DialContext: new(net.Dialer).DialContext})
	defer transport.CloseIdleConnections()
	for _, body := range []string{"", "text"} {
		answer, sent, err := atmostonce.RoundTrip(transport, request(t, server.URL, body), atmostonce.Limits{})
		if err == nil {
			_ = answer.Body.Close()
			t.Fatal("a server that closes answers")
		}
		if !sent {
			t.Errorf("the request %q was received: %v", body, err)
		}
	}
}

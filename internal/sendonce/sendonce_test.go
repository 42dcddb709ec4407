package sendonce_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/sendonce"
)

// unnoticed is a connection whose reader does not learn of its end before told is closed, as
// if it had not been scheduled yet.
type unnoticed struct {
	net.Conn
	ended func()
	told  chan struct{}
}

func (c *unnoticed) NetConn() net.Conn { return c.Conn }

func (c *unnoticed) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.ended()
		<-c.told
	}
	return n, err
}

// kept is a transport with one idle connection to a server that has gone since.
func kept(t *testing.T) (transport *http.Transport, url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	told, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(told) })
	var once sync.Once
	transport = &http.Transport{DialContext: sendonce.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &unnoticed{Conn: c, ended: func() { once.Do(func() { close(ended) }) }, told: told}, nil
	})}
	t.Cleanup(transport.CloseIdleConnections)
	answer, sent, err := sendonce.RoundTrip(transport, request(t, server.URL, ""))
	if err != nil || !sent {
		t.Fatalf("sent %t: %v", sent, err)
	}
	if _, err := io.ReadAll(answer.Body); err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	server.Close()
	<-ended // the kernel knows
	return transport, server.URL
}

// request is a GET, or a POST of a body that cannot be had twice.
func request(t *testing.T, url, body string) *http.Request {
	t.Helper()
	method, reader := http.MethodGet, io.Reader(nil)
	if body != "" {
		method, reader = http.MethodPost, io.NopCloser(strings.NewReader(body))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // what is sent to nobody would wait for ever
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, url, reader)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNothingIsSentOnAConnectionThatHasEnded(t *testing.T) {
	for name, body := range map[string]string{"GET": "", "POST": "text"} {
		t.Run(name, func(t *testing.T) {
			transport, url := kept(t)
			answer, sent, err := sendonce.RoundTrip(transport, request(t, url, body))
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

func TestWhatTheServerDoesNotAnswerMayHaveBeenReceived(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = c.Close()
		}
	}))
	defer server.Close()
	transport := &http.Transport{DialContext: sendonce.Dialer(new(net.Dialer).DialContext)}
	defer transport.CloseIdleConnections()
	for _, body := range []string{"", "text"} {
		answer, sent, err := sendonce.RoundTrip(transport, request(t, server.URL, body))
		if err == nil {
			_ = answer.Body.Close()
			t.Fatal("a server that closes answers")
		}
		if !sent {
			t.Errorf("the request %q was received: %v", body, err)
		}
	}
}

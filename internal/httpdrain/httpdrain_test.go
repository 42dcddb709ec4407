package httpdrain_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/httpdrain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve serves h until the end of the test, and returns its drain and its address.
func serve(t *testing.T, h http.Handler) (*httpdrain.Drain, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: h}
	drain := httpdrain.Attach(server)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return drain, l.Addr().String()
}

func connect(t *testing.T, address, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

const get = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

func TestShutdown_WaitsForRequestsAndEndsUnusedConnections(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	drain, at := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-release
		_, _ = io.WriteString(w, "done")
	}))
	unused := connect(t, at, "")
	half := connect(t, at, get[:20])
	used := connect(t, at, get) // accepted last: the drain knows the others too
	<-entered
	ended := make(chan error, 1)
	go func() { ended <- drain.Shutdown(context.Background()) }()
	for _, c := range []net.Conn{unused, half} {
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an unused connection gives %v", err)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("Shutdown returned %v before the request had ended", err)
	default:
	}
	close(release)
	answer, err := http.ReadResponse(bufio.NewReader(used), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "done" {
		t.Errorf("the request in progress got %q, %v", body, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestShutdown_ErrorOnlyIfRequestIsServed(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	drain, at := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-release
	}))
	defer close(release)
	connect(t, at, get)
	<-entered
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := drain.Shutdown(over); !errors.Is(err, context.Canceled) {
		t.Errorf("a request is served, and Shutdown returned %v", err)
	}
	idle, at := serve(t, http.NotFoundHandler())
	connect(t, at, "")
	if err := idle.Shutdown(over); err != nil {
		t.Errorf("no request is served, and Shutdown returned %v", err)
	}
}

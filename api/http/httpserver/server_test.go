package httpserver_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a handler that reports when it was entered and waits until the test releases it.
type gate struct {
	entered chan struct{}
	release chan struct{}
	left    chan error // nil if the test released the handler, otherwise the error of its context
}

func newGate() *gate {
	return &gate{entered: make(chan struct{}), release: make(chan struct{}), left: make(chan error, 1)}
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	close(g.entered)
	select {
	case <-g.release:
		g.left <- nil
		_, _ = io.WriteString(w, "done")
	case <-r.Context().Done():
		g.left <- r.Context().Err()
	}
}

const plainGet = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

func TestClose_FinishesRequestsAndRefusesNewConnections(t *testing.T) {
	g := newGate()
	server := servertest.Open(t, httpserver.Config{Handler: g})
	conn := servertest.Send(t, server, plainGet)
	<-g.entered
	closed := make(chan error, 1)
	go func() { closed <- server.Close(context.Background()) }()
	if err := server.Wait(); err != nil { // after Wait, the server accepts no connections
		t.Errorf("the listener ended with %v", err)
	}
	if c, err := net.Dial("tcp", server.Addr().String()); err == nil {
		_ = c.Close()
		t.Error("a connection was accepted while closing")
	}
	select {
	case err := <-closed:
		t.Fatalf("Close returned %v before the request had ended", err)
	default:
	}
	close(g.release)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "done" {
		t.Errorf("answer %q, %v", body, err)
	}
	if err := server.Close(context.Background()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func TestClose_EndsConnectionsWithoutRequestAtOnce(t *testing.T) {
	for name, text := range map[string]string{"silent": "", "half a head": "GET / HTTP/1.1\r\nHost: loc"} {
		t.Run(name, func(t *testing.T) {
			server := servertest.Open(t, httpserver.Config{Handler: http.NotFoundHandler()})
			conn := servertest.Send(t, server, text)
			done := servertest.Send(t, server, plainGet) // its answer proves that the server has accepted conn
			if _, err := http.ReadResponse(bufio.NewReader(done), nil); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			if err := server.Close(ctx); err != nil {
				t.Errorf("no request was cut, and Close returned %v", err)
			}
			// Without the server's own limit, net/http waits for more than five seconds.
			if took := time.Since(start); !testing.Short() && took > 4*time.Second {
				t.Errorf("Close took %v", took)
			}
			if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
		})
	}
}

func TestClose_WithoutTimeCutsNoRequestIfThereIsNone(t *testing.T) {
	server := servertest.Open(t, httpserver.Config{Handler: http.NotFoundHandler()})
	servertest.Send(t, server, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Close(ctx); err != nil {
		t.Errorf("no request was cut, and Close returned %v", err)
	}
}

func TestClose_CutsLateRequestsAndWaitsForTheirHandlers(t *testing.T) {
	g := newGate()
	server := servertest.Open(t, httpserver.Config{Handler: g})
	servertest.Send(t, server, plainGet)
	<-g.entered
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := server.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || !fault.Is(err, fault.Timeout) {
		t.Errorf("Close returned %v", err)
	}
	select {
	case err := <-g.left:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the handler ended with %v", err)
		}
	default:
		t.Error("Close returned before the handler did")
	}
}

func TestListen_AddressInUseIsNamed(t *testing.T) {
	server := servertest.Open(t, httpserver.Config{Handler: http.NotFoundHandler()})
	second := httpserver.New(httpserver.Config{
		Address: server.Addr().String(), Handler: http.NotFoundHandler(), Logger: slog.New(slog.DiscardHandler),
	})
	err := second.Open(t.Context())
	if !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), server.Addr().String()) {
		t.Errorf("%v", err)
	}
	if err := second.Close(t.Context()); err != nil {
		t.Errorf("Close without Open: %v", err)
	}
}

func TestServer_UsesGivenListener(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := servertest.Open(t, httpserver.Config{Listener: listener, Handler: http.NotFoundHandler()})
	if server.Addr() != listener.Addr() {
		t.Errorf("listens on %v, not %v", server.Addr(), listener.Addr())
	}
	answered(t, servertest.Dial(t, server.Addr().String()))
}

func TestServer_ReportsFailedListener(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := servertest.Open(t, httpserver.Config{Listener: listener, Handler: http.NotFoundHandler()})
	_ = listener.Close()
	if err := server.Wait(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

func TestHeaders_LateCloseConnection(t *testing.T) {
	server := servertest.Open(t, httpserver.Config{Handler: http.NotFoundHandler(),
		ReadHeaderTimeout: 20 * time.Millisecond})
	conn := servertest.Send(t, server, "GET / HTTP/1.1\r\nHost: loc")
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection was not closed: %v", err)
	}
}

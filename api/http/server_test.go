package http_test

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

	apihttp "github.com/quorate/quorate/api/http"
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

func openServer(t *testing.T, c apihttp.ServerConfig) *apihttp.Server {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	if c.Address == "" {
		c.Address = "127.0.0.1:0"
	}
	server := apihttp.NewServer(c)
	if err := server.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // aborts requests that are still being served
		_ = server.Close(ctx)
	})
	return server
}

func send(t *testing.T, server *apihttp.Server, text string) net.Conn {
	t.Helper()
	conn := dial(t, server.Addr().String())
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

const plainGet = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"

func TestClose_FinishesRequestsAndRefusesNewConnections(t *testing.T) {
	g := newGate()
	server := openServer(t, apihttp.ServerConfig{Handler: g})
	conn := send(t, server, plainGet)
	<-g.entered
	closed := make(chan error, 1)
	go func() { closed <- server.Close(context.Background()) }()
	if err := server.Wait(); err != nil { // no more connections from here on
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
			server := openServer(t, apihttp.ServerConfig{Handler: http.NotFoundHandler()})
			conn := send(t, server, text)
			done := send(t, server, plainGet) // accepted after conn: its answer says that conn is known
			if _, err := http.ReadResponse(bufio.NewReader(done), nil); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			start := time.Now()
			if err := server.Close(ctx); err != nil {
				t.Errorf("no request was cut, and Close returned %v", err)
			}
			if took := time.Since(start); took > 4*time.Second { // net/http waits for more than five
				t.Errorf("Close took %v", took)
			}
			if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
		})
	}
}

func TestClose_WithoutTimeCutsNoRequestIfThereIsNone(t *testing.T) {
	server := openServer(t, apihttp.ServerConfig{Handler: http.NotFoundHandler()})
	send(t, server, "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Close(ctx); err != nil {
		t.Errorf("no request was cut, and Close returned %v", err)
	}
}

func TestClose_CutsLateRequestsAndWaitsForTheirHandlers(t *testing.T) {
	g := newGate()
	server := openServer(t, apihttp.ServerConfig{Handler: g})
	send(t, server, plainGet)
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
	server := openServer(t, apihttp.ServerConfig{Handler: http.NotFoundHandler()})
	second := apihttp.NewServer(apihttp.ServerConfig{
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
	server := openServer(t, apihttp.ServerConfig{Listener: listener, Handler: http.NotFoundHandler()})
	if server.Addr() != listener.Addr() {
		t.Errorf("listens on %v, not %v", server.Addr(), listener.Addr())
	}
	if status, _, _ := do(t, "GET", "http://"+server.Addr().String()+"/", ""); status != http.StatusNotFound {
		t.Errorf("status %d", status)
	}
}

func TestServer_ReportsFailedListener(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := openServer(t, apihttp.ServerConfig{Listener: listener, Handler: http.NotFoundHandler()})
	_ = listener.Close()
	if err := server.Wait(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("%v", err)
	}
}

func TestHeaders_OverLimitAre431(t *testing.T) {
	base := newFixture(t).serve(t)
	for size, want := range map[int]int{3000: http.StatusNoContent, 16 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		conn := dial(t, base)
		_, _ = io.WriteString(conn,
			"GET /v1.0/state/orders/a HTTP/1.1\r\nHost: localhost\r\nX-Fill: "+strings.Repeat("x", size)+"\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("a header of %d bytes: %d, want %d", size, response.StatusCode, want)
		}
	}
}

func TestHeaders_LateCloseConnection(t *testing.T) {
	server := openServer(t, apihttp.ServerConfig{Handler: http.NotFoundHandler(),
		ReadHeaderTimeout: 20 * time.Millisecond})
	conn := send(t, server, "GET / HTTP/1.1\r\nHost: loc")
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("the connection was not closed: %v", err)
	}
}

func TestServer_ServesHTTP10WithoutHost(t *testing.T) {
	conn := dial(t, newFixture(t).serve(t))
	_, _ = io.WriteString(conn, "GET /v1.0/healthz HTTP/1.0\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		t.Errorf("status %d", response.StatusCode)
	}
}

func TestServer_SpeaksH2CUnlessDisabled(t *testing.T) {
	f := newFixture(t)
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []bool{false, true} {
		server := openServer(t, apihttp.ServerConfig{Handler: face, DisableH2C: off})
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), "POST",
			"http://"+server.Addr().String()+"/v1.0/state/orders",
			strings.NewReader(`[{"key":"h2","value":1}]`))
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if off {
			if err == nil {
				_ = response.Body.Close()
				t.Error("HTTP/2 was spoken although it is switched off")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusNoContent || response.ProtoMajor != 2 {
			t.Errorf("status %d over %s", response.StatusCode, response.Proto)
		}
	}
}

package http_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/internal/testutil"
)

// watched opens a server and returns it, the gauge of its open connections, and the registry with the metrics of
// watches.
func watched(t *testing.T) (*httpserver.Server, prometheus.Gauge, *prometheus.Registry) {
	t.Helper()
	return watchedWith(t, httpserver.Config{})
}

// watchedWith is watched with the settings c of the server.
func watchedWith(t *testing.T, c httpserver.Config) (*httpserver.Server, prometheus.Gauge, *prometheus.Registry) {
	t.Helper()
	f, watches, reg := newFixture(t), api.NewWatches(), prometheus.NewRegistry()
	reg.MustRegister(watches.Collectors()...)
	f.config.State.Observe(watches)
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	open := prometheus.NewGauge(prometheus.GaugeOpts{Name: "open"})
	c.Handler, c.Open = face, open
	return servertest.Open(t, c), open, reg
}

func TestWatch_ConnectionStaysCountedUntilClientCloses(t *testing.T) {
	t.Parallel()
	server, open, reg := watched(t)
	conn := servertest.Send(t, server, "GET /v1.0/watch/orders HTTP/1.1\r\nHost: localhost\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if !answer.Close || len(answer.TransferEncoding) != 1 || answer.Header.Get("Date") == "" {
		t.Errorf("got %v %v", answer.TransferEncoding, answer.Header)
	}
	if n := promtest.ToFloat64(open); n != 1 {
		t.Errorf("%v connections are counted", n)
	}
	_ = conn.Close()
	testutil.Eventually(t, func() error {
		if n, w := promtest.ToFloat64(open), gathered(t, reg, "quorate_watches", "orders"); n+w != 0 {
			return fmt.Errorf("%v connections and %v watches are counted", n, w)
		}
		return nil
	})
}

func TestWatch_HTTP10HasNoChunks(t *testing.T) {
	server, _, _ := watched(t)
	conn := servertest.Send(t, server, "GET /v1.0/watch/orders HTTP/1.0\r\nHost: localhost\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	line, err := bufio.NewReader(answer.Body).ReadString('\n')
	if err != nil || len(answer.TransferEncoding) != 0 || !strings.Contains(line, "bookmark") {
		t.Errorf("got %v %q, %v", answer.TransferEncoding, line, err)
	}
}

func TestClose_CutsWatchesThatDoNotEndInTime(t *testing.T) {
	server, open, _ := watched(t)
	conn := servertest.Send(t, server, "GET /v1.0/watch/orders HTTP/1.1\r\nHost: localhost\r\n\r\n")
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := server.Close(ctx); err == nil {
		t.Error("Close returned no error, though it cut a watch")
	}
	if n := promtest.ToFloat64(open); n != 0 {
		t.Errorf("%v connections are counted after Close", n)
	}
	_, _ = io.Copy(io.Discard, answer.Body) // returns only if the connection was closed
}

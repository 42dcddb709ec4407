package httpserver_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/internal/testutil"
)

// ended reports whether the other side has closed c without sending more data.
func ended(t *testing.T, c net.Conn) bool {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := c.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	return err != nil
}

// answered sends a request and reads its answer.
func answered(t *testing.T, c net.Conn) {
	t.Helper()
	if _, err := io.WriteString(c, plainGet); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
}

func TestConns_OverLimitClosesLongestIdle(t *testing.T) {
	open, cut := prometheus.NewGauge(prometheus.GaugeOpts{Name: "open"}),
		prometheus.NewCounter(prometheus.CounterOpts{Name: "cut"})
	server := servertest.Open(t, httpserver.Config{MaxConnections: 2, Open: open, Cut: cut,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	silent := servertest.Dial(t, server.Addr().String())
	kept := servertest.Dial(t, server.Addr().String())
	answered(t, kept)
	third := servertest.Dial(t, server.Addr().String())
	answered(t, third) // the server accepts the third connection
	if !ended(t, silent) {
		t.Error("the connection that sent nothing stays open")
	}
	answered(t, kept)
	if promtest.ToFloat64(cut) != 1 || promtest.ToFloat64(open) > 3 {
		t.Errorf("%v cut, %v open", promtest.ToFloat64(cut), promtest.ToFloat64(open))
	}
}

func TestConns_UnfinishedHeadersCountAsIdle(t *testing.T) {
	server := servertest.Open(t, httpserver.Config{MaxConnections: 2, ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	kept := servertest.Dial(t, server.Addr().String())
	answered(t, kept)
	for range 20 { // more than the limit, each with the start of a header
		servertest.Send(t, server, "GET / HTTP/1.1\r\nHost: loc")
		answered(t, servertest.Dial(t, server.Addr().String()))
	}
	if !ended(t, kept) {
		t.Error("more connections stay open than the limit allows")
	}
}

func TestConns_WithRequestAreNotClosedForNewOnes(t *testing.T) {
	g := newGate()
	server := servertest.Open(t, httpserver.Config{MaxConnections: 1, Handler: g})
	busy := servertest.Send(t, server, plainGet)
	<-g.entered
	if newcomer := servertest.Dial(t, server.Addr().String()); !ended(t, newcomer) {
		t.Error("a connection above the limit is accepted")
	}
	close(g.release)
	if r, err := http.ReadResponse(bufio.NewReader(busy), nil); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("the request under way ended with %v", err)
	}
}

func TestConns_ClientThatReadsNothingIsCut(t *testing.T) {
	failed := make(chan error, 1)
	server := servertest.Open(t, httpserver.Config{WriteStall: 50 * time.Millisecond,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			piece := make([]byte, 1<<20)
			for {
				if _, err := w.Write(piece); err != nil {
					failed <- err
					return
				}
			}
		})})
	servertest.Send(t, server, plainGet)
	select {
	case err := <-failed:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the write ended with %v", err)
		}
	case <-time.After(testutil.Patience):
		t.Error("the answer does not end")
	}
}

func TestConns_SlowReaderGetsWholeAnswer(t *testing.T) {
	const size, stall = 16 << 20, time.Second
	took := make(chan time.Duration, 1)
	server := servertest.Open(t, httpserver.Config{WriteStall: stall,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			begun := time.Now()
			_, _ = w.Write(make([]byte, size)) // a single write that takes longer than WriteStall
			took <- time.Since(begun)
		})})
	conn := servertest.Dial(t, server.Addr().String())
	if err := conn.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil { // so that most of the answer waits
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, plainGet); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	total := 0
	for err == nil {
		var n int64
		n, err = io.CopyN(io.Discard, r.Body, size/256)
		total += int(n)
		<-time.After(6 * time.Millisecond) // much shorter than WriteStall
	}
	if total != size {
		t.Errorf("%d bytes of %d came: %v", total, size, err)
	}
	if took := <-took; took < stall {
		t.Errorf("the write took only %s: the test shows nothing", took)
	}
}

// An upgraded connection counts until its handler returns.
func TestConns_UpgradedCountTowardsTheLimit(t *testing.T) {
	open := prometheus.NewGauge(prometheus.GaugeOpts{Name: "open"})
	end := make(chan struct{})
	server := servertest.Open(t, httpserver.Config{MaxConnections: 2, Open: open,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
			<-end
		})})
	for range 2 {
		tunnel := servertest.Send(t, server, plainGet)
		if r, err := http.ReadResponse(bufio.NewReader(tunnel), nil); err != nil || r.StatusCode != 101 {
			t.Fatal(r, err)
		}
	}
	if third := servertest.Send(t, server, plainGet); !ended(t, third) {
		t.Error("a connection above the limit is accepted")
	}
	close(end)
	if err := server.Close(t.Context()); err != nil { // waits for the handlers
		t.Error(err)
	}
	if n := promtest.ToFloat64(open); n != 0 {
		t.Errorf("%v connections stay counted", n)
	}
}

// The time of Close ends while a connection is upgraded. Close ends the connection, and waits for its handler.
func TestConns_CloseEndsUpgradedOnes(t *testing.T) {
	server := servertest.Open(t, httpserver.Config{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
			<-r.Context().Done()
		})})
	tunnel := servertest.Send(t, server, plainGet)
	if r, err := http.ReadResponse(bufio.NewReader(tunnel), nil); err != nil || r.StatusCode != 101 {
		t.Fatal(r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := server.Close(ctx); err != nil {
		t.Error(err)
	}
	if !ended(t, tunnel) {
		t.Error("the connection stays open")
	}
}

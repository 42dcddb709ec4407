package httpserver

import (
	"bufio"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/http/watches"
	"github.com/quorate/quorate/internal/testutil"
)

// The time of Close ends while a client watches. Close reports that it has cut the watch, even if the watch ends at
// once.
func TestClose_ReportsCutWatch(t *testing.T) {
	state := apitest.New(t).Services().State
	sender, sent := watches.NewSender(new(atomic.Int64)), prometheus.NewCounter(prometheus.CounterOpts{Name: "sent"})
	server := New(Config{Address: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler), Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			watch, err := state.Watch(r.Context(), api.WatchRequest{Store: "orders", Prefix: "a"})
			if err != nil {
				t.Error(err)
				return
			}
			if !sender.Serve(w, r, &watches.Stream{Watch: watch}, sent) {
				t.Error("the connection was not taken over")
			}
		})})
	if err := server.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil { // the watch has begun
		t.Fatal(err)
	}
	abort := server.abort
	server.abort = func() {
		abort()
		<-server.active.drain() // the watch has ended
	}
	closing, over := context.WithCancel(t.Context())
	over()
	if err := server.Close(closing); !errors.Is(err, context.Canceled) {
		t.Errorf("Close returned %v", err)
	}
}

// Package servertest opens servers of the HTTP API for tests, and speaks HTTP to them byte by byte. It owns only these
// helpers.
package servertest

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/internal/testutil"
)

// Open opens a server, by default on a free port of 127.0.0.1. The server closes when the test ends, and aborts the
// requests that are still being served.
func Open(t *testing.T, c httpserver.Config) *httpserver.Server {
	t.Helper()
	c.Logger = slog.New(slog.DiscardHandler)
	if c.Address == "" {
		c.Address = "127.0.0.1:0"
	}
	server := httpserver.New(c)
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

// Dial opens a connection to an address or a base URL. Its reads and writes fail after testutil.Patience. The
// connection is closed when the test ends.
func Dial(t testing.TB, address string) net.Conn {
	t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testutil.Patience)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Send opens a connection to server (see Dial), sends a text over it, and returns it.
func Send(t testing.TB, server *httpserver.Server, text string) net.Conn {
	t.Helper()
	conn := Dial(t, server.Addr().String())
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

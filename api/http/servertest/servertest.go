// Package servertest opens servers of the HTTP API for tests, and sends raw bytes or HTTP/2 frames to them. It owns
// only these helpers.
package servertest

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

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

// Dial opens a TCP connection to an address or a base URL. Reads and writes of the connection fail after
// testutil.Patience. The connection is closed at the end of the test.
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

// Send opens a connection to server (see Dial), sends a text over the connection, and returns the connection.
func Send(t testing.TB, server *httpserver.Server, text string) net.Conn {
	t.Helper()
	conn := Dial(t, server.Addr().String())
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	return conn
}

// Send2 opens an HTTP/2 connection to server (see Dial), and sends one request on stream 1. window is the initial flow
// control window for the answer, in bytes.
func Send2(t testing.TB, server *httpserver.Server, window uint32, method, path, body string) *http2.Framer {
	t.Helper()
	conn := Send(t, server, http2.ClientPreface)
	f := http2.NewFramer(conn, conn)
	testutil.Must(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}))
	testutil.Must(t, f.WriteWindowUpdate(0, 1<<20)) // of the connection
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for _, h := range [][2]string{{":method", method}, {":scheme", "http"}, {":path", path},
		{":authority", "localhost"}} {
		testutil.Must(t, enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}))
	}
	testutil.Must(t, f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndHeaders: true,
		EndStream: body == ""}))
	for body != "" {
		n := min(len(body), 16<<10)
		testutil.Must(t, f.WriteData(1, n == len(body), []byte(body[:n])))
		body = body[n:]
	}
	return f
}

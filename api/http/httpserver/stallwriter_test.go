package httpserver_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
)

// get2 sends a GET over HTTP/2 (see servertest.Send2).
func get2(t *testing.T, server *httpserver.Server, window uint32) *http2.Framer {
	t.Helper()
	return servertest.Send2(t, server, window, http.MethodGet, "/", "")
}

// end reads until the stream ends. It returns the bytes of the answer, and whether the server has reset the stream.
func end(t *testing.T, f *http2.Framer) (size int, reset bool) {
	t.Helper()
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			return size, true
		case *http2.DataFrame:
			if size += len(frame.Data()); frame.StreamEnded() {
				return size, false
			}
		}
	}
}

// A client that reads its connection, but opens no flow-control window, keeps no stream.
func TestHTTP2_ClientWithoutWindowIsCut(t *testing.T) {
	for name, serve := range map[string]http.HandlerFunc{
		"small answer": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") },
		"large answer": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 100<<10)) },
		"stream": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "x")
			if err := http.NewResponseController(w).Flush(); err == nil {
				<-r.Context().Done()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := servertest.Open(t, httpserver.Config{WriteStall: 100 * time.Millisecond, Handler: serve})
			if size, reset := end(t, get2(t, server, 0)); !reset || size > 0 {
				t.Errorf("%d bytes came, reset: %v", size, reset)
			}
		})
	}
}

// A stream that has nothing to send has no deadline, and its client gets all of what is sent later.
func TestHTTP2_IdleStreamIsKept(t *testing.T) {
	t.Parallel()
	const stall = time.Second
	server := servertest.Open(t, httpserver.Config{WriteStall: stall, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, 200<<10))
			_ = http.NewResponseController(w).Flush()
			<-time.After(stall + stall/2)
			_, _ = io.WriteString(w, "x")
		})})
	f := get2(t, server, 1<<20)
	if size, reset := end(t, f); reset || size != 200<<10+1 {
		t.Errorf("%d bytes came, reset: %v", size, reset)
	}
}

// A client cancels a stream, and its handler then writes something or nothing. net/http would keep a stream with a
// deadline in memory until the deadline passes, and then reset it.
func TestHTTP2_CanceledStreamGetsNoDeadline(t *testing.T) {
	for name, answer := range map[string]string{"nothing written": "", "written late": "late"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const stall = 50 * time.Millisecond
			returned := make(chan struct{})
			server := servertest.Open(t, httpserver.Config{WriteStall: stall, Handler: http.HandlerFunc(
				func(w http.ResponseWriter, r *http.Request) {
					<-r.Context().Done()
					if answer != "" {
						_, _ = io.WriteString(w, answer)
					}
					close(returned)
				})})
			f := get2(t, server, 1<<20)
			if err := f.WriteRSTStream(1, http2.ErrCodeCancel); err != nil {
				t.Fatal(err)
			}
			<-returned
			<-time.After(2 * stall)
			if err := f.WritePing(false, [8]byte{1}); err != nil {
				t.Fatal(err)
			}
			for {
				frame, err := f.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				if _, reset := frame.(*http2.RSTStreamFrame); reset {
					t.Fatal("the server has reset the canceled stream")
				}
				if p, ok := frame.(*http2.PingFrame); ok && p.IsAck() {
					return
				}
			}
		})
	}
}

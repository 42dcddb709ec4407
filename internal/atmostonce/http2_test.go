package atmostonce_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/quorate/quorate/internal/atmostonce"
)

// overHTTP2 returns a transport for HTTP/2 without TLS.
func overHTTP2(t *testing.T) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := atmostonce.Transport(&http.Transport{DialContext: new(net.Dialer).DialContext, Protocols: protocols})
	t.Cleanup(transport.CloseIdleConnections)
	return transport
}

// http2Server starts a server that calls answer for each request, and returns the URL of the server.
func http2Server(t *testing.T, answer func(f *http2.Framer, stream uint32)) string {
	t.Helper()
	return serving(t, false, func(c net.Conn, in *bufio.Reader) {
		_, _ = io.CopyN(io.Discard, in, int64(len(http2.ClientPreface)))
		f := http2.NewFramer(c, in)
		_ = f.WriteSettings()
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if h, ok := frame.(*http2.HeadersFrame); ok {
				answer(f, h.StreamID)
			}
		}
	})
}

// TestTransport_HTTP2RequestIsNotRepeated checks that a request is sent once, although net/http alone would repeat it.
func TestTransport_HTTP2RequestIsNotRepeated(t *testing.T) {
	for name, fail := range map[string]func(f *http2.Framer, stream uint32){
		"PROTOCOL_ERROR": func(f *http2.Framer, stream uint32) { _ = f.WriteRSTStream(stream, http2.ErrCodeProtocol) },
		"REFUSED_STREAM": func(f *http2.Framer, stream uint32) {
			_ = f.WriteRSTStream(stream, http2.ErrCodeRefusedStream)
		},
		"GOAWAY": func(f *http2.Framer, _ uint32) { _ = f.WriteGoAway(0, http2.ErrCodeNo, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			var received atomic.Int64
			url := http2Server(t, func(f *http2.Framer, stream uint32) {
				received.Add(1)
				fail(f, stream)
			})
			answer, sent, err := atmostonce.RoundTrip(overHTTP2(t), request(t, url, ""), atmostonce.Limits{})
			if err == nil {
				_ = answer.Body.Close()
				t.Fatal("a server that refuses the request answers")
			}
			if n := received.Load(); n != 1 || !sent || !errors.Is(err, atmostonce.ErrRepeat) {
				t.Errorf("the server received %d requests; sent %t: %v", n, sent, err)
			}
		})
	}
}

// TestTransport_HTTP2RequestUsesNewConnection checks that a connection is not used for further requests after a
// GOAWAY.
func TestTransport_HTTP2RequestUsesNewConnection(t *testing.T) {
	url := http2Server(t, func(f *http2.Framer, stream uint32) {
		_ = f.WriteGoAway(stream, http2.ErrCodeNo, nil)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: []byte{0x89}, EndHeaders: true,
			EndStream: true}) // the status 204
	})
	transport := overHTTP2(t)
	for range 3 {
		answer, sent, err := atmostonce.RoundTrip(transport, request(t, url, ""), atmostonce.Limits{})
		if err != nil || !sent || answer.StatusCode != http.StatusNoContent {
			t.Fatalf("sent %t: %v", sent, err)
		}
		_ = answer.Body.Close()
	}
}

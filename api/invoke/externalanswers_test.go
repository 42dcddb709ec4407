package invoke_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/atmostonce"
	"github.com/quorate/quorate/internal/testutil"
)

// hostile starts a server that answers the first request on each connection with text, and returns its URL. The
// channel more receives the bytes that arrive after each answer.
func hostile(t *testing.T, secured bool, text string) (url string, more <-chan string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	scheme := "http"
	if secured {
		certificates := httptest.NewUnstartedServer(nil)
		certificates.StartTLS()
		scheme, l = "https", tls.NewListener(l, &tls.Config{Certificates: certificates.TLS.Certificates})
		certificates.Close()
	}
	got := make(chan string, 10)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(c)
			if _, err := http.ReadRequest(in); err == nil {
				_, _ = io.WriteString(c, text)
				rest, _ := io.ReadAll(in)
				got <- string(rest)
			}
			_ = c.Close()
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	return scheme + "://" + l.Addr().String(), got
}

func TestExternals_AnswersThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n": "did not ask for",
		"HTTP/1.1 101 x\r\n\r\n":                                            "did not ask for",
		"HTTP/1.1 099 x\r\nContent-Length: 0\r\n\r\n":                       "no HTTP status",
		"HTTP/1.1 200 OK\r\n" + strings.Repeat("a:\r\n", 1000) + "\r\n":     "header fields",
		strings.Repeat("HTTP/1.1 103 x\r\n\r\n", 2000):                      "header fields",
		"HTTP/1.1 200 OK\r\na: " + strings.Repeat("x", 64<<10) + "\r\n\r\n": "bytes or more",
	} {
		for _, secured := range []bool{false, true} {
			url, more := hostile(t, secured, text)
			transport := invoke.NewTransport(&tls.Config{InsecureSkipVerify: true})
			t.Cleanup(transport.CloseIdleConnections)
			err := get(t, outward(t, url, transport, false), "partner", "/x")
			if e := api.AsError(err); e == nil || e.Kind != api.BadAnswer || !strings.Contains(e.Message, want) {
				t.Errorf("%.40q, with TLS: %t: %v", text, secured, err)
			}
			if rest := <-more; rest != "" {
				t.Errorf("%.40q, with TLS: %t: the server receives %q", text, secured, rest)
			}
		}
	}
}

func TestExternals_HeadersThatConnectionNamesAreDropped(t *testing.T) {
	for _, lines := range []string{"Connection: close, X-Hop\r\n", "Connection: X-Hop\r\nConnection: close\r\n"} {
		for _, secured := range []bool{false, true} {
			url, _ := hostile(t, secured, "HTTP/1.1 200 OK\r\n"+lines+"X-Hop: 1\r\nX-Kept: 2\r\nTransfer-Encoding: "+
				"chunked\r\n\r\n0\r\nX-Hop: 1\r\nX-Sum: 3\r\n\r\n")
			transport := invoke.NewTransport(&tls.Config{InsecureSkipVerify: true})
			t.Cleanup(transport.CloseIdleConnections)
			answer, err := outward(t, url, transport, false).Do(t.Context(), &invoke.Call{Target: "partner",
				Verb: http.MethodGet, Path: "/x", Header: http.Header{}, Body: http.NoBody})
			testutil.Must(t, err)
			_, err = io.ReadAll(answer.Body)
			testutil.Must(t, err)
			_ = answer.Body.Close()
			got := append(slices.Sorted(maps.Keys(answer.Header)), slices.Sorted(maps.Keys(answer.Trailer))...)
			if !slices.Equal(got, []string{"X-Kept", "X-Sum"}) {
				t.Errorf("%q, with TLS: %t: the caller gets %q", lines, secured, got)
			}
		}
	}
}

// full is an atmostonce.Memory that has no memory left.
type full struct{}

func (full) Acquire(context.Context, int64) error { return errors.New("no memory") }
func (full) Release(int64)                        {}

func TestExternals_LargeHeadersNeedMemory(t *testing.T) {
	url, _ := hostile(t, false, "HTTP/1.1 204 No Content\r\nConnection: close\r\n"+strings.Repeat("a: b\r\n", 500)+
		"\r\n")
	for name, c := range map[string]struct {
		memory atmostonce.Memory
		want   string
	}{"no bound": {nil, ""}, "full": {full{}, "no memory"}} {
		s := outwardWith(t, &invoke.Externals{Memory: c.memory}, url, invoke.NewTransport(nil), true)
		for _, target := range []string{"partner", url} {
			if err := get(t, s, target, "/x"); c.want == "" && err != nil || c.want != "" && (err == nil ||
				api.AsError(err).Kind != api.Indeterminate || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s, %s: %v", name, target, err)
			}
		}
	}
}

package atmostonce_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/quorate/quorate/internal/atmostonce"
)

// sender sends a request.
type sender func(*http.Request) (*http.Response, bool, error)

// senders runs a test with each way to send a request over HTTP/1. serve handles each connection of the server.
func senders(t *testing.T, l atmostonce.Limits, serve func(c net.Conn, in *bufio.Reader),
	run func(t *testing.T, url string, send sender)) {
	t.Helper()
	for _, name := range []string{"client", "transport", "transport with TLS"} {
		t.Run(name, func(t *testing.T) {
			secured := name == "transport with TLS"
			transport := atmostonce.Transport(&http.Transport{DialContext: new(net.Dialer).DialContext,
				DisableCompression: true, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
				TLSClientConfig: &tls.Config{InsecureSkipVerify: true}})
			send := func(r *http.Request) (*http.Response, bool, error) { return atmostonce.RoundTrip(transport, r, l) }
			c := atmostonce.NewClient(transport, l)
			if name == "client" {
				send = c.RoundTrip
			}
			t.Cleanup(c.Close)
			run(t, serving(t, secured, serve), send)
		})
	}
}

// serving starts a server that handles each connection in its own goroutine, and returns the URL of the server.
func serving(t *testing.T, secured bool, serve func(c net.Conn, in *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	scheme := "http"
	if secured {
		certificates := httptest.NewUnstartedServer(nil)
		certificates.StartTLS()
		scheme, l = "https", tls.NewListener(l, &tls.Config{Certificates: certificates.TLS.Certificates})
		certificates.Close()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c, bufio.NewReader(c))
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	return scheme + "://" + l.Addr().String()
}

// withUpgrade returns a request for a switch to the protocols in to.
func withUpgrade(t *testing.T, url, to string) *http.Request {
	t.Helper()
	r := request(t, url, "")
	if to != "" {
		r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{to}
	}
	return r
}

func TestAnswers_ThatDoNotFitTheirRequestAreRefused(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n"
	const switched = "HTTP/1.1 101 Switching Protocols\r\n"
	for name, c := range map[string]struct {
		asked, answer string
		want          string // part of the error; empty = the answer is accepted
	}{
		"unrequested switch":   {"", switched + "Connection: Upgrade\r\nUpgrade: x\r\n", "did not ask for"},
		"requested switch":     {"Echo, x/1", switched + "Connection: keep-alive, upgrade\r\nUpgrade: echo\r\n", ""},
		"switch to another":    {"websocket", switched + "Connection: Upgrade\r\nUpgrade: x\r\n", "another protocol"},
		"switch to one more":   {"x", switched + "Connection: Upgrade\r\nUpgrade: x, y\r\n", "another protocol"},
		"switch in two lines":  {"x", switched + "Connection: Upgrade\r\nUpgrade: x\r\nUpgrade: y\r\n", "another"},
		"switch without name":  {"x", switched + "Connection: Upgrade\r\n", "does not name"},
		"empty name":           {"x", switched + "Connection: Upgrade\r\nUpgrade:\r\n", "does not name"},
		"unconnected switch":   {"x", switched + "Upgrade: x\r\n", "does not name"},
		"bare switch":          {"", switched, "did not ask for"},
		"switch that closes":   {"x", switched + "Connection: Upgrade, close\r\nUpgrade: x\r\n", "closes"},
		"status 099":           {"", "HTTP/1.1 099 x\r\nContent-Length: 0\r\n", "no HTTP status"},
		"status 000":           {"", "HTTP/1.1 000 x\r\nContent-Length: 0\r\n", "no HTTP status"},
		"status 999":           {"", "HTTP/1.1 999 x\r\nConnection: close\r\n", ""},
		"few fields":           {"", ok + strings.Repeat("A:\r\n", 990), ""},
		"many fields":          {"", ok + strings.Repeat("A:\r\n", 1000), "more than 1000"},
		"different fields":     {"", ok + numbered(1000), "more than 1000"},
		"names of trailers":    {"", ok + "trailer: " + strings.Repeat("a,", 1000) + "\r\n", "more than 1000"},
		"names over two lines": {"", ok + "Connection: a\r\n " + strings.Repeat("a,", 1000) + "\r\n", "more than 1000"},
		"continued lines":      {"", ok + "A: a\r\n" + strings.Repeat(" a\r\n", 1000), "more than 1000"},
		"commas elsewhere":     {"", ok + "A: " + strings.Repeat("a,", 1000) + "\r\n", ""},
		"long value":           {"", ok + "A: " + strings.Repeat("a", 64<<10) + "\r\n", "have 65536 bytes"},
		"long values":          {"", ok + strings.Repeat("A: "+strings.Repeat("a", 1<<10)+"\r\n", 64), "have 65536"},
		"long name":            {"", ok + strings.Repeat("a", 64<<10) + ":\r\n", "have 65536 bytes"},
		"long status":          {"", "HTTP/1.1 200 " + strings.Repeat("a", 64<<10) + "\r\n", "have 65536 bytes"},
		"many hints":           {"", strings.Repeat("HTTP/1.1 103 x\r\n\r\n", 1000) + ok, "more than 1000"},
		"long hints": {"", strings.Repeat("HTTP/1.1 103 x\r\nLink: "+strings.Repeat("a", 1<<10)+"\r\n\r\n", 64) + ok,
			"have 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan error, 1)
			serve := func(conn net.Conn, in *bufio.Reader) {
				receive(in)
				_, _ = io.WriteString(conn, c.answer+"\r\n")
				_, err := in.ReadByte() // until the client closes the connection
				closed <- err
			}
			senders(t, atmostonce.Limits{}, serve, func(t *testing.T, url string, send sender) {
				r := withUpgrade(t, url, c.asked)
				hinted := atmostonce.WithInformational(r.Context(), func(int, http.Header) error { return nil })
				for _, r := range []*http.Request{r, r.WithContext(hinted)} {
					answer, sent, err := send(r)
					if err == nil {
						_ = answer.Body.Close()
					}
					refused, _ := errors.AsType[*atmostonce.BadAnswer](err)
					switch {
					case !sent:
						t.Error("the request counts as not sent")
					case c.want == "" && err != nil, c.want != "" && refused == nil:
						t.Errorf("error %v, want %q", err, c.want)
					case c.want != "" && !strings.Contains(refused.Reason, c.want):
						t.Errorf("error %q, want %q", refused.Reason, c.want)
					case c.want != "":
						if err := <-closed; err == nil {
							t.Error("bytes were sent after a refused answer")
						}
					}
				}
			})
		})
	}
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "A%d:\r\n", i)
	}
	return b.String()
}

// TestAnswers_KeepTheirConnectionHeader checks that an answer keeps the header Connection, which net/http removes if
// it contains close. The names in this header must be known, because these headers are not forwarded.
func TestAnswers_KeepTheirConnectionHeader(t *testing.T) {
	for lines, want := range map[string][]string{
		"Connection: close, X-Hop\r\n":                             {"close", "X-Hop"},
		"Connection: X-Hop\r\nX-Hop: 1\r\nconnection: CLOSE\r\n":   {"X-Hop", "CLOSE"},
		"CONNECTION: close\r\nConnection: X-Hop, X-More\r\n":       {"close", "X-Hop", "X-More"},
		"Connection: close,\r\n\tX-Hop\r\n   , X-More\r\nA: b\r\n": {"close", "X-Hop", "X-More"},
		"Connection: X-Hop\r\n":                                    {"X-Hop"},
		"X-Hop: close\r\n":                                         nil,
	} {
		t.Run(lines, func(t *testing.T) {
			serve := func(c net.Conn, in *bufio.Reader) {
				receive(in)
				// Byte by byte, so that lines arrive in pieces.
				for _, b := range []byte("HTTP/1.1 103 x\r\n" + lines + "\r\nHTTP/1.1 102 x\r\n\r\n" +
					"HTTP/1.1 200 OK\r\n" + lines + "Content-Length: 0\r\n\r\n") {
					_, _ = c.Write([]byte{b})
				}
			}
			senders(t, atmostonce.Limits{}, serve, func(t *testing.T, url string, send sender) {
				got := map[int][]string{}
				names := func(h http.Header) (out []string) {
					for _, line := range h["Connection"] {
						for name := range strings.SplitSeq(line, ",") {
							out = append(out, strings.TrimSpace(name))
						}
					}
					return out
				}
				r := request(t, url, "")
				r = r.WithContext(atmostonce.WithInformational(r.Context(), func(code int, h http.Header) error {
					got[code] = names(h)
					return nil
				}))
				answer, _, err := send(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				if got[200] = names(answer.Header); !slices.Equal(got[200], want) || !slices.Equal(got[103], want) ||
					got[102] != nil {
					t.Errorf("%v, want %v in 200 and 103", got, want)
				}
			})
		})
	}
}

// budget is a Memory that counts the bytes in use.
type budget struct {
	full error
	used atomic.Int64
	most atomic.Int64
}

func (b *budget) Acquire(_ context.Context, bytes int64) error {
	if b.full != nil {
		return b.full
	}
	b.most.Store(max(b.most.Load(), b.used.Add(bytes)))
	return nil
}

func (b *budget) Release(bytes int64) { b.used.Add(-bytes) }

func TestAnswers_HeadsTakeMemoryUntilTheBodyIsRead(t *testing.T) {
	const plain = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n"
	for name, c := range map[string]struct {
		head        string
		least, most int64
	}{
		"small":   {plain + numbered(20), 0, 0},
		"fields":  {plain + numbered(900), 900 * 250, 400 << 10},
		"bytes":   {plain + "A: " + strings.Repeat("a", 60<<10) + "\r\n", 32 << 10, 80 << 10},
		"hints":   {strings.Repeat("HTTP/1.1 103 x\r\n"+numbered(10)+"\r\n", 50) + plain, 500 * 250, 300 << 10},
		"refused": {plain + numbered(2000), 0, 400 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			b := &budget{}
			serve := func(conn net.Conn, in *bufio.Reader) {
				receive(in)
				_, _ = io.WriteString(conn, c.head+"\r\nok")
				_, _ = in.ReadByte()
			}
			senders(t, atmostonce.Limits{Memory: b}, serve, func(t *testing.T, url string, send sender) {
				for _, read := range []bool{true, false} {
					b.most.Store(0)
					answer, _, err := send(request(t, url, ""))
					if (err != nil) != (name == "refused") {
						t.Fatal(err)
					}
					if used := b.used.Load(); err == nil && used != b.most.Load() {
						t.Errorf("%d bytes are used before the body is read, %d before", used, b.most.Load())
					}
					if err == nil && read {
						_, _ = io.ReadAll(answer.Body)
					} else if err == nil {
						_ = answer.Body.Close()
					}
					if most := b.most.Load(); most < c.least || most > c.most {
						t.Errorf("%d bytes were used, want %d to %d", most, c.least, c.most)
					}
					if used := b.used.Load(); used != 0 {
						t.Errorf("%d bytes are used after the answer", used)
					}
				}
			})
		})
	}
}

func TestAnswers_LargeHeadNeedsMemory(t *testing.T) {
	b := &budget{full: errors.New("no memory")}
	serve := func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n"+numbered(100)+"Content-Length: 0\r\n\r\n")
	}
	senders(t, atmostonce.Limits{Memory: b}, serve, func(t *testing.T, url string, send sender) {
		if _, sent, err := send(request(t, url, "")); !errors.Is(err, b.full) || !sent {
			t.Errorf("sent %t: %v", sent, err)
		}
	})
}

// TestAnswers_ContradictoryFramingEndsConnection checks that a connection is not used again if the server has framed
// an answer in two ways. The server may have sent a second answer in the body of the first one.
func TestAnswers_ContradictoryFramingEndsConnection(t *testing.T) {
	var conns atomic.Int64
	serve := func(c net.Conn, in *bufio.Reader) {
		conns.Add(1)
		for {
			if _, err := in.Peek(1); err != nil {
				return
			}
			receive(in)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n"+
				"2\r\nok\r\n0\r\n\r\n")
		}
	}
	senders(t, atmostonce.Limits{}, serve, func(t *testing.T, url string, send sender) {
		conns.Store(0)
		for range 3 {
			answer, _, err := send(request(t, url, ""))
			if err != nil {
				t.Fatal(err)
			}
			if text, err := io.ReadAll(answer.Body); string(text) != "ok" || err != nil {
				t.Errorf("%q, %v", text, err)
			}
			_ = answer.Body.Close()
		}
		if n := conns.Load(); n != 3 {
			t.Errorf("%d connections for 3 requests", n)
		}
	})
}

func TestAnswers_TrailersAreLimited(t *testing.T) {
	serve := func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"+
			strings.Repeat("a:\r\n", 501)+"\r\n")
		_, _ = in.ReadByte()
	}
	senders(t, atmostonce.Limits{Fields: 500}, serve, func(t *testing.T, url string, send sender) {
		answer, _, err := send(request(t, url, ""))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadAll(answer.Body)
		if refused, _ := errors.AsType[*atmostonce.BadAnswer](err); refused == nil {
			t.Errorf("the answer ends with %v", err)
		}
		_ = answer.Body.Close()
	})
}

// http2Answers starts a server that answers each request over HTTP/2 without TLS, with the header blocks and the body
// text. It returns the URL of the server.
func http2Answers(t *testing.T, text string, blocks ...[]string) string {
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
			h, ok := frame.(*http2.HeadersFrame)
			if !ok {
				continue
			}
			for i, fields := range blocks {
				var b bytes.Buffer
				e := hpack.NewEncoder(&b)
				for j := 0; j < len(fields); j += 2 {
					_ = e.WriteField(hpack.HeaderField{Name: fields[j], Value: fields[j+1]})
				}
				block, end := b.Bytes(), text == "" && i == len(blocks)-1
				first := block[:min(len(block), 16000)]
				_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: h.StreamID, BlockFragment: first, EndStream: end,
					EndHeaders: len(first) == len(block)})
				for rest := block[len(first):]; len(rest) > 0; {
					n := min(len(rest), 16000)
					_ = f.WriteContinuation(h.StreamID, n == len(rest), rest[:n])
					rest = rest[n:]
				}
			}
			if text != "" {
				_ = f.WriteData(h.StreamID, true, []byte(text))
			}
		}
	})
}

func TestAnswers_OverHTTP2AreChecked(t *testing.T) {
	many := func(n int, fields ...string) []string {
		for range n {
			fields = append(fields, "a", "b")
		}
		return fields
	}
	hints := make([][]string, 1000)
	for i := range hints {
		hints[i] = []string{":status", "103"}
	}
	for name, c := range map[string]struct {
		text   string
		blocks [][]string
		want   string // part of the error; empty = the answer is accepted
	}{
		"plain":            {"ok", [][]string{{":status", "200", "content-length", "2"}}, ""},
		"switch":           {"ok", [][]string{{":status", "101", "upgrade", "x", "connection", "upgrade"}}, "HTTP/2"},
		"switch as a hint": {"ok", [][]string{{":status", "101"}, {":status", "200"}}, "HTTP/2"},
		"status 99":        {"ok", [][]string{{":status", "99"}}, "no HTTP status"},
		"status 099":       {"ok", [][]string{{":status", "099"}}, "no HTTP status"},
		"status -1":        {"ok", [][]string{{":status", "-1"}}, "no HTTP status"},
		"status 1000":      {"ok", [][]string{{":status", "1000"}}, "no HTTP status"},
		"two lengths": {"ok", [][]string{{":status", "200", "content-length", "2", "content-length", "3"}},
			"several"},
		"no length":       {"ok", [][]string{{":status", "200", "content-length", "x"}}, "no number"},
		"signed length":   {"ok", [][]string{{":status", "200", "content-length", "+2"}}, "no number"},
		"few fields":      {"ok", [][]string{many(900, ":status", "200")}, ""},
		"many fields":     {"ok", [][]string{many(1001, ":status", "200")}, "more than 1000"},
		"too many fields": {"ok", [][]string{many(100_000, ":status", "200")}, "far longer than 65536 bytes"},
		"long values": {"ok", [][]string{slices.Concat([]string{":status", "200"},
			slices.Repeat([]string{"a", strings.Repeat("b", 1<<10)}, 64))}, "cannot be read"},
		"no status": {"ok", [][]string{{"a", "b"}}, "cannot be read"},
		"names of trailers": {"ok", [][]string{{":status", "200", "trailer",
			strings.Trim(strings.ReplaceAll(numbered(1001), ":\r\n", ","), ",")}}, "more than 1000"},
		"many hints":      {"ok", append(slices.Clone(hints), []string{":status", "200"}), ""},
		"too many hints":  {"ok", append(slices.Clone(hints), hints[0], []string{":status", "200"}), "more than 1000"},
		"body of 204":     {"ok", [][]string{{":status", "204", "content-length", "2"}}, ""},
		"body of 304":     {"ok", [][]string{{":status", "304"}}, ""},
		"length of 204":   {"", [][]string{{":status", "204", "content-length", "2"}}, ""},
		"body beside 200": {"", [][]string{{":status", "200", "content-length", "0"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			b := &budget{}
			transport := atmostonce.Transport(&http.Transport{DialContext: new(net.Dialer).DialContext,
				Protocols: protocols})
			t.Cleanup(transport.CloseIdleConnections)
			url := http2Answers(t, c.text, c.blocks...)
			r := request(t, url, "")
			hinted := atmostonce.WithInformational(r.Context(), func(int, http.Header) error { return nil })
			for _, r := range []*http.Request{r, r.WithContext(hinted)} {
				answer, sent, err := atmostonce.RoundTrip(transport, r, atmostonce.Limits{Memory: b})
				if !sent || c.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Fatalf("sent %t, error %v, want %q", sent, err, c.want)
				}
				if refused, _ := errors.AsType[*atmostonce.BadAnswer](err); err != nil {
					if refused == nil {
						t.Errorf("the error is no BadAnswer: %v", err)
					}
					continue
				}
				text, err := io.ReadAll(answer.Body)
				_ = answer.Body.Close()
				bodiless := answer.StatusCode == 204 || answer.StatusCode == 304
				if err != nil || bodiless != (len(text) == 0) && c.text != "" {
					t.Errorf("%d %v has the body %q, %v", answer.StatusCode, answer.Header, text, err)
				}
				if answer.StatusCode == 204 && answer.Header.Get("Content-Length") != "" {
					t.Error("a 204 has a Content-Length")
				}
			}
			if used := b.used.Load(); used != 0 {
				t.Errorf("%d bytes are used after the answers", used)
			}
		})
	}
}

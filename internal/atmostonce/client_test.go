package atmostonce_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/atmostonce"
)

// newClient returns a Client that counts its dials.
func newClient(t *testing.T) (c *atmostonce.Client, dials *atomic.Int64) {
	t.Helper()
	dials = new(atomic.Int64)
	c = atmostonce.NewClient(atmostonce.Transport(&http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
		ExpectContinueTimeout: time.Second,
	}), atmostonce.Limits{})
	t.Cleanup(c.Close)
	return c, dials
}

// fetch sends a request and reads the whole answer.
func fetch(t *testing.T, c *atmostonce.Client, r *http.Request) (answer *http.Response, body string) {
	t.Helper()
	answer, sent, err := c.RoundTrip(r)
	if err != nil || !sent {
		t.Fatalf("sent %t: %v", sent, err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, string(b)
}

// scripted starts a server that handles its connections one after the other, each with the next of scripts. It returns
// the URL of the server.
func scripted(t *testing.T, scripts ...func(c net.Conn, in *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, serve := range scripts {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serve(c, bufio.NewReader(c))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return "http://" + l.Addr().String()
}

// receive reads one request without a body.
func receive(in *bufio.Reader) {
	for {
		if line, err := in.ReadString('\n'); err != nil || line == "\r\n" {
			return
		}
	}
}

const emptyAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

func TestClient_KeepsConnection(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "Sum")
		if r.URL.Path == "/none" {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		_, _ = w.Write(b)
		if r.URL.Path == "/chunks" {
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "more")
		}
		w.Header().Set("Sum", "7")
	}))
	defer server.Close()
	c, dials := newClient(t)
	for _, one := range []struct{ verb, path, body, want string }{
		{"GET", "/", "", ""}, {"POST", "/", "text", "text"}, {"POST", "/chunks", "text", "textmore"},
		{"HEAD", "/", "", ""}, {"POST", "/none", "text", ""}, {"GET", "/chunks", "", "more"}, {"GET", "/", "", ""},
		{"PUT", "/", strings.Repeat("long ", 1<<16), strings.Repeat("long ", 1<<16)},
	} {
		r := request(t, server.URL+one.path, one.body)
		r.Method = one.verb
		answer, body := fetch(t, c, r)
		if body != one.want {
			t.Errorf("%s %s: %d bytes", one.verb, one.path, len(body))
		}
		if one.path == "/chunks" && answer.Trailer.Get("Sum") != "7" {
			t.Errorf("%s %s: trailers %v", one.verb, one.path, answer.Trailer)
		}
		_, err := answer.Body.Read(make([]byte, 1))
		if !errors.Is(err, io.EOF) {
			t.Errorf("a read after the end: %v", err)
		}
	}
	// The end of a request with a body may be noticed after the end of its answer. The connection is kept anyway.
	if n := dials.Load(); n > 2 {
		t.Errorf("%d connections for one request at a time", n)
	}
}

func TestClient_DoesNotKeepConnection(t *testing.T) {
	for name, script := range map[string]func(c net.Conn, in *bufio.Reader){
		"closed": func(c net.Conn, in *bufio.Reader) {
			receive(in)
			_, _ = io.WriteString(c, emptyAnswer)
		},
		"sends more": func(c net.Conn, in *bufio.Reader) {
			receive(in)
			_, _ = io.WriteString(c, emptyAnswer+"HTTP/1.1 408 Request Timeout\r\n\r\n")
			receive(in) // until the client closes the connection
		},
		"announces close": func(c net.Conn, in *bufio.Reader) {
			receive(in)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			receive(in)
		},
		"HTTP/1.0": func(c net.Conn, in *bufio.Reader) {
			receive(in)
			_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			url := scripted(t, script, func(c net.Conn, in *bufio.Reader) {
				receive(in)
				_, _ = io.WriteString(c, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
			})
			c, dials := newClient(t)
			if answer, _ := fetch(t, c, request(t, url, "")); answer.StatusCode != 200 {
				t.Error(answer.Status)
			}
			// Until this process notices the end of the connection, a request may fail after it was sent.
			for {
				answer, _, err := c.RoundTrip(request(t, url, ""))
				if err != nil && name == "closed" && dials.Load() == 1 {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				_ = answer.Body.Close()
				if answer.StatusCode != 201 || dials.Load() != 2 {
					t.Errorf("%s on connection %d", answer.Status, dials.Load())
				}
				return
			}
		})
	}
}

func TestClient_RefusedRequestWasNotSent(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	c, _ := newClient(t)
	for _, body := range []string{"", "text"} {
		if _, sent, err := c.RoundTrip(request(t, server.URL, body)); err == nil || sent {
			t.Errorf("sent %t: %v", sent, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, sent, err := c.RoundTrip(request(t, server.URL, "").WithContext(ctx)); !errors.Is(err, context.Canceled) ||
		sent {
		t.Errorf("sent %t: %v", sent, err)
	}
}

func TestClient_NoAnswerMayHaveBeenReceived(t *testing.T) {
	ended := func(c net.Conn, in *bufio.Reader) { receive(in) }
	url := scripted(t, ended, ended)
	c, _ := newClient(t)
	for _, body := range []string{"", "text"} {
		if _, sent, err := c.RoundTrip(request(t, url, body)); err == nil || !sent {
			t.Errorf("sent %t: %v", sent, err)
		}
	}
}

// TestClient_EarlyAnswer checks that the client returns an answer that the server sends before it has read the
// request.
func TestClient_EarlyAnswer(t *testing.T) {
	url := scripted(t, func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
	})
	c, _ := newClient(t)
	unsent, feed := io.Pipe()
	defer feed.Close()
	r := request(t, url, "x")
	r.Body, r.ContentLength = unsent, -1
	if answer, body := fetch(t, c, r); answer.StatusCode != 403 || body != "no" {
		t.Errorf("%s %q", answer.Status, body)
	}
}

func TestClient_FullDuplex(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		_ = control.EnableFullDuplex()
		b := make([]byte, 1)
		for {
			n, err := r.Body.Read(b)
			_, _ = w.Write(b[:n])
			_ = control.Flush()
			if err != nil {
				return
			}
		}
	}))
	defer server.Close()
	c, _ := newClient(t)
	body, feed := io.Pipe()
	r := request(t, server.URL, "x")
	r.Body, r.ContentLength = body, -1
	go func() { _, _ = feed.Write([]byte("a")) }()
	answer, _, err := c.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	got := make([]byte, 1)
	for next := byte('a'); next < 'f'; next++ {
		if _, err := io.ReadFull(answer.Body, got); err != nil || got[0] != next {
			t.Fatalf("%q: %v", got, err)
		}
		_, _ = feed.Write([]byte{next + 1})
	}
	_ = feed.Close()
	if rest, err := io.ReadAll(answer.Body); string(rest) != "f" || err != nil {
		t.Errorf("%q: %v", rest, err)
	}
}

func TestClient_FailedBody(t *testing.T) {
	aborted := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(io.Discard, r.Body)
		aborted <- err
	}))
	defer server.Close()
	c, _ := newClient(t)
	body, feed := io.Pipe()
	failure := errors.New("the source failed")
	go func() {
		_, _ = feed.Write([]byte("begun"))
		_ = feed.CloseWithError(failure)
	}()
	r := request(t, server.URL, "x")
	r.Body, r.ContentLength = body, -1
	if _, sent, err := c.RoundTrip(r); !errors.Is(err, failure) || !sent {
		t.Errorf("sent %t: %v", sent, err)
	}
	if err := <-aborted; err == nil {
		t.Error("the server received a complete body")
	}
}

func TestClient_InformationalAnswers(t *testing.T) {
	hint := "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
	url := scripted(t, func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, hint+hint+emptyAnswer)
	})
	c, _ := newClient(t)
	var got []string
	ctx := atmostonce.WithInformational(t.Context(), func(code int, h http.Header) error {
		got = append(got, fmt.Sprint(code, h["Link"]))
		return nil
	})
	fetch(t, c, request(t, url, "").WithContext(ctx))
	if want := "103 [</a>],103 [</a>]"; strings.Join(got, ",") != want {
		t.Error(got)
	}
}

func TestClient_HeadIsLimited(t *testing.T) {
	for name, line := range map[string]string{
		"headers": "X-More: " + strings.Repeat("x", 1000) + "\r\n",
		"hints":   "Link: " + strings.Repeat("x", 1000) + "\r\n\r\nHTTP/1.1 103 Early Hints\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			url := scripted(t, func(c net.Conn, in *bufio.Reader) {
				receive(in)
				_, err := io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n")
				for err == nil {
					_, err = io.WriteString(c, line)
				}
			})
			c, _ := newClient(t)
			_, _, err := c.RoundTrip(request(t, url, ""))
			if err == nil || !strings.Contains(err.Error(), "have 65536 bytes") {
				t.Error(err)
			}
		})
	}
}

func TestClient_Upgrade(t *testing.T) {
	url := scripted(t, func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhi ")
		b := make([]byte, 5)
		if _, err := io.ReadFull(in, b); err == nil {
			_, _ = c.Write(b)
		}
	})
	c, _ := newClient(t)
	r := request(t, url, "")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "echo")
	answer, _, err := c.RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(answer, err)
	}
	tunnel, ok := answer.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatal("the body is no tunnel")
	}
	if _, err := io.WriteString(tunnel, "hello"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(tunnel); string(got) != "hi hello" || err != nil {
		t.Errorf("%q: %v", got, err)
	}
	_ = tunnel.Close()
}

func TestClient_EndOfContextClosesConnection(t *testing.T) {
	for _, begun := range []string{"", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun"} {
		closed := make(chan struct{})
		received := make(chan struct{})
		url := scripted(t, func(c net.Conn, in *bufio.Reader) {
			receive(in)
			_, _ = io.WriteString(c, begun)
			close(received)
			_, _ = in.ReadByte() // fails when the client closes the connection
			close(closed)
		})
		c, _ := newClient(t)
		cause := errors.New("the caller has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-received
			if begun == "" {
				cancel(cause)
			}
		}()
		answer, sent, err := c.RoundTrip(request(t, url, "").WithContext(ctx))
		if begun != "" && err == nil {
			cancel(cause)
			_, err = io.ReadAll(answer.Body)
			_ = answer.Body.Close()
		}
		if !errors.Is(err, cause) || !sent {
			t.Errorf("%q: sent %t: %v", begun, sent, err)
		}
		<-closed
	}
}

// TestClient_CloseOfBodyEndsRead checks that an early Close of a body ends the connection, even if another goroutine
// reads the body.
func TestClient_CloseOfBodyEndsRead(t *testing.T) {
	url := scripted(t, func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun")
		_, _ = in.ReadByte()
	})
	c, _ := newClient(t)
	answer, _, err := c.RoundTrip(request(t, url, ""))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := io.ReadAll(answer.Body)
		ended <- err
	}()
	_ = answer.Body.Close()
	if err := <-ended; err == nil {
		t.Error("the body is complete")
	}
}

func TestClient_ClosesIdleConnections(t *testing.T) {
	for name, finish := range map[string]func(c *atmostonce.Client){
		"after a time": func(*atmostonce.Client) {},
		"with Close":   (*atmostonce.Client).Close,
	} {
		t.Run(name, func(t *testing.T) {
			closed := make(chan struct{})
			url := scripted(t, func(c net.Conn, in *bufio.Reader) {
				receive(in)
				_, _ = io.WriteString(c, emptyAnswer)
				_, _ = in.ReadByte()
				close(closed)
			})
			idle := 10 * time.Millisecond
			if name == "with Close" {
				idle = time.Hour
			}
			c := atmostonce.NewClient(atmostonce.Transport(&http.Transport{DialContext: new(net.Dialer).DialContext,
				MaxIdleConnsPerHost: 1, IdleConnTimeout: idle}), atmostonce.Limits{})
			defer c.Close()
			fetch(t, c, request(t, url, ""))
			finish(c)
			<-closed
		})
	}
}

// TestClient_CloseDuringRequest checks that a connection in use when the Client is closed is closed after its answer.
func TestClient_CloseDuringRequest(t *testing.T) {
	closed := make(chan struct{})
	url := scripted(t, func(c net.Conn, in *bufio.Reader) {
		receive(in)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole")
		_, _ = in.ReadByte()
		close(closed)
	})
	c, _ := newClient(t)
	answer, _, err := c.RoundTrip(request(t, url, ""))
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if b, err := io.ReadAll(answer.Body); string(b) != "whole" || err != nil {
		t.Errorf("%q: %v", b, err)
	}
	<-closed
}

func TestClient_ExpectContinue(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/refused" {
			w.WriteHeader(http.StatusExpectationFailed)
			return
		}
		_, _ = io.Copy(w, r.Body)
	}))
	defer server.Close()
	c, _ := newClient(t)
	for path, want := range map[string]string{"/": "text", "/refused": ""} {
		r := request(t, server.URL+path, "text")
		r.Header.Set("Expect", "100-continue")
		if _, body := fetch(t, c, r); body != want {
			t.Errorf("%s: %q", path, body)
		}
	}
}

// FuzzClient_Answer compares the Client with http.Transport: for the same bytes of a server, both return the same
// answer, or an error.
func FuzzClient_Answer(f *testing.F) {
	for _, text := range []string{emptyAnswer, "HTTP/1.1 200 OK\r\n\r\nuntil the end",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n" + emptyAnswer,
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nraw",
		"HTTP/1.1 101 Switching Protocols\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na",
		"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "HTTP/1.1 999 \r\na b: c\r\n\r\n",
	} {
		f.Add("GET", text)
		f.Add("HEAD", text)
	}
	f.Fuzz(func(t *testing.T, verb, text string) {
		if verb != "GET" && verb != "HEAD" {
			t.Skip()
		}
		dial := func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go func() {
				receive(bufio.NewReader(there))
				_, _ = io.WriteString(there, text)
				_ = there.Close()
			}()
			return here, nil
		}
		transport := atmostonce.Transport(&http.Transport{DialContext: dial, DisableCompression: true,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute})
		defer transport.CloseIdleConnections()
		c := atmostonce.NewClient(transport, atmostonce.Limits{})
		defer c.Close()
		ask := func(send func(*http.Request) (*http.Response, bool, error)) string {
			r, err := http.NewRequestWithContext(t.Context(), verb, "http://server/", nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, _, err := send(r)
			if err != nil {
				return "error"
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			_, tunnel := answer.Body.(io.Writer)
			return fmt.Sprintf("%d %v %q %t %v %t", answer.StatusCode, answer.Header, body, err == nil,
				answer.Trailer, tunnel)
		}
		want := ask(func(r *http.Request) (*http.Response, bool, error) {
			return atmostonce.RoundTrip(transport, r, atmostonce.Limits{})
		})
		if got := ask(c.RoundTrip); got != want {
			t.Errorf("%q\nclient:    %s\ntransport: %s", text, got, want)
		}
	})
}

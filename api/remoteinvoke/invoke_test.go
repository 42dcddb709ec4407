package remoteinvoke_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/testutil"
)

// describe is an application that answers with a description of the request that it has received.
func describe(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	w.Header().Set("X-App", "yes")
	w.Header()["X-Twice"] = []string{"1", "2"}
	w.WriteHeader(http.StatusTeapot)
	fmt.Fprintf(w, "%s %s|%s|%s", r.Method, r.RequestURI, r.Header.Get("X-Mine"), b)
}

func TestInvoke_PassesVerbPathQueryHeadersBodyAndStatus(t *testing.T) {
	a, b := pair(t, describe)
	c := client(t)
	for _, from := range []*node{a, b} {
		for _, verb := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "QUERY",
			"TRACE"} {
			var in io.Reader
			if verb == "POST" || verb == "QUERY" {
				in = strings.NewReader("hello")
			}
			r, err := http.NewRequest(verb, from.url("/v1.0/invoke/web/method/a/b/c?x=1&x=2&y"), in)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Mine", "me")
			answer, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			want := verb + " /a/b/c?x=1&x=2&y|me|"
			if in != nil {
				want += "hello"
			}
			if got := body(t, answer); answer.StatusCode != http.StatusTeapot || got != want {
				t.Errorf("%s at %s: %d %q", verb, from.name, answer.StatusCode, got)
			}
			if answer.Header.Get("X-App") != "yes" || len(answer.Header["X-Twice"]) != 2 ||
				answer.Header.Get("Content-Type") == "" {
				t.Errorf("headers %v", answer.Header)
			}
		}
	}
}

// raw sends a GET request with a target that is sent byte for byte. more has further header lines.
func raw(t *testing.T, n *node, target, more string) (status int, text string) {
	t.Helper()
	conn, err := net.Dial("tcp", n.api.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\n%sConnection: close\r\n\r\n", target, more)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, body(t, answer)
}

func TestHeaders_HopByHopAndRuntimeAreDropped(t *testing.T) {
	got := make(chan http.Header, 1)
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		w.Header().Set("Keep-Alive", "timeout=5")
		w.Header().Set("Quorate-Fault", "forged")
		w.Header().Set("Connection", "X-Gone")
		w.Header().Set("X-Gone", "1")
		w.Header().Set("X-Stays", "1")
	})
	r, err := http.NewRequest("GET", a.url("/v1.0/invoke/web/method/x"), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Connection": "X-Mine, keep-alive", "X-Mine": "1", "Proxy-Authorization": "x", "Quorate-Caller": "admin.",
		"Dapr-Caller-App-Id": "admin", "Key-Bin": "AA==",
		"Authorization": "Bearer t", "Cookie": "c=1", "X-Forwarded-For": "9.9.9.9", "Te": "trailers",
		"Quorate-Anything": "1",
	} {
		r.Header.Set(name, value)
	}
	answer, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body(t, answer)
	h := <-got
	for name := range h {
		if strings.HasPrefix(name, "Quorate-") || name == "X-Mine" || name == "Proxy-Authorization" ||
			name == "Key-Bin" {
			t.Errorf("the application got %s", name)
		}
	}
	if h.Get("Authorization") != "Bearer t" || h.Get("Cookie") != "c=1" || h.Get("Te") != "trailers" ||
		h.Get("User-Agent") == "" {
		t.Errorf("missing: %v", h)
	}
	if h.Get("Dapr-Caller-App-Id") != "shop" || h.Get("Dapr-Callee-App-Id") != "web" ||
		h.Get("X-Forwarded-For") != "9.9.9.9, 127.0.0.1" || h.Get("Traceparent") == "" {
		t.Errorf("added: %v", h)
	}
	if answer.Header.Get("X-Stays") != "1" || answer.Header.Get("X-Gone") != "" ||
		answer.Header.Get("Quorate-Fault") != "" || answer.StatusCode != http.StatusOK {
		t.Errorf("answer: %d %v", answer.StatusCode, answer.Header)
	}
}

func TestInvoke_StreamsEventsAndCancelsAtApp(t *testing.T) {
	next, ended := make(chan string), make(chan struct{})
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			select {
			case e := <-next:
				fmt.Fprintf(w, "data: %s\n\n", e)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				close(ended)
				return
			}
		}
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", a.url("/v1.0/invoke/web/method/events"), nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { next <- "0" }()
	answer, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	for i := range 3 {
		if i > 0 {
			next <- fmt.Sprint(i)
		}
		line, err := lines.ReadString('\n')
		if want := fmt.Sprintf("data: %d\n", i); err != nil || line != want {
			t.Fatalf("%q %v", line, err)
		}
		_, _ = lines.ReadString('\n')
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the application's context did not end")
	}
}

func TestInvoke_StreamsBothWaysConcurrently(t *testing.T) {
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.WriteHeader(http.StatusOK)
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			fmt.Fprintf(w, "echo %s\n", lines.Text())
			w.(http.Flusher).Flush()
		}
	})
	out, in := io.Pipe()
	r, err := http.NewRequest("POST", a.url("/v1.0/invoke/web/method/chat"), out)
	if err != nil {
		t.Fatal(err)
	}
	go func() { fmt.Fprintln(in, "0") }()
	answer, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for i := range 5 {
		if i > 0 {
			fmt.Fprintln(in, i)
		}
		if !lines.Scan() || lines.Text() != fmt.Sprintf("echo %d", i) {
			t.Fatalf("%q %v", lines.Text(), lines.Err())
		}
	}
	in.Close()
	if lines.Scan() {
		t.Error("more came")
	}
}

// pattern is a reader that returns left bytes of a pattern.
type pattern struct{ left, at int64 }

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(b)), p.left))
	for i := range b[:n] {
		b[i] = byte((p.at + int64(i)) * 31)
	}
	p.left, p.at = p.left-int64(n), p.at+int64(n)
	return n, nil
}

func TestInvoke_HugeBodyUsesConstantMemory(t *testing.T) {
	testutil.SkipUnderRace(t, "moves hundreds of megabytes through one goroutine at a time")
	const size = 256 << 20
	sum := make(chan [32]byte, 1)
	// The answer begins after the end of the request. If both filled all buffers of the four connections, Linux 6.18
	// could drop segments in both directions, and retry for minutes.
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		_, _ = io.Copy(h, r.Body)
		sum <- [32]byte(h.Sum(nil))
		_, _ = io.Copy(w, &pattern{left: size})
	})
	var before, peak runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	r, err := http.NewRequest("POST", a.url("/v1.0/invoke/web/method/big"), &pattern{left: size})
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = size
	answer, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	var most uint64
	for n := int64(0); ; {
		k, err := answer.Body.Read(buf)
		h.Write(buf[:k])
		if n/(64<<20) != (n+int64(k))/(64<<20) {
			runtime.ReadMemStats(&peak)
			most = max(most, peak.HeapInuse)
		}
		if n += int64(k); errors.Is(err, io.EOF) {
			if n != size {
				t.Errorf("%d bytes came back", n)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := [32]byte(h.Sum(nil)); got != <-sum {
		t.Error("the bytes changed on the way")
	}
	if grown := int64(most) - int64(before.HeapInuse); grown > 32<<20 {
		t.Errorf("%d MiB of memory for %d MiB of body", grown>>20, size>>20)
	}
}

func TestTrailers_PassBothWays(t *testing.T) {
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-After")
		fmt.Fprintf(w, "%s %s", b, r.Trailer.Get("X-Sum"))
		w.Header().Set("X-After", "late")
		w.Header().Set(http.TrailerPrefix+"X-Surprise", "later")
	})
	r, err := http.NewRequest("POST", a.url("/v1.0/invoke/web/method/t"), io.NopCloser(strings.NewReader("text")))
	if err != nil {
		t.Fatal(err)
	}
	r.Trailer = http.Header{"X-Sum": {"42"}}
	answer, err := client(t).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, answer); got != "text 42" {
		t.Errorf("got %q", got)
	}
	if answer.Trailer.Get("X-After") != "late" || answer.Trailer.Get("X-Surprise") != "later" {
		t.Errorf("trailers %v", answer.Trailer)
	}
}

func TestInvoke_AppMayDeclineBodyBeforeItIsSent(t *testing.T) {
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Expect") == "" {
			t.Error("no body was requested")
		}
		w.WriteHeader(http.StatusExpectationFailed)
	})
	read := make(chan struct{}, 1)
	r, err := http.NewRequest("PUT", a.url("/v1.0/invoke/web/method/x"), readerFunc(func([]byte) (int, error) {
		read <- struct{}{}
		return 0, io.EOF
	}))
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = 1000
	r.Header.Set("Expect", "100-continue")
	c := client(t)
	c.Transport.(*http.Transport).ExpectContinueTimeout = time.Minute
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	body(t, answer)
	if answer.StatusCode != http.StatusExpectationFailed || len(read) > 0 {
		t.Errorf("%d, body read: %v", answer.StatusCode, len(read) > 0)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestUpgrade_BecomesTunnel(t *testing.T) {
	a, b := pair(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "shout" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "shout")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = rw.WriteString(strings.ToUpper(line))
			_ = rw.Flush()
		}
	})
	for _, from := range []*node{a, b} {
		conn, err := net.Dial("tcp", from.api.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /v1.0/invoke/web/method/ws HTTP/1.1\r\nHost: localhost\r\nConnection: keep-alive, "+
			"Upgrade\r\nUpgrade: shout\r\n\r\nearly\n")
		in := bufio.NewReader(conn)
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != http.StatusSwitchingProtocols || answer.Header.Get("Upgrade") != "shout" {
			t.Fatalf("%d %v", answer.StatusCode, answer.Header)
		}
		for _, word := range []string{"early", "one", "two"} {
			if word != "early" {
				fmt.Fprintln(conn, word)
			}
			if line, err := in.ReadString('\n'); err != nil || line != strings.ToUpper(word)+"\n" {
				t.Fatalf("%q %v", line, err)
			}
		}
		conn.Close()
	}
}

func TestInvoke_TruncatedAnswerIsAnError(t *testing.T) {
	a, b := pair(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(bytes.Repeat([]byte("x"), 100_000))
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	for _, from := range []*node{a, b} {
		answer, err := client(t).Get(from.url("/v1.0/invoke/web/method/x"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(answer.Body); err == nil {
			t.Error("the answer looks complete")
		}
		answer.Body.Close()
	}
}

func TestInvoke_AppAnswersBeforeReadingBody(t *testing.T) {
	a, _ := pair(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	for range 5 {
		answer, err := client(t).Post(a.url("/v1.0/invoke/web/method/x"), "text/plain", &pattern{left: 1 << 20})
		if err != nil {
			continue // the connection may break while the rest of the body is sent
		}
		body(t, answer)
		if answer.StatusCode != http.StatusForbidden {
			t.Errorf("%d", answer.StatusCode)
		}
	}
}

func TestInvoke_ErrorNamesHopAndOutcome(t *testing.T) {
	t.Parallel()
	dead := httptest.NewServer(nil)
	addr := dead.Listener.Addr().String()
	dead.Close()
	w := newWorld(t)
	b := w.start("b", "web", addr, nil)
	a := w.start("a", "shop", "", nil)
	w.start("c", "hasty", app(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), nil)
	for _, c := range []struct {
		from *node
		path string
		want []string
	}{
		{b, "web", []string{"the application at " + addr + " cannot be reached", `"reason":"unreachable"`}},
		{a, "web", []string{"node b: the application at " + addr + " cannot be reached", `"reason":"unreachable"`,
			`"hop":"node b"`}},
		{a, "hasty", []string{"node c: the application at", "did not answer", `"reason":"indeterminate"`}},
		{a, "absent", []string{"couldn't find service: absent", `"hop":"discovery"`}},
		{a, "shop", []string{"couldn't find service: shop"}},
	} {
		b.gone.Store(false)
		answer, err := client(t).Post(c.from.url("/v1.0/invoke/"+c.path+"/method/x"), "text/plain",
			strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		text := body(t, answer)
		for _, want := range c.want {
			if answer.StatusCode != http.StatusInternalServerError || !strings.Contains(text, want) {
				t.Errorf("%s at %s: %d %s: %q is missing", c.path, c.from.name, answer.StatusCode, text, want)
			}
		}
	}
}

func TestInvoke_NotRetriedIfAppMayHaveSeenIt(t *testing.T) {
	var calls atomic.Int32
	first := make(chan struct{}, 10)
	a, _ := pair(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1)%2 == 1 {
			_, _ = w.Write([]byte("ok")) // the connection is kept
			return
		}
		first <- struct{}{}
		panic(http.ErrAbortHandler)
	})
	for range 3 {
		for i, want := range []int{http.StatusOK, http.StatusInternalServerError} {
			answer, err := client(t).Get(a.url("/v1.0/invoke/web/method/x"))
			if err != nil {
				t.Fatal(err)
			}
			if body(t, answer); answer.StatusCode != want {
				t.Errorf("call %d: %d", i, answer.StatusCode)
			}
		}
	}
	if len(first) != 3 {
		t.Errorf("%d broken calls reached the application, 3 were made", len(first))
	}
}

func TestInvoke_FailsOverToAnotherInstance(t *testing.T) {
	dead := httptest.NewServer(nil)
	addr := dead.Listener.Addr().String()
	dead.Close()
	w := newWorld(t)
	b := w.start("b", "web", addr, nil)
	w.start("c", "web", app(t, describe), nil)
	a := w.start("a", "shop", "", nil)
	for i := range 20 {
		b.gone.Store(false)
		answer, err := client(t).Post(a.url("/v1.0/invoke/web/method/x"), "text/plain", strings.NewReader("again"))
		if err != nil {
			t.Fatal(err)
		}
		if text := body(t, answer); text != "POST /x||again" {
			t.Fatalf("call %d: %d %s", i, answer.StatusCode, text)
		}
	}
}

func TestInvoke_SlowAppDelaysOnlyItsOwnCalls(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t)
	w.start("b", "web", app(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-release
		}
		_, _ = w.Write([]byte("done"))
	}), func(o *appchannel.Options) { o.MaxConcurrency = 2 })
	a := w.start("a", "shop", "", nil)
	slow := make(chan int, 2)
	for range 2 {
		go func() {
			answer, err := client(t).Get(a.url("/v1.0/invoke/web/method/slow"))
			if err != nil {
				slow <- 0
				return
			}
			answer.Body.Close()
			slow <- answer.StatusCode
		}()
	}
	eventually(t, "the slow calls hold both places", func() bool { return w.nodes["b"].channel.InFlight() == 2 })
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", a.url("/v1.0/invoke/web/method/fast"), nil)
	if answer, err := client(t).Do(r); err == nil {
		t.Errorf("a third call passed: %d", answer.StatusCode)
		answer.Body.Close()
	}
	close(release)
	for range 2 {
		if got := <-slow; got != http.StatusOK {
			t.Errorf("%d", got)
		}
	}
	answer, err := client(t).Get(a.url("/v1.0/invoke/web/method/fast"))
	if err != nil {
		t.Fatal(err)
	}
	if body(t, answer) != "done" {
		t.Error("the place was not given back")
	}
}

func TestInvoke_PassesInformationalAnswersAndRedirects(t *testing.T) {
	a, _ := pair(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
	})
	conn, err := net.Dial("tcp", a.api.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /v1.0/invoke/web/method/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	all, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(all), "HTTP/1.1 103") || !strings.Contains(string(all), "302 Found") ||
		!strings.Contains(string(all), "Location: /elsewhere") {
		t.Errorf("%s", all)
	}
}

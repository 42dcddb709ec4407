package http_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/internal/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHeaders_OverLimitAre431(t *testing.T) {
	base := newFixture(t).serve(t)
	for size, want := range map[int]int{3000: http.StatusNoContent, 16 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		conn := servertest.Dial(t, base)
		_, _ = io.WriteString(conn,
			"GET /v1.0/state/orders/a HTTP/1.1\r\nHost: localhost\r\nX-Fill: "+strings.Repeat("x", size)+"\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("a header of %d bytes: %d, want %d", size, response.StatusCode, want)
		}
	}
}

func TestServer_ServesHTTP10WithoutHost(t *testing.T) {
	conn := servertest.Dial(t, newFixture(t).serve(t))
	_, _ = io.WriteString(conn, "GET /v1.0/healthz HTTP/1.0\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		t.Errorf("status %d", response.StatusCode)
	}
}

func TestServer_SpeaksH2CUnlessDisabled(t *testing.T) {
	f := newFixture(t)
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []bool{false, true} {
		server := servertest.Open(t, httpserver.Config{Handler: face, DisableH2C: off})
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), "POST",
			"http://"+server.Addr().String()+"/v1.0/state/orders",
			strings.NewReader(`[{"key":"h2","value":1}]`))
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if off {
			if err == nil {
				_ = response.Body.Close()
				t.Error("HTTP/2 was spoken although it is switched off")
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusNoContent || response.ProtoMajor != 2 {
			t.Errorf("status %d over %s", response.StatusCode, response.Proto)
		}
	}
}

// An error answer reaches a client that pauses its upload. If the client completes the upload, its connection stays
// open.
func TestServer_ErrorAnswerDoesNotWaitForUpload(t *testing.T) {
	base := newFixture(t).serve(t)
	const upload = "POST /nowhere HTTP/1.1\r\nHost: localhost\r\n"
	for name, c := range map[string]struct {
		begin, rest string
		closed      bool
	}{
		"chunked, paused": {begin: "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", closed: true},
		"length, paused":  {begin: "Content-Length: 2\r\n\r\na", closed: true},
		"chunked, ended":  {begin: "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n", rest: "0\r\n\r\n"},
		"length, ended":   {begin: "Content-Length: 2\r\n\r\na", rest: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := servertest.Dial(t, base)
			answers := bufio.NewReader(conn)
			for range 2 {
				if _, err := io.WriteString(conn, upload+c.begin+c.rest); err != nil {
					t.Fatal(err)
				}
				response, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
				if response.StatusCode != http.StatusNotFound || response.Close != c.closed {
					t.Errorf("%d, closed %t, want 404, closed %t", response.StatusCode, response.Close, c.closed)
				}
				if response.Close {
					break
				}
			}
		})
	}
}

// A client that announces a large body and sends none of it keeps memory only until another request needs the memory.
func TestBody_UnsentIsCutWhenMemoryIsShort(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.config.Requests = admission.New(admission.Options{Bytes: 8 << 20})
	base := f.serve(t)
	silent := servertest.Dial(t, base)
	_, _ = io.WriteString(silent, "POST /v1.0/state/orders HTTP/1.1\r\nHost: localhost\r\n"+
		"Content-Length: 4194304\r\nExpect: 100-continue\r\n\r\n")
	in := bufio.NewReader(silent)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatal(line, err)
	}
	if line, err := in.ReadString('\n'); err != nil || line != "\r\n" { // ends the informational answer
		t.Fatal(line, err)
	}
	value := strings.Repeat("x", 1<<20)
	if code, _, text := do(t, "POST", base+"/v1.0/state/orders", `[{"key":"a","value":"`+value+`"}]`); code !=
		http.StatusNoContent {
		t.Errorf("%d %s", code, text)
	}
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || !strings.Contains(string(text), "ERR_OVERLOADED") {
		t.Errorf("%d %s %v", answer.StatusCode, text, err)
	}
}

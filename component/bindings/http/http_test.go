package http_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/component/bindings/bindingstest"
	bindinghttp "github.com/quorate/quorate/component/bindings/http"
	"github.com/quorate/quorate/internal/fault"
)

func open(t *testing.T, pairs ...string) (bindings.Binding, error) {
	t.Helper()
	var m component.Metadata
	for i := 0; i < len(pairs); i += 2 {
		m = append(m, component.Property{Name: pairs[i], Value: pairs[i+1]})
	}
	v, _, err := m.Check(component.Pos{}, "partner", bindinghttp.Fields())
	if err != nil {
		return bindings.Binding{}, err
	}
	b, err := bindinghttp.Open(bindinghttp.Options{Metadata: v, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		t.Cleanup(func() { _ = b.Close(context.Background()) })
	}
	return b, err
}

func opened(t *testing.T, pairs ...string) bindings.Output {
	t.Helper()
	b, err := open(t, pairs...)
	if err != nil {
		t.Fatal(err)
	}
	return b.Output
}

// partner starts a server that answers with the parts of its request.
func partner(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Received", r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Content-Type")+" "+
			r.Header.Get("X-Team")+r.Header.Get("X-Token"))
		switch r.URL.Path {
		case "/api/denied":
			w.WriteHeader(http.StatusForbidden)
		case "/api/broken":
			w.WriteHeader(http.StatusBadGateway)
		case "/api/lost":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/api/down":
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/api/busy":
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestOutput_Conformance(t *testing.T) {
	arrived := make(chan struct{}, 1)
	dead := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise net/http does not notice that the client disconnects
		arrived <- struct{}{}
		<-r.Context().Done()
	}))
	defer dead.Close()
	bindingstest.RunOutput(t, bindingstest.Output{
		Open: func(t *testing.T) bindings.Binding {
			b, err := open(t, "url", partner(t).URL)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Hang: func(t *testing.T) (bindings.Binding, <-chan struct{}) {
			b, err := open(t, "url", dead.URL)
			if err != nil {
				t.Fatal(err)
			}
			return b, arrived
		},
		Request: bindings.Request{Operation: "create", Data: []byte(`{"a":1}`)},
	})
}

func TestInvoke_SendsOperationPathAndHeaders(t *testing.T) {
	out := opened(t, "url", partner(t).URL+"/api", "securityToken", "s3cret", "securityTokenHeader", "X-Token")
	for _, row := range []struct {
		operation, path, want string
	}{
		{"create", "", "POST /api application/json blues3cret"},
		{"put", "/orders/a%2Fb?x=1", "PUT /api/orders/a%2Fb?x=1 application/json blues3cret"},
		{"get", "orders", "GET /api/orders  blues3cret"},
		{"delete", "/orders/1", "DELETE /api/orders/1 application/json blues3cret"},
	} {
		got, err := out.Invoke(t.Context(), bindings.Request{Operation: row.operation, Data: []byte(`{"a":1}`),
			Metadata: map[string]string{"path": row.path, "X-Team": "blue", "lower": "not a header"}})
		if err != nil {
			t.Fatal(err)
		}
		if got.Metadata["X-Received"] != row.want || got.Metadata["statusCode"] != "200" {
			t.Errorf("%s: the server received %q, want %q", row.operation, got.Metadata["X-Received"], row.want)
		}
		if wantBody := row.operation != "get"; wantBody != (string(got.Data) == `{"a":1}`) {
			t.Errorf("%s: body %q", row.operation, got.Data)
		}
	}
}

func TestInvoke_RefusesInvalidHeaders(t *testing.T) {
	out := opened(t, "url", partner(t).URL)
	for name, value := range map[string]string{"X-Note": "secret\nb", "Foo Bar": "secret", "Ünit": "secret",
		"traceparent": "secret\x00"} {
		_, err := out.Invoke(t.Context(), bindings.Request{Operation: "get", Metadata: map[string]string{name: value}})
		if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), name) ||
			strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPath_StaysBelowTheURL(t *testing.T) {
	out := opened(t, "url", partner(t).URL+"/api")
	for _, path := range []string{"http://other.example/", "//other.example/", "/../admin", "/%2e%2e/admin", "\x7f",
		"/..;/admin", "/..;x=1/admin", "/%2e%2e;/admin", "/..%3b/admin", "/a/..;", `/..\admin`, `/a\..\..\admin`,
		"/a%5c..%5cadmin", `\\other.example\`, "/a%2f..%2fadmin", "/..%2fadmin"} {
		r := bindings.Request{Operation: "get", Metadata: map[string]string{"path": path}}
		if _, err := out.Invoke(t.Context(), r); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestAnswer_FailureIsAnErrorWithItsResponse(t *testing.T) {
	server := partner(t)
	out := opened(t, "url", server.URL+"/api")
	codes := map[string]fault.Code{"denied": fault.Denied, "broken": fault.Indeterminate, "busy": fault.Overloaded,
		"down": fault.Unavailable, "lost": fault.Indeterminate}
	for path, want := range codes {
		r := bindings.Request{Operation: "post", Data: []byte("1"), Metadata: map[string]string{"path": path}}
		got, err := out.Invoke(t.Context(), r)
		if !fault.Is(err, want) || got == nil || string(got.Data) != "1" {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	lenient := opened(t, "url", server.URL+"/api/broken", "errorIfNot2XX", "false")
	got, err := lenient.Invoke(t.Context(), bindings.Request{Operation: "post"})
	if err != nil || got.Metadata["statusCode"] != "502" {
		t.Errorf("%v, %v", got, err)
	}
}

// The metadata errorIfNot2XX of a request overrides the setting of the component, whether it is true or false.
func TestAnswer_RequestDecidesWhetherAStatusIsAnError(t *testing.T) {
	server := partner(t)
	for _, c := range []struct {
		component, request string
		failure            bool
	}{
		{"true", "false", false}, {"true", "0", false}, {"true", "True", true}, {"false", "true", true},
		{"false", "FALSE", false},
	} {
		out := opened(t, "url", server.URL+"/api", "errorIfNot2XX", c.component)
		got, err := out.Invoke(t.Context(), bindings.Request{Operation: "post", Data: []byte("1"),
			Metadata: map[string]string{"path": "denied", "errorIfNot2XX": c.request}})
		if (err != nil) != c.failure || got == nil || got.Metadata["statusCode"] != "403" || string(got.Data) != "1" {
			t.Errorf("%v: %v, %v", c, got, err)
		}
	}
	_, err := opened(t, "url", server.URL+"/api").Invoke(t.Context(), bindings.Request{Operation: "post",
		Metadata: map[string]string{"errorIfNot2XX": "maybe"}})
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "errorIfNot2XX") {
		t.Error(err)
	}
}

func TestAnswer_LargeHeaderIsRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for n := range 20_000 {
			w.Header().Set("X"+strconv.Itoa(n), "")
		}
	}))
	defer server.Close()
	got, err := opened(t, "url", server.URL).Invoke(t.Context(), bindings.Request{Operation: "get"})
	if !fault.Is(err, fault.Indeterminate) || got != nil {
		t.Errorf("%v, with %d metadata", err, len(got.Metadata))
	}
}

// A header in Latin-1, such as the name of a file, must not make the answer of gRPC fail after the call was executed.
func TestAnswer_HeadersAreUTF8(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Disposition"] = []string{"attachment; filename=caf\xe9.txt", "x"}
		w.Header().Set("X-City", "Zürich")
	}))
	defer s.Close()
	got, err := opened(t, "url", s.URL).Invoke(t.Context(), bindings.Request{Operation: "get"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"Content-Disposition": "attachment; filename=caf\uFFFD.txt, x",
		"X-City": "Zürich"} {
		if got.Metadata[name] != want {
			t.Errorf("%s: %q, want %q", name, got.Metadata[name], want)
		}
	}
}

func TestAnswer_StatusIsUTF8(t *testing.T) {
	s := rawServer(t, "HTTP/1.1 200 pr\xeat\r\nContent-Length: 0\r\n\r\n")
	got, err := opened(t, "url", s).Invoke(t.Context(), bindings.Request{Operation: "get"})
	if err != nil || got.Metadata["status"] != "200 pr\uFFFDt" {
		t.Errorf("%+v, %v", got, err)
	}
}

// rawServer starts a server that answers each request with the same bytes, and returns its address.
func rawServer(t *testing.T, answer string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, answer)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestInvoke_SaysWhetherTheServerMayHaveGotTheRequest(t *testing.T) {
	hold, arrived := make(chan struct{}), make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hang/warm":
			return
		case "/hang":
			_, _ = io.Copy(io.Discard, r.Body)
			arrived <- struct{}{}
			<-hold
		}
		panic(http.ErrAbortHandler) // closes the connection
	}))
	defer server.Close()
	defer close(hold)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // makes no TLS handshake
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, c := range map[string]struct {
		url, timeout string
		want         fault.Code
	}{
		"nothing listens":             {closed.URL, "1m", fault.Unavailable},
		"the connection breaks":       {server.URL, "1m", fault.Indeterminate},
		"the call ends in the server": {server.URL + "/hang", "1m", fault.Indeterminate},
		"no connection in time":       {"https://" + silent.Addr().String(), "100ms", fault.Timeout},
	} {
		out := opened(t, "url", c.url, "responseTimeout", c.timeout)
		_, _ = out.Invoke(t.Context(), bindings.Request{Operation: "get", // opens a connection, if that is possible
			Metadata: map[string]string{"path": "/warm"}})
		ctx, cancel := context.WithCancel(t.Context())
		returned := make(chan struct{})
		var watch sync.WaitGroup
		watch.Go(func() {
			select {
			case <-arrived:
				cancel()
			case <-returned:
			}
		})
		_, err := out.Invoke(ctx, bindings.Request{Operation: "post"})
		close(returned)
		watch.Wait()
		cancel()
		if !fault.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswer_AboveLimitIsRefused(t *testing.T) {
	out := opened(t, "url", partner(t).URL, "maxResponseBodySize", "10")
	long := bindings.Request{Operation: "post", Data: []byte(strings.Repeat("1", 11))}
	if _, err := out.Invoke(t.Context(), long); !fault.Is(err, fault.Indeterminate) ||
		!strings.Contains(err.Error(), "maxResponseBodySize") {
		t.Errorf("%v", err)
	}
	most := opened(t, "url", partner(t).URL, "maxResponseBodySize", strconv.Itoa(math.MaxInt64))
	if got, err := most.Invoke(t.Context(), long); err != nil || len(got.Data) != 11 {
		t.Errorf("%v, %v", got, err)
	}
	short := bindings.Request{Operation: "post", Data: []byte(strings.Repeat("1", 10))}
	if _, err := out.Invoke(t.Context(), short); err != nil {
		t.Error(err)
	}
}

func TestRedirect_ToAnotherHostIsNotFollowed(t *testing.T) {
	called := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		called <- r.Header.Get("X-Token")
	}))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer first.Close()
	out := opened(t, "url", first.URL, "securityToken", "s3cret", "securityTokenHeader", "X-Token")
	got, err := out.Invoke(t.Context(), bindings.Request{Operation: "get"})
	if err == nil || got.Metadata["statusCode"] != "307" {
		t.Errorf("%v, %v", got, err)
	}
	select {
	case token := <-called:
		t.Errorf("the other host was called, with the token %q", token)
	default:
	}
}

func TestTLS_CertificatesAreUsed(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	server.StartTLS()
	defer server.Close()
	stranger := opened(t, "url", server.URL)
	if _, err := stranger.Invoke(t.Context(), bindings.Request{Operation: "get"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a server without a known certificate: %v", err)
	}
	root := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	trusting := opened(t, "url", server.URL, "MTLSRootCA", root)
	if _, err := trusting.Invoke(t.Context(), bindings.Request{Operation: "get"}); err != nil {
		t.Error(err)
	}
}

func TestOpen_RefusesInvalidMetadata(t *testing.T) {
	for _, pairs := range [][]string{
		{}, {"url", "partner.example"}, {"url", "ftp://partner.example"}, {"url", "http://a", "securityToken", "x"},
		{"url", "http://a", "MTLSClientCert", "x"}, {"url", "http://a", "MTLSRootCA", "/no/such/file"},
		{"url", "http://a", "securityTokenHeader", "a b"},
		{"url", "http://a", "securityTokenHeader", "X-Token", "securityToken", "x\n"},
		{"url", "http://a", "MTLSClientCert", "-----BEGIN", "MTLSClientKey", "-----BEGIN"},
	} {
		if _, err := open(t, pairs...); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", pairs, err)
		}
	}
}

func TestErrors_HaveNoToken(t *testing.T) {
	out := opened(t, "url", "http://user:s3cret@127.0.0.1:1/",
		"securityToken", "s3cret", "securityTokenHeader", "X-Token")
	_, err := out.Invoke(t.Context(), bindings.Request{Operation: "get"})
	if err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}

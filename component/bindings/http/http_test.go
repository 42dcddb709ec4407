package http_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
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

// partner answers with what it was asked.
func partner(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Asked", r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Content-Type")+" "+r.Header.Get("X-Team")+r.Header.Get("X-Token"))
		switch r.URL.Path {
		case "/api/denied":
			w.WriteHeader(http.StatusForbidden)
		case "/api/broken":
			w.WriteHeader(http.StatusBadGateway)
		case "/api/busy":
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = w.Write(body)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestItConforms(t *testing.T) {
	hang := make(chan struct{})
	dead := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}))
	defer dead.Close()
	defer close(hang)
	bindingstest.RunOutput(t, bindingstest.Output{
		Open: func(t *testing.T) bindings.Binding {
			b, err := open(t, "url", partner(t).URL)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Hang: func(t *testing.T) bindings.Binding {
			b, err := open(t, "url", dead.URL)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		Request: bindings.Request{Operation: "create", Data: []byte(`{"a":1}`)},
	})
}

func TestOperationPathAndHeadersMakeTheCall(t *testing.T) {
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
		if got.Metadata["X-Asked"] != row.want || got.Metadata["statusCode"] != "200" {
			t.Errorf("%s: asked %q, want %q", row.operation, got.Metadata["X-Asked"], row.want)
		}
		if wantBody := row.operation != "get"; wantBody != (string(got.Data) == `{"a":1}`) {
			t.Errorf("%s: body %q", row.operation, got.Data)
		}
	}
}

func TestAPathCannotLeadElsewhere(t *testing.T) {
	out := opened(t, "url", partner(t).URL+"/api")
	for _, path := range []string{"http://other.example/", "//other.example/", "/../admin", "/%2e%2e/admin", "\x7f"} {
		if _, err := out.Invoke(t.Context(), bindings.Request{Operation: "get", Metadata: map[string]string{"path": path}}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestAnAnswerThatIsNotASuccessIsAnErrorAndStillTold(t *testing.T) {
	server := partner(t)
	out := opened(t, "url", server.URL+"/api")
	for path, want := range map[string]fault.Code{"denied": fault.Denied, "broken": fault.Unavailable, "busy": fault.Overloaded} {
		got, err := out.Invoke(t.Context(), bindings.Request{Operation: "post", Data: []byte("1"), Metadata: map[string]string{"path": path}})
		if !fault.Is(err, want) || got == nil || string(got.Data) != "1" {
			t.Errorf("%s: %v, %v", path, got, err)
		}
	}
	lenient := opened(t, "url", server.URL+"/api/broken", "errorIfNot2XX", "false")
	if got, err := lenient.Invoke(t.Context(), bindings.Request{Operation: "post"}); err != nil || got.Metadata["statusCode"] != "502" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestAnAnswerAboveTheLimitIsRefused(t *testing.T) {
	out := opened(t, "url", partner(t).URL, "maxResponseBodySize", "10")
	if _, err := out.Invoke(t.Context(), bindings.Request{Operation: "post", Data: []byte(strings.Repeat("1", 11))}); !fault.Is(err, fault.TooLarge) {
		t.Errorf("%v", err)
	}
	if _, err := out.Invoke(t.Context(), bindings.Request{Operation: "post", Data: []byte(strings.Repeat("1", 10))}); err != nil {
		t.Error(err)
	}
}

func TestARedirectionToAnotherHostIsNotFollowed(t *testing.T) {
	asked := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { asked <- r.Header.Get("X-Token") }))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer first.Close()
	out := opened(t, "url", first.URL, "securityToken", "s3cret", "securityTokenHeader", "X-Token")
	if got, err := out.Invoke(t.Context(), bindings.Request{Operation: "get"}); err == nil || got.Metadata["statusCode"] != "307" {
		t.Errorf("%v, %v", got, err)
	}
	select {
	case token := <-asked:
		t.Errorf("the other host was asked, with the token %q", token)
	default:
	}
}

func TestCertificatesAreUsed(t *testing.T) {
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
	if _, err := opened(t, "url", server.URL, "MTLSRootCA", root).Invoke(t.Context(), bindings.Request{Operation: "get"}); err != nil {
		t.Error(err)
	}
}

func TestBadMetadataIsRefused(t *testing.T) {
	for _, pairs := range [][]string{
		{}, {"url", "partner.example"}, {"url", "ftp://partner.example"}, {"url", "http://a", "securityToken", "x"},
		{"url", "http://a", "MTLSClientCert", "x"}, {"url", "http://a", "MTLSRootCA", "/no/such/file"}, {"url", "http://a", "securityTokenHeader", "a b"},
		{"url", "http://a", "MTLSClientCert", "-----BEGIN", "MTLSClientKey", "-----BEGIN"},
	} {
		if _, err := open(t, pairs...); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v: %v", pairs, err)
		}
	}
}

func TestErrorsTellNoToken(t *testing.T) {
	out := opened(t, "url", "http://user:s3cret@127.0.0.1:1/", "securityToken", "s3cret", "securityTokenHeader", "X-Token")
	if _, err := out.Invoke(t.Context(), bindings.Request{Operation: "get"}); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}

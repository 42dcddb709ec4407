package http_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/apitest"
	apihttp "github.com/quorate/quorate/api/http"
)

func TestSecrets_AreNotCacheable(t *testing.T) {
	base := newFixture(t).serve(t)
	for _, path := range []string{"/v1.0/secrets/vault/db", "/v1.0/secrets/vault/bulk"} {
		status, header, body := do(t, http.MethodGet, base+path, "")
		if status != http.StatusOK || header.Get("Cache-Control") != "no-store" || !strings.Contains(body, "hunter2") {
			t.Errorf("%s: %d %v %s", path, status, header, body)
		}
	}
}

func TestSecrets_ErrorsAndLogsRevealNoSecret(t *testing.T) {
	f := newFixture(t)
	base := f.serve(t)
	for _, name := range []string{"bare", "internal", "corrupt"} {
		status, _, body := do(t, http.MethodGet, base+"/v1.0/secrets/faulty/"+name, "")
		if status != http.StatusInternalServerError || strings.Contains(body, "hunter2") {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if strings.Contains(f.Log.String(), "hunter2") {
		t.Errorf("the log shows a secret: %s", f.Log)
	}
}

func TestTokens_ReplacedWhileServing(t *testing.T) {
	f := newFixture(t)
	f.config.Tokens = apitest.Tokens("a")
	guarded, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.config.Tokens.Set([]string{"b", "c"}); err != nil {
		t.Fatal(err)
	}
	base := serve(t, guarded)
	for token, want := range map[string]int{"a": http.StatusUnauthorized, "b": http.StatusOK, "c": http.StatusOK,
		"": http.StatusUnauthorized} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/v1.0/secrets/plain/a", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("dapr-api-token", token)
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("token %q: %d, want %d", token, response.StatusCode, want)
		}
	}
}

package http_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apihttp "github.com/quorate/quorate/api/http"
)

func TestLocalHost_RefusesNames(t *testing.T) {
	h := apihttp.LocalHost(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}), "do this instead")
	for host, want := range map[string]int{
		"": 418, "localhost": 418, "LOCALHOST:1": 418, "127.0.0.1": 418, "127.0.0.1:9090": 418, "[::1]": 418,
		"[::1]:9090": 418, "10.0.0.7:1": 418,
		"evil.example": 403, "evil.example:9090": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example:1": 403,
		"localhost.": 403,
	} {
		r, w := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
		r.Host = host
		h.ServeHTTP(w, r)
		if w.Code != want || want == http.StatusForbidden &&
			(!strings.Contains(w.Body.String(), `"errorCode":"ERR_PERMISSION_DENIED"`) ||
				!strings.Contains(w.Body.String(), "do this instead")) {
			t.Errorf("%q: %d %s", host, w.Code, w.Body)
		}
	}
}

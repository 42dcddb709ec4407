package http_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/apitest"
	apihttp "github.com/quorate/quorate/api/http"
)

func TestAudit_LogsRefusalsOncePerMinuteWithoutToken(t *testing.T) {
	var log bytes.Buffer
	f := newFixture(t)
	f.config.Tokens, f.config.Logger = apitest.Tokens("right"), slog.New(slog.NewTextHandler(&log, nil))
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		r := httptest.NewRequest(http.MethodGet, "/v1.0/metadata", nil)
		r.Header.Set("dapr-api-token", "wrong-guess")
		face.ServeHTTP(httptest.NewRecorder(), r)
	}
	if text := log.String(); strings.Count(text, "audit:") != 1 || !strings.Contains(text, "192.0.2.1") ||
		strings.Contains(text, "wrong-guess") {
		t.Errorf("the log has %s", text)
	}
}

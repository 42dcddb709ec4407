package http_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	apihttp "github.com/quorate/quorate/api/http"
)

func TestAudit_LogsActionsNotReads(t *testing.T) {
	var log bytes.Buffer
	admin := apihttp.NewAdmin(adminFunc(func() (api.NodeStatus, error) {
		return api.NodeStatus{}, nil
	}), slog.New(slog.NewTextHandler(&log, nil)))
	admin.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, apihttp.AdminStatusPath, nil))
	if log.Len() != 0 {
		t.Errorf("a question left %s", log.String())
	}
	admin.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, apihttp.AdminLeavePath, nil))
	if text := log.String(); strings.Count(text, "audit:") != 1 || !strings.Contains(text, apihttp.AdminLeavePath) ||
		!strings.Contains(text, "outcome=done") {
		t.Errorf("an action left %s", text)
	}
}

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

package admin_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
)

func TestAudit_LogsActionsNotReads(t *testing.T) {
	var log bytes.Buffer
	h := admin.NewHandler(adminFunc(func() (schema.NodeStatus, error) {
		return schema.NodeStatus{}, nil
	}), slog.New(slog.NewTextHandler(&log, nil)))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, admin.StatusPath, nil))
	if log.Len() != 0 {
		t.Errorf("a question left %s", log.String())
	}
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, admin.LeavePath, nil))
	if text := log.String(); strings.Count(text, "audit:") != 1 || !strings.Contains(text, admin.LeavePath) ||
		!strings.Contains(text, "outcome=done") {
		t.Errorf("an action left %s", text)
	}
}

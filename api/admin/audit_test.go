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
	const leave = `action="leave the cluster"`
	if text := log.String(); strings.Count(text, "audit:") != 1 || !strings.Contains(text, leave) ||
		!strings.Contains(text, "outcome=done") {
		t.Errorf("an action left %s", text)
	}
}

func TestAudit_NamesActionsInWords(t *testing.T) {
	for path, want := range map[string]string{
		admin.BackupPath:                       `action="restore a backup"`,
		admin.VotersPath:                       `action="set the number of voters"`,
		admin.TransferPath(3):                  `action="transfer the leadership of group 3"`,
		admin.ConfigurationPath("settings"):    `action="change items of configuration store settings"`,
		admin.NodePath("n2", admin.VotersPath): `action="set the number of voters on node n2"`,
		"/v1/unheard":                          `action="POST /v1/unheard"`,
	} {
		var log bytes.Buffer
		h := admin.NewHandler(adminFunc(func() (schema.NodeStatus, error) {
			return schema.NodeStatus{}, nil
		}), slog.New(slog.NewTextHandler(&log, nil)))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}")))
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s: %s", path, log.String())
		}
	}
}

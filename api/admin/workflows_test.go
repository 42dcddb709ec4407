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

func TestWorkflows_QueriesAreChecked(t *testing.T) {
	node := adminFunc(func() (schema.NodeStatus, error) { return schema.NodeStatus{}, nil })
	for path, want := range map[string]string{
		admin.WorkflowsPath + "?app=shop&status=A&status=B&before=1970-01-01T00:00:09Z": "shop[A B] 9 100",
		admin.WorkflowPath + "?app=shop&id=7":                                           "{shop  7} false",
		admin.WorkflowHistoryPath + "?app=shop&id=7&first=3&limit=4&payloads=true":      "{shop  7} 3 4 true",
		admin.WorkflowsPath + "?limit=1001":                                             "limit is no number from 0",
		admin.WorkflowsPath + "?since=yesterday":                                        "since is no time",
		admin.WorkflowHistoryPath + "?first=-1":                                         "first is no number",
	} {
		status, body := adminGet(t, node, path)
		if !strings.Contains(string(body), want) || (status == http.StatusOK) == strings.Contains(want, " is no ") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestWorkflows_ChangesAreDecodedAndAudited(t *testing.T) {
	for _, one := range []struct {
		path, body, want string
	}{
		{admin.WorkflowStartPath, `{"app":"shop","name":"order","input":"{}"}`, `"note":"start order"`},
		{admin.WorkflowChangePath, `{"app":"shop","id":"7","action":"pause"}`, `"note":"pause 7"`},
		{admin.WorkflowPurgePath, `{"app":"shop","statuses":["failed"]}`, `"removed":1`},
		{admin.WorkflowRerunPath, `{"app":"shop","id":"7","event":3}`, `"note":"rerun 3"`},
		{admin.WorkflowChangePath, `{"app":"shop","event":7}`, "cannot be read"},
		{admin.WorkflowPurgePath, `{"everything":true}`, "cannot be read"},
	} {
		var log bytes.Buffer
		w := httptest.NewRecorder()
		admin.NewHandler(adminFunc(nil), slog.New(slog.NewTextHandler(&log, nil))).ServeHTTP(w,
			httptest.NewRequest(http.MethodPost, one.path, strings.NewReader(one.body)))
		if !strings.Contains(w.Body.String(), one.want) || !strings.Contains(log.String(), " workflow") {
			t.Errorf("%s %s: %s; audited as %q", one.path, one.body, w.Body, log.String())
		}
	}
}

func TestAudit_LogsThatPayloadsWereRead(t *testing.T) {
	for query, want := range map[string]bool{"?app=shop&id=7": false, "?app=shop&id=7&payloads=true": true} {
		var log bytes.Buffer
		h := admin.NewHandler(adminFunc(nil), slog.New(slog.NewTextHandler(&log, nil)))
		for _, path := range []string{admin.WorkflowPath, admin.WorkflowHistoryPath} {
			log.Reset()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path+query, nil))
			if strings.Contains(log.String(), `action="read payloads of a workflow"`) != want {
				t.Errorf("%s%s left %q", path, query, log.String())
			}
		}
	}
}

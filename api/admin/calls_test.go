package admin_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// WatchCalls sends a line with the filter, and fails.
func (f adminFunc) WatchCalls(_ context.Context, c schema.CallFilter, take func(schema.CallLine) error) error {
	if c.App == "none" {
		return fault.New(fault.Unavailable, "test", "too many readers")
	}
	if err := take(schema.CallLine{Call: &schema.LiveCall{App: c.App, Route: c.Route, Trace: c.Trace, Failed: c.Failed,
		TookMS: c.Least.Seconds() * 1000}}); err != nil {
		return err
	}
	return fault.New(fault.Unavailable, "test", "the node stops")
}

func TestCalls_StreamCarriesFilterAndErrors(t *testing.T) {
	node := adminFunc(func() (schema.NodeStatus, error) { return schema.NodeStatus{}, nil })
	filter := schema.CallFilter{App: "a&b", Route: "POST /v1.0/<x>", Trace: "0af7", Failed: true,
		Least: 1500 * time.Millisecond}
	w := httptest.NewRecorder()
	h := admin.NewHandler(node, slog.New(slog.DiscardHandler))
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, admin.CallsPath(&filter), nil))
	status, body := w.Code, w.Body.String()
	lines := strings.Split(strings.TrimSpace(body), "\n")
	if status != http.StatusOK || len(lines) != 2 || !strings.Contains(lines[0], `"tookMs":1500,"app":"a&b",`+
		`"protocol":"","route":"POST /v1.0/<x>","code":0,"failed":true,"trace":"0af7"`) ||
		!strings.Contains(lines[1], "the node stops") {
		t.Errorf("%d %s", status, body)
	}
	if path := admin.CallsPath(&schema.CallFilter{}); path != "/v1/calls" {
		t.Errorf("without a filter: %s", path)
	}
	for path, want := range map[string]int{"/v1/calls?app=none": http.StatusServiceUnavailable,
		"/v1/calls?least=long": http.StatusBadRequest} {
		if status, body := adminGet(t, node, path); status != want {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

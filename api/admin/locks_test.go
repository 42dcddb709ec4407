package admin_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
)

func TestLocks_ListAndRelease(t *testing.T) {
	node := adminFunc(func() (schema.NodeStatus, error) { return schema.NodeStatus{}, nil })
	if status, body := adminGet(t, node, admin.LocksPath); status != http.StatusOK || string(body) != "[]" {
		t.Errorf("%d %s", status, body)
	}
	for body, want := range map[string]int{
		`{"store":"lockstore","resource":"r"}`:             http.StatusOK,
		`{"store":"lockstore","resource":"r","prefix":""}`: http.StatusOK,
		`{"store":"lockstore"}`:                            http.StatusBadRequest,
		`{"store":"lockstore","resource":"r","force":1}`:   http.StatusBadRequest,
		`no JSON`: http.StatusBadRequest,
	} {
		w := httptest.NewRecorder()
		admin.NewHandler(node, slog.New(slog.DiscardHandler)).ServeHTTP(w,
			httptest.NewRequest(http.MethodPost, admin.LockReleasePath, strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
}

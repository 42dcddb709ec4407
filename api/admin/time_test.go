package admin_test

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/internal/fault"
)

// leaderless is a node whose groups have no leader: its requests wait for a leader until their context ends.
type leaderless struct{ adminFunc }

func wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "test", "1 of 2 voters unreachable: b")
	case <-time.After(time.Hour):
		return fault.New(fault.Internal, "test", "there was no limit")
	}
}

func (leaderless) Voters(ctx context.Context) (schema.VotersStatus, error) {
	return schema.VotersStatus{}, wait(ctx)
}

func (leaderless) Remove(ctx context.Context, _ string) (schema.RemoveResult, error) {
	return schema.RemoveResult{}, wait(ctx)
}

func (leaderless) Forward(ctx context.Context, _ string, _ admin.Request) ([]byte, error) {
	return nil, wait(ctx)
}

func (leaderless) Checkup(ctx context.Context) (schema.Checkup, error) {
	return schema.Checkup{}, wait(ctx)
}

func (leaderless) ConfigurationItems(ctx context.Context, _ string, _ []string) ([]configurations.Change, error) {
	return nil, wait(ctx)
}

func (leaderless) WriteConfiguration(ctx context.Context, _ string, _ []configurations.Change) ([]string, error) {
	return nil, wait(ctx)
}

func (leaderless) SaveBackup(ctx context.Context, _ io.Writer) error { return wait(ctx) }

// A node answers before its client gives up, and before the node that has forwarded the request gives up. Otherwise
// the client would not get the reason.
func TestHandler_AnswersBeforeItsClientGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		method, path, body string
		slow               bool
		timeout            time.Duration // of the client; 0 = admin.RequestTime
	}{
		"voters":           {method: "GET", path: admin.VotersPath},
		"remove":           {method: "POST", path: admin.RemovePath, body: `{"target":"b"}`},
		"another node":     {method: "GET", path: admin.NodePath("b", admin.VotersPath)},
		"doctor":           {method: "GET", path: admin.DoctorPath, slow: true},
		"doctor elsewhere": {method: "GET", path: admin.NodePath("b", admin.DoctorPath), slow: true},
		"compare elsewhere": {method: "POST", path: admin.NodePath("b", admin.ComparePath(3)), body: "{}",
			slow: true},
		"backup":      {method: "GET", path: admin.BackupPath, slow: true},
		"items":       {method: "GET", path: admin.ConfigurationPath("a"), timeout: admin.ItemsTime},
		"write items": {method: "POST", path: admin.ConfigurationPath("a"), body: "[]", timeout: admin.ItemsTime},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, w := time.Now(), httptest.NewRecorder()
				h := admin.NewHandler(leaderless{}, slog.New(slog.DiscardHandler))
				h.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
				took, timeout := time.Since(start), cmp.Or(c.timeout, admin.RequestTime)
				if c.slow != (took == time.Hour) || !c.slow && (took >= timeout || took < timeout*3/4) {
					t.Errorf("answered after %s", took)
				}
				if !c.slow && !strings.Contains(w.Body.String(), "1 of 2 voters unreachable: b") {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		h := admin.NewRemoteHandler(leaderless{}, slog.New(slog.DiscardHandler))
		_, err := admin.Serve(t.Context(), h, "a", admin.Request{Method: "GET", Path: admin.VotersPath})
		remote := time.Since(start)
		start, w := time.Now(), httptest.NewRecorder()
		h = admin.NewHandler(leaderless{}, slog.New(slog.DiscardHandler))
		h.ServeHTTP(w, httptest.NewRequest("GET", admin.NodePath("b", admin.VotersPath), nil))
		if here := time.Since(start); remote >= here || !fault.Is(err, fault.Unavailable) {
			t.Errorf("the other node answers after %s, this one after %s; %v", remote, here, err)
		}
	})
}

package admin_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

// watched is a node whose configuration store has one subscription.
type watched struct {
	adminFunc
	sub *configuration.Queue
}

func (w watched) WatchConfiguration(context.Context, string, []string) (configuration.Subscription, error) {
	return w.sub, nil
}

// TestWatchConfiguration_EndsWithTheError checks that the last line of a watch names the reason of its end.
func TestWatchConfiguration_EndsWithTheError(t *testing.T) {
	closed := false
	node := watched{sub: configuration.NewQueue(func() { closed = true })}
	node.sub.Put(configuration.Item{Key: "a", Value: "1", Version: "3"}, configuration.Item{Key: "b"})
	node.sub.Fail(fault.New(fault.Unavailable, "test", "the store is closed"))
	w := httptest.NewRecorder()
	admin.NewHandler(node, slog.New(slog.DiscardHandler)).ServeHTTP(w,
		httptest.NewRequest(http.MethodGet, admin.ConfigurationWatchPath("configstore"), nil))
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	if w.Code != http.StatusOK || len(lines) != 3 || lines[0] != "{}" ||
		lines[1] != `{"items":[{"key":"a","value":"1","version":"3"},{"key":"b","delete":true}]}` ||
		!strings.HasPrefix(lines[2], `{"error":`) || !strings.Contains(lines[2], "the store is closed") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !closed {
		t.Error("the subscription is still open")
	}
}

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

// TestWatchConfiguration_EndsWithTheError checks that a watch begins with the present items, and that its last line
// names the reason of its end.
func TestWatchConfiguration_EndsWithTheError(t *testing.T) {
	closed := false
	node := watched{sub: configuration.NewQueue(func() { closed = true })}
	node.sub.Put(configuration.Item{Key: "a", Value: "1", Version: "3"}, configuration.Item{Key: "b"})
	node.sub.Fail(fault.New(fault.Unavailable, "test", "the store is closed"))
	w := httptest.NewRecorder()
	admin.NewHandler(node, slog.New(slog.DiscardHandler)).ServeHTTP(w,
		httptest.NewRequest(http.MethodGet, admin.ConfigurationWatchPath("configstore"), nil))
	lines := strings.Split(strings.TrimSpace(w.Body.String()), "\n")
	if w.Code != http.StatusOK || len(lines) != 2 ||
		lines[0] != `{"items":[{"key":"a","value":"1","version":"3"},{"key":"b","delete":true}]}` ||
		!strings.HasPrefix(lines[1], `{"error":`) || !strings.Contains(lines[1], "the store is closed") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !closed {
		t.Error("the subscription is still open")
	}
}

// TestWatchConfiguration_BeginsWithALine checks that a watch begins with an empty line if no item exists, and that a
// subscription which has ended does not look like a store without items.
func TestWatchConfiguration_BeginsWithALine(t *testing.T) {
	node := watched{sub: configuration.NewQueue(func() {})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := &notedWriter{ResponseRecorder: httptest.NewRecorder(), flushed: cancel}
	admin.NewHandler(node, slog.New(slog.DiscardHandler)).ServeHTTP(w,
		httptest.NewRequestWithContext(ctx, http.MethodGet, admin.ConfigurationWatchPath("configstore"), nil))
	if first, _, _ := strings.Cut(w.Body.String(), "\n"); first != "{}" {
		t.Errorf("without items: %d %s", w.Code, w.Body)
	}
	node.sub = configuration.NewQueue(func() {})
	node.sub.Fail(fault.New(fault.Unavailable, "test", "the store is closed"))
	failed := httptest.NewRecorder()
	admin.NewHandler(node, slog.New(slog.DiscardHandler)).ServeHTTP(failed,
		httptest.NewRequest(http.MethodGet, admin.ConfigurationWatchPath("configstore"), nil))
	if failed.Code != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d %s", failed.Code, failed.Body)
	}
}

// notedWriter calls flushed when the handler flushes the answer.
type notedWriter struct {
	*httptest.ResponseRecorder
	flushed func()
}

func (w *notedWriter) Flush() {
	w.ResponseRecorder.Flush()
	w.flushed()
}

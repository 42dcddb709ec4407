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

// adminStatus sends a request to h and returns the status of the answer.
func adminStatus(t *testing.T, h http.Handler, method, path, body string) int {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	return w.Code
}

func TestTopics_ListAndPublish(t *testing.T) {
	node := adminFunc(func() (schema.NodeStatus, error) { return schema.NodeStatus{}, nil })
	if status, body := adminGet(t, node, admin.TopicsPath); status != http.StatusOK || string(body) != "[]" {
		t.Errorf("%d %s", status, body)
	}
	if status, body := adminGet(t, node, admin.TopicPath("", "orders")); status != http.StatusBadRequest {
		t.Errorf("a topic without a component: %d %s", status, body)
	}
	var log bytes.Buffer
	h := admin.NewHandler(node, slog.New(slog.NewTextHandler(&log, nil)))
	for body, want := range map[string]int{
		`{"pubsub":"pubsub","topic":"orders","data":"c2VjcmV0"}`: http.StatusOK,
		`{"pubsub":"pubsub","topic":"orders"}`:                   http.StatusOK,
		`{"pubsub":"pubsub","data":"MQ=="}`:                      http.StatusBadRequest,
		`{"topic":"orders","data":"MQ=="}`:                       http.StatusBadRequest,
		`{"pubsub":"pubsub","topic":"orders","app":"shop"}`:      http.StatusBadRequest,
		`{"pubsub":"pubsub","topic":"orders","data":1}`:          http.StatusBadRequest,
	} {
		if got := adminStatus(t, h, http.MethodPost, admin.TopicPublishPath, body); got != want {
			t.Errorf("%s: %d", body, got)
		}
	}
	if text := log.String(); strings.Count(text, "audit: administrative action\" action=\"publish a message\"") != 6 ||
		strings.Contains(text, "secret") || strings.Contains(text, "c2Vj") {
		t.Errorf("the audit log:\n%s", text)
	}
	// Other nodes can list topics, but cannot publish messages.
	remote := admin.NewRemoteHandler(node, slog.New(slog.DiscardHandler))
	if got := adminStatus(t, remote, http.MethodGet, admin.TopicsPath, ""); got != http.StatusOK {
		t.Errorf("a list of another node: %d", got)
	}
	if got := adminStatus(t, remote, http.MethodPost, admin.TopicPublishPath,
		`{"pubsub":"pubsub","topic":"orders"}`); got == http.StatusOK {
		t.Errorf("a publish of another node: %d", got)
	}
}

func TestTopics_ChangesAreCheckedAndAudited(t *testing.T) {
	node := adminFunc(func() (schema.NodeStatus, error) { return schema.NodeStatus{}, nil })
	var log bytes.Buffer
	h := admin.NewHandler(node, slog.New(slog.NewTextHandler(&log, nil)))
	remote := admin.NewRemoteHandler(node, slog.New(slog.DiscardHandler))
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{admin.TopicReplayPath, `{"pubsub":"pubsub","topic":"orders","group":"shop","offset":7}`, http.StatusOK},
		{admin.TopicReplayPath, `{"pubsub":"pubsub","topic":"orders","group":"shop","since":"2026-01-02T15:04:05Z"}`,
			http.StatusOK},
		{admin.TopicReplayPath, `{"pubsub":"pubsub","topic":"orders","group":"shop"}`, http.StatusBadRequest},
		{admin.TopicReplayPath, `{"pubsub":"pubsub","topic":"orders","group":"shop","offset":7,` +
			`"since":"2026-01-02T15:04:05Z"}`, http.StatusBadRequest},
		{admin.TopicReplayPath, `{"pubsub":"pubsub","topic":"orders","offset":7}`, http.StatusBadRequest},
		{admin.TopicReplayPath, `{"pubsub":"pubsub","topic":"orders","group":"shop","offset":-7}`,
			http.StatusBadRequest},
		{admin.TopicDeletePath, `{"pubsub":"pubsub","topic":"orders","group":"shop","force":true}`, http.StatusOK},
		{admin.TopicDeletePath, `{"pubsub":"pubsub","group":"shop"}`, http.StatusBadRequest},
		{admin.TopicDeletePath, `{"topic":"orders"}`, http.StatusBadRequest},
		{admin.TopicDeletePath, `no JSON`, http.StatusBadRequest},
		{admin.TopicRedrivePath, `{"pubsub":"pubsub","topic":"failed","to":"orders"}`, http.StatusOK},
		{admin.TopicRedrivePath, `{"pubsub":"pubsub","to":"orders"}`, http.StatusBadRequest},
		{admin.TopicRedrivePath, `{"pubsub":"pubsub","topic":"failed","from":"x"}`, http.StatusBadRequest},
	} {
		if got := adminStatus(t, h, http.MethodPost, c.path, c.body); got != c.want {
			t.Errorf("%s %s: %d", c.path, c.body, got)
		}
		if got := adminStatus(t, remote, http.MethodPost, c.path, c.body); got == http.StatusOK {
			t.Errorf("%s from another node was executed", c.path)
		}
	}
	for _, want := range []string{`"replay a topic"`, `"delete a topic or a consumer group"`,
		`"move dead letters back"`} {
		if !strings.Contains(log.String(), "audit: administrative action\" action="+want) {
			t.Errorf("the audit log has no %s:\n%s", want, &log)
		}
	}
}

func TestTopics_MessagesAreAStreamOfLines(t *testing.T) {
	node := adminFunc(func() (schema.NodeStatus, error) { return schema.NodeStatus{}, nil })
	var log bytes.Buffer
	h := admin.NewHandler(node, slog.New(slog.NewTextHandler(&log, nil)))
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	path := admin.TopicMessagesPath(&schema.TopicRead{PubSub: "pubsub", Topic: "a/b", Offset: new(uint64(7))})
	status, body := get(path)
	const want = `{"message":{"raftGroup":0,"offset":7,"time":"0001-01-01T00:00:00Z","text":"<secret>"}}` + "\n" +
		`{"error":{"code":"unavailable","op":"test","msg":"the leader has gone"}}` + "\n"
	if status != http.StatusOK || body != want {
		t.Errorf("%d %s", status, body)
	}
	path = admin.TopicMessagesPath(&schema.TopicRead{PubSub: "pubsub", Topic: "none", Oldest: true})
	if status, body := get(path); status != http.StatusNotFound || !strings.Contains(body, "no topic none") {
		t.Errorf("%d %s", status, body)
	}
	for _, query := range []string{"topic=a", "pubsub=a", "pubsub=a&topic=b&offset=x", "pubsub=a&topic=b&since=x"} {
		if status, body := get("/v1/topics/messages?" + query); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
	if text := log.String(); strings.Count(text, `action="read messages of a topic"`) != 6 ||
		!strings.Contains(text, `outcome="broken off" status=200`) || strings.Contains(text, "secret") {
		t.Errorf("the audit log:\n%s", text)
	}
	remote := admin.NewRemoteHandler(node, slog.New(slog.DiscardHandler))
	if got := adminStatus(t, remote, http.MethodGet, path, ""); got != http.StatusNotFound {
		t.Errorf("another node has read messages: %d", got)
	}
}

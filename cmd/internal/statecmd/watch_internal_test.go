package statecmd

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

func TestWatcher_ReportsAnOutageOnce(t *testing.T) {
	const unavailable = `{"errorCode":"ERR_WATCH","message":"no leader"}`
	const put = "id: 0a.7\nevent: put\ndata: {\"type\":\"put\",\"revision\":\"7\",\"key\":\"k\",\"value\":1}\n\n"
	answers := []struct {
		status int
		body   string
	}{
		{http.StatusInternalServerError, unavailable}, {http.StatusInternalServerError, unavailable},
		{http.StatusOK, put}, {http.StatusInternalServerError, unavailable},
		{http.StatusInternalServerError, unavailable},
		{http.StatusGone, `{"errorCode":"ERR_WATCH_COMPACTED","message":"not kept"}`},
	}
	var positions []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := answers[len(positions)]
		positions = append(positions, r.URL.Query().Get("from"))
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, a.body)
	}))
	defer s.Close()
	var out, log strings.Builder
	w := watcher{client: &stateClient{&command.APIClient{Base: s.URL, Http: s.Client()}}, store: "statestore",
		out: &out, log: &log}
	if err := w.run(t.Context()); !fault.Is(err, fault.NotFound) {
		t.Errorf("run returned %v", err)
	}
	if n := strings.Count(log.String(), "connecting again: no leader\n"); n != 2 {
		t.Errorf("two outages are reported %d times:\n%s", n, &log)
	}
	if !strings.Contains(out.String(), "k") || strings.Join(positions, " ") != "   0a.7 0a.7 0a.7" {
		t.Errorf("got %q, from the positions %q", &out, positions)
	}
}

func TestWatcher_SnapshotOfAnUnknownStoreFails(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"errorCode":"ERR_STATE_STORE_NOT_FOUND","message":"state store x is not found"}`)
	}))
	defer s.Close()
	w := watcher{client: &stateClient{&command.APIClient{Base: s.URL, Http: s.Client()}}, store: "x", snapshot: true,
		out: io.Discard, log: io.Discard}
	if err := w.run(t.Context()); !fault.Is(err, fault.NotFound) {
		t.Errorf("run returned %v", err)
	}
}

// TestWatcher_RepeatsChangesThatWereNotShown checks that a connection which ends within the last event of a request
// does not advance the position: the next connection delivers the changes of that request again.
func TestWatcher_RepeatsChangesThatWereNotShown(t *testing.T) {
	change := func(key string) string {
		return `data: {"type":"put","revision":"7","key":"` + key + `","value":1}` + "\n\n"
	}
	answers := []string{
		"id: 0a.6\n" + change("before"),
		change("first") + "id: 0a.7\n" + change("second")[:20],
		"id: 0a.7\n",
		change("first") + "id: 0a.7\n" + change("second"),
	}
	var positions []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := len(positions)
		positions = append(positions, r.URL.Query().Get("from"))
		if n == len(answers) {
			w.WriteHeader(http.StatusGone)
			return
		}
		_, _ = io.WriteString(w, answers[n])
	}))
	defer s.Close()
	var out strings.Builder
	w := watcher{client: &stateClient{&command.APIClient{Base: s.URL, Http: s.Client()}}, store: "statestore",
		out: &out, log: io.Discard}
	if err := w.run(t.Context()); !fault.Is(err, fault.NotFound) {
		t.Errorf("run returned %v", err)
	}
	if got := strings.Join(positions, " "); got != " 0a.6 0a.6 0a.6 0a.7" {
		t.Errorf("the requests began after %q", got)
	}
	const put = "7        put     "
	if want := put + "before = 1\n" + put + "first = 1\n" + put + "second = 1\n"; out.String() != want {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

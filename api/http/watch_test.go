package http_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
)

// tap is the client of an open watch.
type tap struct {
	t    *testing.T
	resp *http.Response
	r    *bufio.Reader
}

func openTap(t *testing.T, url string, headers ...string) *tap {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return &tap{t, resp, bufio.NewReader(resp.Body)}
}

// want reads lines and compares them. "…" at the end of a line stands for anything.
func (s *tap) want(lines ...string) {
	s.t.Helper()
	for _, want := range lines {
		got, err := s.r.ReadString('\n')
		if err != nil {
			s.t.Fatalf("waiting for %q: %v", want, err)
		}
		got = strings.TrimSuffix(got, "\n")
		if start, any := strings.CutSuffix(want, "…"); got != want && (!any || !strings.HasPrefix(got, start)) {
			s.t.Fatalf("got  %q\nwant %q", got, want)
		}
	}
}

func save(t *testing.T, base, items string) {
	t.Helper()
	if status, _, body := do(t, http.MethodPost, base+"/v1.0/state/orders", items); status != http.StatusNoContent {
		t.Fatalf("save: %d %s", status, body)
	}
}

func TestWatch_Lines(t *testing.T) {
	base := newFixture(t).serve(t)
	w := openTap(t, base+"/v1.0/watch/orders?prefix=a")
	if w.resp.StatusCode != http.StatusOK || w.resp.Header.Get("Content-Type") != "application/x-ndjson" ||
		w.resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("got %d %v", w.resp.StatusCode, w.resp.Header)
	}
	w.want(`{"type":"bookmark","revision":"1"}`)
	save(t, base, `[{"key":"a","value":{"x":
 1}},{"key":"b","value":1},{"key":"ab","value":"AAE=","metadata":{"contentType":"application/octet-stream"}}]`)
	w.want(`{"type":"put","revision":"2","key":"a","value":{"x":  1}}`, `{"type":"put","revision":"4","key":"ab",…`)
	if status, _, _ := do(t, http.MethodDelete, base+"/v1.0/state/orders/a", ""); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	w.want(`{"type":"delete","revision":"5","key":"a","reason":"deleted"}`)
}

func TestWatch_EventsAndResume(t *testing.T) {
	base := newFixture(t).serve(t)
	w := openTap(t, base+"/v1.0/watch/orders", "Accept", "text/event-stream")
	w.want("retry: 1000", "", "id: …", "event: bookmark", `data: {"type":"bookmark","revision":"1"}`, "")
	save(t, base, `[{"key":"a","value":1},{"key":"b","value":2}]`)
	w.want("event: put", `data: {"type":"put","revision":"2","key":"a","value":1}`, "")
	id, err := w.r.ReadString('\n')
	if err != nil || !strings.HasPrefix(id, "id: ") || !strings.HasSuffix(id, ".3\n") {
		t.Fatalf("the last change of a request has %q, %v", id, err)
	}
	w.want("event: put", `data: {"type":"put","revision":"3","key":"b","value":2}`, "")
	_ = w.resp.Body.Close()
	save(t, base, `[{"key":"c","value":3}]`)
	id = strings.TrimSpace(strings.TrimPrefix(id, "id: "))
	w = openTap(t, base+"/v1.0/watch/orders?from=0&snapshot=true&values=false", "Accept", "text/event-stream",
		"Last-Event-ID", id)
	w.want("retry: 1000", "", "id: "+id, "event: bookmark", "data: …", "", "id: …", "event: put",
		`data: {"type":"put","revision":"4","key":"c"}`)
}

// The answer to an EventSource that reconnects must have status 200, because browsers never reconnect after another
// status.
func TestWatch_EventSourceThatReconnectsTooEarlyMayReconnect(t *testing.T) {
	f := newFixture(t)
	f.RequestTimeout = 20 * time.Millisecond
	f.refit()
	base := f.serve(t)
	const ahead = "99"
	w := openTap(t, base+"/v1.0/watch/orders", "Accept", "text/event-stream", "Last-Event-ID", ahead)
	if w.resp.StatusCode != http.StatusOK || w.resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("got %d %v", w.resp.StatusCode, w.resp.Header)
	}
	w.want("retry: 1000", "", "event: error", `data: {"type":"error","errorCode":"ERR_WATCH","reason":"timeout",…`, "")
	if rest, err := w.r.ReadString('\n'); rest != "" || err == nil {
		t.Errorf("the answer goes on with %q", rest)
	}
	for what, headers := range map[string][]string{"first connection": {"Accept", "text/event-stream"},
		"lines": {"Last-Event-ID", ahead}} {
		w := openTap(t, base+"/v1.0/watch/orders?from="+ahead, headers...)
		if w.resp.StatusCode != http.StatusInternalServerError {
			t.Errorf("%s: got %s", what, w.resp.Status)
		}
	}
}

func TestWatch_SnapshotThenChanges(t *testing.T) {
	base := newFixture(t).serve(t)
	save(t, base, `[{"key":"b","value":2},{"key":"a","value":1}]`)
	w := openTap(t, base+"/v1.0/watch/orders?snapshot=true")
	w.want(`{"type":"item","revision":"2","key":"a","value":1}`, `{"type":"item","revision":"1","key":"b","value":2}`,
		`{"type":"synced","revision":"3"}`)
	save(t, base, `[{"key":"a","value":3}]`)
	w.want(`{"type":"put","revision":"4","key":"a","value":3}`)
}

func TestWatch_SendsBookmarks(t *testing.T) {
	t.Parallel()
	base := newFixture(t).serve(t)
	w := openTap(t, base+"/v1.0/watch/orders?key=a&bookmark=1s")
	w.want(`{"type":"bookmark","revision":"1"}`)
	save(t, base, `[{"key":"b","value":2}]`)
	w.want(`{"type":"bookmark","revision":"2"}`)
}

func TestWatch_RefusesBadRequests(t *testing.T) {
	base := newFixture(t).serve(t)
	for query, want := range map[string]struct {
		status int
		code   string
	}{
		"orders?prefix=a&key=b":   {400, "ERR_MALFORMED_REQUEST"},
		"orders?from=x":           {400, "ERR_MALFORMED_REQUEST"},
		"orders?from=00000000.1":  {400, "ERR_MALFORMED_REQUEST"},
		"orders?bookmark=1h":      {400, "ERR_MALFORMED_REQUEST"},
		"orders?snapshot=perhaps": {400, "ERR_MALFORMED_REQUEST"},
		"shared":                  {400, "ERR_MALFORMED_REQUEST"},
		"shared?prefix=a":         {400, "ERR_MALFORMED_REQUEST"},
		"plain":                   {500, "ERR_STATE_STORE_NOT_SUPPORTED"},
		"nowhere":                 {400, "ERR_STATE_STORE_NOT_FOUND"},
		"orders?" + strings.Repeat("key=k&", 101): {400, "ERR_MALFORMED_REQUEST"},
	} {
		status, _, body := do(t, http.MethodGet, base+"/v1.0/watch/"+query, "")
		if status != want.status || !strings.Contains(body, want.code) {
			t.Errorf("%.40s: %d %s", query, status, body)
		}
	}
}

func TestWatch_CompactedPositionIsGone(t *testing.T) {
	base := newFixture(t).serve(t)
	for i := range 3 {
		save(t, base, fmt.Sprintf(`[{"key":"a","value":%d}]`, i))
	}
	_ = openTap(t, base+"/v1.0/watch/orders").resp.Body.Close()
	status, _, body := do(t, http.MethodGet, base+"/v1.0/watch/orders?from=1", "")
	if status != http.StatusGone || !strings.Contains(body, "ERR_WATCH_COMPACTED") ||
		!strings.Contains(body, `"oldest":"4"`) || !strings.Contains(body, `"current":"4"`) {
		t.Errorf("got %d %s", status, body)
	}
}

func TestWatch_EndsWhenTheNodeStops(t *testing.T) {
	f := newFixture(t)
	watches := api.NewWatches()
	f.config.State.Observe(watches)
	base := f.serve(t)
	w := openTap(t, base+"/v1.0/watch/orders")
	w.want(`{"type":"bookmark",…`)
	watches.Close()
	w.want(`{"type":"error","errorCode":"ERR_WATCH","reason":"closing",…`)
	if _, err := w.r.ReadString('\n'); err == nil {
		t.Error("the watch goes on")
	}
	if status, _, body := do(t, http.MethodGet, base+"/v1.0/watch/orders", ""); status != 500 {
		t.Errorf("a new watch: %d %s", status, body)
	}
}

func TestWatch_IsLimited(t *testing.T) {
	base := newFixture(t).serve(t)
	for range api.DefaultListenerWatches {
		openTap(t, base+"/v1.0/watch/orders").want(`{"type":"bookmark",…`)
	}
	if status, _, body := do(t, http.MethodGet, base+"/v1.0/watch/orders", ""); status != 500 ||
		!strings.Contains(body, `"reason":"overloaded"`) {
		t.Errorf("got %d %s", status, body)
	}
}

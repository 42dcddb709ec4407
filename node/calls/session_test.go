package calls_test

import (
	"encoding/base64"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/quorate/quorate/node/nodetest"
)

// withInventedGroups returns a session token of the same cluster as the token genuine, with invented positions.
func withInventedGroups(t *testing.T, genuine string) string {
	t.Helper()
	b, err := base64.RawURLEncoding.DecodeString(genuine)
	if err != nil {
		t.Fatal(err)
	}
	b = b[:9]
	for group := range uint64(250) {
		b = binary.AppendUvarint(b, group)
		b = binary.AppendUvarint(b, 1)
		b = binary.AppendUvarint(b, 1<<62) // index 2^61, not committed
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// call sends a request with a session token.
func call(t *testing.T, at, path, session string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Quorate-Session", session)
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer
}

func TestSession_InventedPositionsDoNotReachCallee(t *testing.T) {
	app := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(app.Close)
	c := nodetest.Config(t)
	c.App.ID, c.App.Port = "callee", app.Listener.Addr().(*net.TCPAddr).Port
	n := nodetest.Open(t, c)
	nodetest.Ready(t, n)
	if code, text := nodetest.Save(t, n, "k", "v"); code != http.StatusNoContent {
		t.Fatalf("save: %d %s", code, text)
	}
	_, _, h := nodetest.Ask(t, n, "GET", "/v1.0/state/statestore/k", "")
	genuine := h.Get("Quorate-Session")
	for range 6 {
		answer := call(t, n.Addresses().API[0], "/v1.0/invoke/callee/method/x", withInventedGroups(t, genuine))
		if answer.StatusCode != http.StatusNotFound { // the status of the application
			t.Fatalf("the call ends with %s", answer.Status)
		}
		if got := answer.Header.Get("Quorate-Session"); len(got) > 2*len(genuine) {
			t.Errorf("the session of the answer has %d characters", len(got))
		}
		call(t, n.Addresses().API[0], "/v1.0/state/statestore/k", withInventedGroups(t, genuine))
	}
	code, text, h := nodetest.Ask(t, n, "GET", "/v1.0/state/statestore/k", "")
	level, got := h.Get("Quorate-Consistency"), h.Get("Quorate-Session")
	if code != http.StatusOK || level != "session" || len(got) > 2*len(genuine) {
		t.Errorf("read: %d %s at level %q, with a session of %d characters", code, text, level, len(got))
	}
	if code, text := nodetest.Save(t, n, "k", "w"); code != http.StatusNoContent {
		t.Errorf("save: %d %s", code, text)
	}
}

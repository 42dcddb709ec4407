package statecmd

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/cmd/internal/statecopy"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// serve returns a copyStore whose requests are answered by h.
func serve(t *testing.T, h http.HandlerFunc) copyStore {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return copyStore{&stateClient{&command.APIClient{Base: s.URL, Http: s.Client()}}, "orders"}
}

// A node refuses a bulk read as a whole if it refuses one of the keys.
func TestCopyStore_ReadsTheKeysBesideARefusedKey(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Keys []string }
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		if slices.Contains(body.Keys, "bad") {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"errorCode":"ERR_MALFORMED_REQUEST","message":"bad is refused"}`)
			return
		}
		var out []map[string]any
		for _, k := range body.Keys {
			out = append(out, map[string]any{"key": k, "data": 1})
		}
		_ = json.NewEncoder(w).Encode(out)
	})
	got, err := s.Read(t.Context(), []string{"a", "bad", "b", "c"})
	if err != nil || len(got) != 4 {
		t.Fatalf("%v, %v", got, err)
	}
	for k, v := range got {
		if refused := v.Err != nil; refused != (k == "bad") || !refused && string(v.Data) != "1" {
			t.Errorf("%s: %+v", k, v)
		}
	}
}

// Delete sends a key that is too long for a URL in a transaction. The status of a conflict is then 500, as in Dapr.
func TestCopyStore_DeleteOfALongKey(t *testing.T) {
	var method, path, query, body string
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		method, path, query, body = r.Method, r.URL.Path, r.URL.RawQuery, string(text)
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"errorCode":"ERR_STATE_TRANSACTION","message":"possible etag mismatch",`+
			`"details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"conflict"},`+
			`{"@type":"type.googleapis.com/google.rpc.ResourceInfo","resource_name":"orders"}]}`)
	})
	long := strings.Repeat("x", maxPathKey+1)
	if err := s.Delete(t.Context(), statecopy.Key{Name: long, ETag: "7"}); !fault.Is(err, fault.Conflict) {
		t.Errorf("a conflict is %v", err)
	}
	if !strings.HasSuffix(path, "/transaction") || !strings.Contains(body, `"etag":"7"`) ||
		!strings.Contains(body, `"consistency":"strong"`) {
		t.Errorf("%s %s: %s", method, path, body)
	}
	_ = s.Delete(t.Context(), statecopy.Key{Name: "cart||7||" + long, ETag: "7"})
	if method != http.MethodDelete || !strings.Contains(query, "metadata.actorState=true") {
		t.Errorf("a key of actor state is deleted by %s %s?%s", method, path, query)
	}
}

// A TTL in seconds cannot express an expiry that is more than 68 years away.
func TestCopyStore_WritesTheTimeOfTheExpiry(t *testing.T) {
	var body []struct{ Metadata map[string]string }
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusNoContent)
	})
	east := time.FixedZone("east", 3600)
	err := s.Write(t.Context(), []statecopy.Item{{Key: "a", Value: []byte("1")},
		{Key: "b", Value: []byte("1"), Expires: time.Date(2030, 1, 1, 0, 0, 0, 0, east)},
		{Key: "c", Value: []byte("1"), Expires: time.Unix(state.LastExpiry, 0)}}, true)
	if err != nil || len(body) != 3 {
		t.Fatalf("%v, %v", body, err)
	}
	for i, want := range []map[string]string{{"ttlInSeconds": "0"}, {"ttlExpireTime": "2029-12-31T23:00:00Z"},
		{"ttlExpireTime": "9999-12-31T23:59:59Z"}} {
		if diff := cmp.Diff(want, body[i].Metadata); diff != "" {
			t.Errorf("item %d: %s", i, diff)
		}
		if _, err := state.ParseTTL(body[i].Metadata); err != nil {
			t.Error(err)
		}
	}
}

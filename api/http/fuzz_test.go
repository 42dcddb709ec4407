package http_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/component/state"
)

// sink is a store that accepts everything and remembers the last request.
type sink struct {
	keys     []string
	set      *state.SetRequest
	transact *state.TransactRequest
}

func (s *sink) Get(_ context.Context, r state.GetRequest) (state.Item, error) {
	s.keys = append(s.keys, r.Key)
	return state.Item{}, nil
}

func (s *sink) BulkGet(_ context.Context, r state.BulkGetRequest) ([]state.Item, error) {
	s.keys = append(s.keys, r.Keys...)
	return make([]state.Item, len(r.Keys)), nil
}

func (s *sink) Set(_ context.Context, r state.SetRequest) (state.Written, error) {
	s.set = &r
	return state.Written{}, nil
}

func (s *sink) Transact(_ context.Context, r state.TransactRequest) (state.Written, error) {
	s.transact = &r
	return state.Written{}, nil
}

func (s *sink) Delete(context.Context, state.DeleteRequest) (state.Written, error) {
	return state.Written{}, nil
}

func (s *sink) Close() error { return nil }

// sunk returns a face with one store, orders, which is the returned sink.
func sunk(t testing.TB) (http.Handler, *sink) {
	t.Helper()
	f := newFixture(t)
	store := &sink{}
	f.Stores.List = []*state.Instance{apitest.Instance("orders", store)}
	return newFace(t, f), store
}

// wellFormedError checks that an answer has an error body with a code and a message.
func wellFormedError(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	var body struct{ ErrorCode, Message string }
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.ErrorCode == "" || body.Message == "" {
		t.Errorf("%d with body %q: %v", w.Code, w.Body, err)
	}
}

func legalKey(stored string) bool {
	key, ok := strings.CutPrefix(stored, "shop||")
	return ok && state.ValidateKey(key) == nil
}

func FuzzSaveBody(f *testing.F) {
	for _, seed := range []string{
		`[{"key":"a","value":1}]`, `[]`, `null`,
		`[{"key":"a","value":null,"etag":"1","options":{"concurrency":"first-write","consistency":"strong"}}]`,
		`[{"key":"a","value":{"b":[1,2,"\u00e9"]},"metadata":{"ttlInSeconds":"5"}}] x`, `[{"key":"a||b","value":1}]`,
		`[{"KEY":"a","VALUE":1}]`,
		`[{"key":"a","value":"AQID","metadata":{"contentType":"application/octet-stream"}}]`, `[{`, `{}`,
		`[{"key":"\ud800","value":1}]`,
	} {
		f.Add([]byte(seed))
	}
	face, store := sunk(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		store.set = nil
		w := call(t, face, "POST", "/v1.0/state/orders", string(body))
		switch w.Code {
		case http.StatusNoContent:
			checkSaved(t, store.set, body)
		case http.StatusBadRequest:
			wellFormedError(t, w)
			if store.set != nil {
				t.Errorf("a refused body reached the store: %q", body)
			}
		default:
			t.Errorf("%d for %q", w.Code, body)
		}
	})
}

// checkSaved compares the items that reached the store with those that encoding/json reads from the body.
func checkSaved(t *testing.T, set *state.SetRequest, body []byte) {
	t.Helper()
	var want []struct {
		Key   string
		Value json.RawMessage
	}
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&want); err != nil {
		t.Fatalf("%q was accepted: %v", body, err)
	}
	if len(want) == 0 {
		if set != nil {
			t.Errorf("%q reached the store", body)
		}
		return
	}
	if set == nil || len(set.Items) != len(want) {
		t.Fatalf("%q: the store saw %+v", body, set)
	}
	for i, item := range set.Items {
		if item.Key != "shop||"+want[i].Key || !legalKey(item.Key) {
			t.Errorf("key %q of %q", item.Key, body)
		}
		if item.ContentType == "" && !bytes.Equal(item.Value, want[i].Value) {
			t.Errorf("value %q, want %q", item.Value, want[i].Value)
		}
	}
}

func FuzzTransactionBody(f *testing.F) {
	for _, seed := range []string{
		`{"operations":[{"operation":"upsert","request":{"key":"a","value":1}},` +
			`{"operation":"delete","request":{"key":"b"}}],"metadata":{"x":"y"}}`,
		`{"operations":[]}`, `{"operations":null}`, `{}`, `[]`,
		`{"operations":[{"operation":"x","request":{"key":"a"}}]}`,
		`{"operations":[{"operation":"delete","request":{"key":"a","etag":1}}]}`, `{"operations":[null]}`,
		`{"operations":[{"operation":"delete","request":null}]}`,
	} {
		f.Add([]byte(seed))
	}
	face, store := sunk(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		store.transact = nil
		w := call(t, face, "POST", "/v1.0/state/orders/transaction", string(body))
		if w.Code != http.StatusNoContent && w.Code != http.StatusBadRequest {
			t.Errorf("%d for %q", w.Code, body)
		}
		if w.Code == http.StatusBadRequest {
			wellFormedError(t, w)
			if store.transact != nil {
				t.Errorf("a refused body reached the store: %q", body)
			}
		}
		if store.transact == nil {
			return
		}
		for _, operation := range store.transact.Operations {
			if !legalKey(operation.Key) || operation.Kind == state.Upsert && operation.Value == nil {
				t.Errorf("%+v of %q", operation, body)
			}
		}
	})
}

func FuzzBulkBody(f *testing.F) {
	for _, seed := range []string{
		`{"keys":["a","b","a"],"parallelism":2}`, `{"keys":[]}`, `{}`, `{"keys":null,"metadata":null}`,
		`{"keys":["a||b"]}`,
		`{"keys":["\u0000\"\\"]}`, `{"keys":"a"}`, `{"parallelism":1e3}`, `{"keys":["` + "\xff" + `"]}`,
	} {
		f.Add([]byte(seed))
	}
	face, store := sunk(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		store.keys = nil
		w := call(t, face, "POST", "/v1.0/state/orders/bulk", string(body))
		if w.Code == http.StatusBadRequest {
			wellFormedError(t, w)
			return
		}
		var got []struct{ Key string }
		if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != http.StatusOK || err != nil ||
			len(got) != len(store.keys) {
			t.Fatalf("%d %q for %q: %v", w.Code, w.Body, body, err)
		}
		for i := range got {
			if "shop||"+got[i].Key != store.keys[i] || !legalKey(store.keys[i]) {
				t.Errorf("key %q in the answer, %q in the store", got[i].Key, store.keys[i])
			}
		}
	})
}

// The path after the store, decoded once, is the key. If it is no legal key, the request is refused.
func FuzzPathKey(f *testing.F) {
	for _, seed := range []string{
		"a", "a/b", "a%2Fb", "/", "//", "a/", "a+b", "a%20b", "%25", "%2525", "..", "../..", "%2e%2e/x", "a;b",
		"a%7C%7Cb", "a||b",
		"%FF", "%C3%A9", "é", "a?x=1", "%00", "bulk", "transaction", "bulk/", "a%", "%zz", "", "a:b", "[x]", "a%2",
		"{store}", "*",
	} {
		f.Add(seed)
	}
	face, store := sunk(f)
	f.Fuzz(func(t *testing.T, raw string) {
		if strings.ContainsAny(raw, " ?#\r\n") || len(raw) > 20_000 {
			return // these characters end the path or the request line
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET /v1.0/state/orders/" + raw +
			" HTTP/1.1\r\nHost: localhost\r\n\r\n")))
		if err != nil {
			return // net/http answers these itself
		}
		store.keys = nil
		w := httptest.NewRecorder()
		face.ServeHTTP(w, r)
		want, err := url.PathUnescape(raw)
		if err != nil {
			t.Fatalf("%q was parsed", raw)
		}
		if legal := state.ValidateKey(want) == nil; !legal {
			if w.Code != http.StatusBadRequest || store.keys != nil || utf8.ValidString(want) && want != "" &&
				!strings.Contains(want, "||") && len(want) <= state.MaxKeySize {
				t.Errorf("%q: %d", raw, w.Code)
			}
			return
		}
		if w.Code != http.StatusNoContent || len(store.keys) != 1 || store.keys[0] != "shop||"+want {
			t.Errorf("%q: %d, keys %q, want %q", raw, w.Code, store.keys, want)
		}
	})
}

// A key reaches the store unchanged, whichever of its characters are escaped.
func FuzzEscapedKey(f *testing.F) {
	for _, seed := range []string{"a", "a/b c+d%e", "é/😀", "..", "a//b/", "\x00\x7f", "|", "?#&=;:@!$'()*,[]"} {
		f.Add(seed)
	}
	face, store := sunk(f)
	f.Fuzz(func(t *testing.T, key string) {
		if state.ValidateKey(key) != nil {
			return
		}
		for _, escaped := range []string{url.PathEscape(key), (&url.URL{Path: key}).EscapedPath(),
			strings.ReplaceAll(url.QueryEscape(key), "+", "%20")} {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET /v1.0/state/orders/" + escaped +
				" HTTP/1.1\r\nHost: localhost\r\n\r\n")))
			if err != nil {
				t.Fatal(err)
			}
			store.keys = nil
			face.ServeHTTP(httptest.NewRecorder(), r)
			if len(store.keys) != 1 || store.keys[0] != "shop||"+key {
				t.Errorf("%q as %q: the store saw %q", key, escaped, store.keys)
			}
		}
	})
}

func FuzzQuery(f *testing.F) {
	for _, seed := range []string{"consistency=strong", "metadata.x=y&metadata.x=z", "a=%", "&&=&",
		"metadata.maxStaleness=1s", "consistency=%73trong", "metadata.a+b=1"} {
		f.Add(seed)
	}
	face, store := sunk(f)
	f.Fuzz(func(t *testing.T, query string) {
		if strings.ContainsAny(query, " #\r\n") {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET /v1.0/state/orders/k?" + query +
			" HTTP/1.1\r\nHost: localhost\r\n\r\n")))
		if err != nil {
			return
		}
		store.keys = nil
		w := httptest.NewRecorder()
		face.ServeHTTP(w, r)
		if w.Code != http.StatusNoContent && w.Code != http.StatusBadRequest ||
			(w.Code == http.StatusNoContent) != (len(store.keys) == 1) {
			t.Errorf("%q: %d, keys %q", query, w.Code, store.keys)
		}
	})
}

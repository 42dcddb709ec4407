package cosmosdb_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/azure/cosmosdb"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/entra"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/rest"
	"github.com/quorate/quorate/internal/testutil"
)

// opening returns a function that opens a store with the settings in pairs, and closes it again.
func opening(t *testing.T, transport http.RoundTripper, pairs ...string) func(context.Context) error {
	t.Helper()
	return func(ctx context.Context) error {
		t.Helper()
		s, err := open(ctx, t, cosmosdb.Options{Identity: entra.Settings{Transport: transport}}, pairs...)
		if err == nil {
			_ = s.Close()
		}
		return err
	}
}

func TestOpen_Failures(t *testing.T) {
	t.Parallel()
	a := start(t)
	address := "https://127.0.0.1:" + statetest.FreePort(t)
	statetest.WantOpenFault(t, opening(t, transport(a), "url", address, "masterKey", key), fault.Unavailable, address)
	statetest.WantOpenFault(t, opening(t, transport(a), "url", a.URL, "masterKey", "not base64"), fault.Invalid,
		"masterKey")
	statetest.WantOpenFault(t, opening(t, rest.Transport(nil), "url", a.URL, "masterKey", key), fault.Unavailable,
		"is not trusted")
	statetest.WantOpenFault(t, opening(t, transport(a), "url", a.URL, "masterKey", key, "collection", "other"),
		fault.Invalid,
		"does not exist", "/partitionKey")
	for want, pairs := range map[string][]string{
		"is not an address": {"url", "http://a", "database", "d", "collection", "c"},
		"is not application/json": {"url", "https://a", "database", "d", "collection", "c", "contentType",
			"text/plain"},
	} {
		if _, err := checked(pairs...); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", pairs, err, want)
		}
	}
}

// respond returns a function for account.fail. The function answers requests with the given method with a status and
// headers.
func respond(method string, code int, header ...string) func(w http.ResponseWriter, r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != method {
			return false
		}
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		answer(w, code, nil)
		return true
	}
}

func TestStore_AnswersOfService(t *testing.T) {
	a := start(t)
	s := opened(t, a)
	for code, want := range map[int]fault.Code{401: fault.Denied, 403: fault.Denied, 413: fault.TooLarge,
		500: fault.Indeterminate, 503: fault.Indeterminate, 408: fault.Indeterminate, 400: fault.Internal} {
		a.fail(respond("POST", code))
		if err := statetest.Set(t.Context(), s, statetest.Put("a||k", "1")); !fault.Is(err, want) {
			t.Errorf("a write that is answered with %d: %v with code %q, want %q", code, err, fault.CodeOf(err), want)
		}
	}
	for code, want := range map[int]fault.Code{401: fault.Denied, 500: fault.Unavailable, 503: fault.Unavailable} {
		a.fail(respond("GET", code))
		if _, err := statetest.Get(t.Context(), s, "a||k"); !fault.Is(err, want) {
			t.Errorf("a read that is answered with %d: %v with code %q, want %q", code, err, fault.CodeOf(err), want)
		}
	}
	a.fail(respond("GET", 404, "x-ms-substatus", "1003"))
	_, err := statetest.Get(t.Context(), s, "a||k")
	statetest.WantFault(t, err, fault.Unavailable, "container of Cosmos DB does not exist")
}

// TestStore_ThrottledRequestsAreRepeated checks that a throttled request is repeated after the pause that Cosmos DB
// asks for, but not beyond the deadline.
func TestStore_ThrottledRequestsAreRepeated(t *testing.T) {
	a := start(t)
	s := opened(t, a)
	var times atomic.Int64
	a.fail(func(w http.ResponseWriter, r *http.Request) bool {
		return times.Add(1) <= 3 && respond(r.Method, 429, "x-ms-retry-after-ms", "5")(w, r)
	})
	testutil.Must(t, statetest.Set(t.Context(), s, statetest.Put("a||k", "1")))
	if n := times.Load(); n != 4 {
		t.Errorf("the write was sent %d times, want 4", n)
	}
	times.Store(0)
	a.fail(func(w http.ResponseWriter, r *http.Request) bool {
		times.Add(1)
		return respond(r.Method, 429, "x-ms-retry-after-ms", "3600000")(w, r)
	})
	statetest.WantFault(t, statetest.Set(t.Context(), s, statetest.Put("a||k", "2")), fault.Overloaded, "throttles")
	if n := times.Load(); n != 1 {
		t.Errorf("the write was sent %d times, want once", n)
	}
	a.fail(nil)
	statetest.WantValue(t, s, "a||k", "1")
}

func TestStore_LostAnswerMakesWritesIndeterminate(t *testing.T) {
	a := start(t)
	s := opened(t, a)
	var times atomic.Int64
	a.fail(func(w http.ResponseWriter, r *http.Request) bool {
		times.Add(1)
		panic(http.ErrAbortHandler)
	})
	err := statetest.Set(t.Context(), s, statetest.Put("a||k", "1"))
	statetest.WantFault(t, err, fault.Indeterminate, "may have been applied")
	if n := times.Load(); n != 1 {
		t.Errorf("the write was sent %d times, want once", n)
	}
	a.fail(func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client has disconnected
		<-r.Context().Done()
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	statetest.WantFault(t, statetest.Set(ctx, s, statetest.Put("a||k", "1")), fault.Indeterminate,
		"may have been applied")
	ctx, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = statetest.Get(ctx, s, "a||k")
	statetest.WantFault(t, err, fault.Timeout, "did not answer in time")
	a.fail(nil)
	testutil.Must(t, statetest.Set(t.Context(), s, statetest.Put("a||k", "2")))
}

func TestStore_WeakAccountPromisesNothing(t *testing.T) {
	a := start(t)
	a.weak = true
	s := opened(t, a)
	testutil.Must(t, statetest.Set(t.Context(), s, statetest.Put("a||k", "1")))
	if item := statetest.WantValue(t, s, "a||k", "1"); item.Level != state.Stale {
		t.Errorf("the level is %q", item.Level)
	}
}

func TestStore_ContainerWithoutTTL(t *testing.T) {
	a := start(t)
	a.ttl = nil
	var log bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	s, err := open(ctx, t, cosmosdb.Options{Identity: entra.Settings{Transport: transport(a)},
		Logger: slog.New(slog.NewTextHandler(&log, nil))}, "url", a.URL, "masterKey", key)
	testutil.Must(t, err)
	defer s.Close()
	if slices.Contains(s.Features(), state.FeatureTTL) || !strings.Contains(log.String(), "no time to live") {
		t.Errorf("features %v, log %s", s.Features(), &log)
	}
	w := state.Write{Key: "a||k", Value: []byte("1"), TTL: state.TTL{Set: true, Seconds: 5}}
	statetest.WantFault(t, statetest.Set(ctx, s, w), fault.Invalid, "cannot expire")
}

func TestStore_PartitionsAndLayoutOfDapr(t *testing.T) {
	a := start(t)
	s := opened(t, a)
	ctx := t.Context()
	two := []state.Operation{{Write: statetest.Put("shop||a", "1")}, {Write: statetest.Put("shop||b", "1")}}
	_, err := s.Transact(ctx, state.TransactRequest{Operations: two})
	statetest.WantFault(t, err, fault.Invalid, "several partitions", "partitionKey")
	testutil.Must(t, statetest.Set(ctx, s, two[0].Write, two[1].Write)) // Set writes them one by one
	stale := state.Write{Key: "shop||b", Value: []byte("2"), ETag: `"stale"`}
	statetest.WantFault(t, statetest.Set(ctx, s, two[0].Write, stale), fault.Conflict,
		"the items before it were saved")
	var times atomic.Int64
	a.fail(func(w http.ResponseWriter, r *http.Request) bool {
		return times.Add(1) > 1 && respond(r.Method, 429, "x-ms-retry-after-ms", "3600000")(w, r)
	})
	statetest.WantFault(t, statetest.Set(ctx, s, two[0].Write, two[1].Write), fault.Indeterminate,
		"the items before it were saved", "throttles") // not fault.Overloaded, because one item was written
	a.fail(nil)
	actor := []state.Operation{{Write: statetest.Put("shop||cart||7||a", `{"n":1}`)},
		{Kind: state.Remove, Write: state.Write{Key: "shop||cart||7||b"}}}
	_, err = s.Transact(ctx, state.TransactRequest{Operations: actor})
	testutil.Must(t, err)
	statetest.WantValue(t, s, "shop||cart||7||a", `{"n":1}`)
	sent := strings.Join(a.sent(), "\n")
	for _, want := range []string{
		`{"id":"shop||a","value":1,"isBinary":false,"partitionKey":"shop||a"}`,
		`{"id":"shop||cart||7||a","value":{"n":1},"isBinary":false,"partitionKey":"shop||cart||7"}`,
	} {
		if !strings.Contains(sent, want) {
			t.Errorf("no request contains %s\n%s", want, sent)
		}
	}
	a.mu.Lock()
	a.items["shop||d\nshop||d"] = map[string]any{"id": "shop||d", "value": "AP8=", "isBinary": true,
		"partitionKey": "shop||d", "_etag": `"e"`, "_ts": int64(1)}
	a.mu.Unlock()
	if item := statetest.WantValue(t, s, "shop||d", "\x00\xff"); item.ContentType != state.OctetStream {
		t.Errorf("bytes of Dapr have the content type %q", item.ContentType)
	}
	many := make([]state.Operation, 101)
	for i := range many {
		many[i] = state.Operation{Write: statetest.Put("shop||cart||7||"+strings.Repeat("x", i+1), "1")}
	}
	_, err = s.Transact(ctx, state.TransactRequest{Operations: many})
	statetest.WantFault(t, err, fault.TooLarge, "100 operations")
	many[0].ETag = "stale" // the number of keys is checked first
	_, err = s.Transact(ctx, state.TransactRequest{Operations: many})
	statetest.WantFault(t, err, fault.TooLarge, "100 operations")
	statetest.WantFault(t, statetest.Set(ctx, s, statetest.Put("shop||a/b", "1")), fault.Invalid, "cannot store")
}

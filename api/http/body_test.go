package http

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/admission"
)

// budgeted returns a face with memory budgets and a store with one value.
func budgeted(t *testing.T, requests, answers *admission.Budget, value []byte) *Face {
	t.Helper()
	app := api.App{ID: "app"}
	jobs := api.NewJobs(app, &apitest.JobStore{})
	stores := &apitest.Stores{List: []*state.Instance{apitest.Instance("orders", oneValue{value})}, Ready: true}
	f, err := New(Config{
		App: app, State: api.NewState(app, stores, api.Limits{}), Jobs: jobs, Requests: requests,
		Answers: answers, AnyHost: true,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func post(f *Face, path string, body io.Reader) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1.0/state/orders"+path, body))
	return w
}

// Not parallel, because the test measures what the process allocates.
func TestBody_OverLimitIsNotDecoded(t *testing.T) {
	f := budgeted(t, nil, nil, nil)
	const n = 700_000
	for name, c := range map[string]struct{ path, body, want string }{
		"items": {"", "[" + strings.Repeat("{},", n) + "{}]",
			"too many items in one save: 700001; the limit is 10000"},
		"keys": {"/bulk", `{"keys":[` + strings.Repeat(`"",`, n) + `""]}`,
			"too many keys in one bulk read: 700001"},
		"operations": {"/transaction", `{"operations":[` + strings.Repeat("{},", n) + "{}]}",
			"has too many operations: 700001"},
		"metadata": {"", `[{"key":"a","value":1,"metadata":{` + strings.Repeat(`"a":"",`, n/2) + `"a":""}}]`,
			"too many entries in one metadata: 350001"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := post(f, c.path, strings.NewReader(c.body))
		runtime.ReadMemStats(&after)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 2*uint64(len(c.body)) {
			t.Errorf("%s: a body of %d bytes allocated %d", name, len(c.body), took)
		}
	}
	if w := post(f, "", strings.NewReader("["+strings.Repeat("{},", n)+"}")); !strings.Contains(w.Body.String(),
		"not valid JSON") {
		t.Errorf("a list that is not JSON: %s", w.Body)
	}
}

func TestRequest_RefusedBeforeBodyIsRead(t *testing.T) {
	t.Parallel()
	b := admission.New(admission.Options{Bytes: 8 << 20, Patience: 1, LargePatience: 1, Target: 1, Penalty: 1})
	f := budgeted(t, b, nil, nil)
	hold := b.Share()
	if !hold.TryAdd(6 << 20) {
		t.Fatal("the budget is not empty")
	}
	unread := iotest.ErrReader(errors.New("the body was read"))
	r := httptest.NewRequest(http.MethodPost, "/v1.0/state/orders", unread)
	r.ContentLength = 3 << 20
	w := httptest.NewRecorder()
	f.ServeHTTP(w, r)
	if text := w.Body.String(); !strings.Contains(text, `"ERR_OVERLOADED"`) || !strings.Contains(text, `"overloaded"`) {
		t.Errorf("%d %s", w.Code, text)
	}
	if w := post(f, "", strings.NewReader(`[{"key":"a","value":1}]`)); w.Code != http.StatusNoContent {
		t.Errorf("a small request beside large ones: %d %s", w.Code, w.Body)
	}
	hold.Release()
	body := `[{"key":"a","value":"` + strings.Repeat("x", 3<<20) + `"}]`
	for _, size := range []int64{int64(len(body)), -1} { // -1 = unknown, sent in chunks
		r := httptest.NewRequest(http.MethodPost, "/v1.0/state/orders", strings.NewReader(body))
		r.ContentLength = size
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		if w.Code != http.StatusNoContent {
			t.Errorf("of length %d: %d %s", size, w.Code, w.Body)
		}
		if all := b.Share(); !all.TryAdd(6 << 20) {
			t.Errorf("of length %d: not released", size)
		} else {
			all.Release()
		}
	}
}

func TestAnswer_WaitsForMemory(t *testing.T) {
	t.Parallel()
	b := admission.New(admission.Options{Bytes: 8 << 20, Patience: 1, LargePatience: 1, Target: 1, Penalty: 1})
	f := budgeted(t, nil, b, []byte(`"`+strings.Repeat("x", 4<<20)+`"`))
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1.0/state/orders/a", nil))
		return w
	}
	for range 3 {
		if w := get(); w.Code != http.StatusOK || w.Body.Len() != 4<<20+2 {
			t.Fatalf("%d, %d bytes", w.Code, w.Body.Len())
		}
	}
	hold := b.Share()
	if !hold.TryAdd(6 << 20) {
		t.Fatal("an answer was not released")
	}
	if w := get(); !strings.Contains(w.Body.String(), "overloaded") {
		t.Errorf("%d %.200s", w.Code, w.Body)
	}
}

func TestBulkRead_BoundedBySize(t *testing.T) {
	t.Parallel()
	f := budgeted(t, nil, admission.New(admission.Options{}), []byte(`"`+strings.Repeat("x", 1<<20)+`"`))
	if w := post(f, "/bulk", strings.NewReader(`{"keys":["a","b","c"]}`)); w.Code != http.StatusOK ||
		w.Body.Len() < 3<<20 {
		t.Errorf("%d %.200s", w.Code, w.Body)
	}
	w := post(f, "/bulk", strings.NewReader(`{"keys":[`+strings.Repeat(`"a",`, 5000)+`"a"]}`))
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "read fewer keys at once") {
		t.Errorf("%d %.200s", w.Code, w.Body)
	}
}

// A bulk read with an invalid key is refused at once, even while large answers use their whole memory.
func TestBulkRead_InvalidKeyNeedsNoMemory(t *testing.T) {
	t.Parallel()
	b := admission.New(admission.Options{Bytes: 8 << 20, Patience: 1, LargePatience: 1, Target: 1, Penalty: 1})
	f := budgeted(t, nil, b, nil)
	if hold := b.Share(); !hold.TryAdd(6 << 20) {
		t.Fatal("the budget is not empty")
	}
	w := post(f, "/bulk", strings.NewReader(`{"keys":["`+strings.Repeat("x", 5000)+`"]}`))
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "ILLEGAL_KEY") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// oneValue is a store that returns the same value for every key.
type oneValue struct{ value []byte }

func (s oneValue) Get(context.Context, state.GetRequest) (state.Item, error) {
	return state.Item{Value: s.value, ETag: "1"}, nil
}
func (oneValue) Set(context.Context, state.SetRequest) (state.Written, error) {
	return state.Written{}, nil
}
func (oneValue) Transact(context.Context, state.TransactRequest) (state.Written, error) {
	return state.Written{}, nil
}
func (oneValue) Delete(context.Context, state.DeleteRequest) (state.Written, error) {
	return state.Written{}, nil
}
func (oneValue) Close() error { return nil }

// A request with a job reserves the memory that the decoded elements of the job's data need.
func TestScheduleJob_ReservesMemoryOfElements(t *testing.T) {
	t.Parallel()
	b := admission.New(admission.Options{Bytes: 8 << 20, Patience: 1, LargePatience: 1, Target: 1, Penalty: 1})
	f := budgeted(t, b, nil, nil)
	hold := b.Share()
	if !hold.TryAdd(6 << 20) {
		t.Fatal("the budget is not empty")
	}
	schedule := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1.0/jobs/j",
			strings.NewReader(`{"dueTime":"1s","data":[0`+strings.Repeat(",0", 10_000)+`]}`)))
		return w
	}
	if w := schedule(); !strings.Contains(w.Body.String(), `"ERR_OVERLOADED"`) {
		t.Errorf("without memory: %d %s", w.Code, w.Body)
	}
	hold.Release()
	if w := schedule(); w.Code != http.StatusNoContent {
		t.Errorf("with memory: %d %s", w.Code, w.Body)
	}
}

// Commas and brackets within a JSON string reserve no memory, also after an escaped quote.
func TestScheduleJob_ReservesNoMemoryForMarksInStrings(t *testing.T) {
	t.Parallel()
	b := admission.New(admission.Options{Bytes: 8 << 20, Patience: 1, LargePatience: 1, Target: 1, Penalty: 1})
	f := budgeted(t, b, nil, nil)
	hold := b.Share()
	if !hold.TryAdd(4 << 20) {
		t.Fatal("the budget is not empty")
	}
	defer hold.Release()
	for name, text := range map[string]string{"plain": "a,", "escaped quote": `a\",`, "escaped backslash": `a\\,`} {
		data := `"` + strings.Repeat(text, 50_000) + `"`
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1.0/jobs/"+url.PathEscape(name),
			strings.NewReader(`{"dueTime":"1s","data":`+data+`}`)))
		if w.Code != http.StatusNoContent {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

func TestJobElements_CountsOutsideOfStrings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{`{"a":[1,2]}`: 4, `{"a,[":"\",:","b":0}`: 4, `["\\",{"x\\\"{":","}]`: 4,
		`"`: 0, `"\`: 0, "": 0} {
		if got := jobElements([]byte(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

// A large list of jobs reserves memory for its answer.
func TestListJobs_ReservesMemory(t *testing.T) {
	t.Parallel()
	b := admission.New(admission.Options{Bytes: 8 << 20, Patience: 1, LargePatience: 1, Target: 1, Penalty: 1})
	f := budgeted(t, nil, b, nil)
	do := func(method, path, body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w
	}
	if w := do(http.MethodPost, "/v1.0/jobs/j", `{"dueTime":"1s","data":"`+strings.Repeat("x", 1<<19)+`"}`); w.Code !=
		http.StatusNoContent {
		t.Fatal(w.Code, w.Body)
	}
	hold := b.Share()
	if !hold.TryAdd(6 << 20) {
		t.Fatal("the budget is not empty")
	}
	if w := do(http.MethodGet, "/v1.0/jobs", ""); !strings.Contains(w.Body.String(), `"ERR_OVERLOADED"`) {
		t.Errorf("without memory: %d, %d bytes", w.Code, w.Body.Len())
	}
	hold.Release()
	if w := do(http.MethodGet, "/v1.0/jobs", ""); w.Code != http.StatusOK || w.Body.Len() < 1<<19 {
		t.Errorf("with memory: %d, %d bytes", w.Code, w.Body.Len())
	}
	if !hold.TryAdd(6 << 20) {
		t.Error("the memory was not released")
	}
	hold.Release()
}

// waitingLocks is a lock store whose locks have an owner until free is closed.
type waitingLocks struct {
	lock.Leaser
	asked, free chan struct{}
}

func (l *waitingLocks) TryLock(context.Context, lock.Claim) (lock.Grant, error) {
	close(l.asked)
	<-l.free
	return lock.Grant{}, nil
}

// A request that waits for a lock reserves no memory, because it may wait for minutes.
func TestTryLock_WaitReservesNoMemory(t *testing.T) {
	t.Parallel()
	b := admission.New(admission.Options{Bytes: 8 << 20})
	store := &waitingLocks{asked: make(chan struct{}), free: make(chan struct{})}
	locks := &apitest.LockCatalogue{Ready: true,
		List: []*lock.Instance{{Name: "locks", Store: store}}}
	app := api.App{ID: "app"}
	f, err := New(Config{App: app, Locks: api.NewLocks(app, locks), Requests: b, AnyHost: true,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1.0/lock/locks?wait=1m",
			strings.NewReader(`{"resourceId":"r","lockOwner":"o","expiryInSeconds":5}`+strings.Repeat(" ", 1<<20))))
		done <- w
	}()
	select {
	case <-store.asked:
	case w := <-done:
		t.Fatal(w.Code, w.Body)
	}
	if all := b.Share(); !all.TryAdd(6 << 20) {
		t.Error("the waiting request keeps memory")
	}
	close(store.free)
	if w := <-done; w.Code != http.StatusOK {
		t.Error(w.Code, w.Body)
	}
}

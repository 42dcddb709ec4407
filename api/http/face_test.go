package http_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/admission"
	"github.com/quorate/quorate/internal/fault"
)

func newFace(t testing.TB, f *fixture) *apihttp.Face {
	t.Helper()
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	return face
}

// call sends one request to a handler without a network.
func call(t testing.TB, h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body))
	r.Host = "127.0.0.1"
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestNew_RefusesInvalidConfig(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*apihttp.Config){
		"an origin with a path":  func(c *apihttp.Config) { c.AllowedOrigins = []string{"https://a.example/app"} },
		"an origin without host": func(c *apihttp.Config) { c.AllowedOrigins = []string{"app.example"} },
	}
	for name, adapt := range tests {
		c := newFixture(t).config
		adapt(&c)
		if _, err := apihttp.New(c); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := newFixture(t)
	newFace(t, f)
	if _, err := apihttp.New(f.config); err == nil {
		t.Error("the same metrics were registered twice")
	}
}

func TestPanic_IsLoggedWithoutItsValue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	face := newFace(t, f)
	if w := call(t, face, "GET", "/v1.0/state/faulty/panic", ""); w.Code != http.StatusInternalServerError ||
		strings.Contains(w.Body.String(), "secret") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := call(t, face, "GET", "/v1.0/state/faulty/nil-map", ""); w.Code != http.StatusInternalServerError {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	log := f.Log.String()
	for _, want := range []string{"panic=string", "assignment to entry in nil map", "stores.go",
		"/v1.0/state/{store}/*"} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %q:\n%s", want, log)
		}
	}
	if strings.Contains(log, "secret value") {
		t.Errorf("the log holds the value:\n%s", log)
	}
}

// cutWriter is a response writer that fails in the middle of an answer.
type cutWriter struct{ *httptest.ResponseRecorder }

func (w cutWriter) Write([]byte) (int, error) { panic("the connection is in an impossible state") }

func TestPanic_DuringAnswerCutsConnection(t *testing.T) {
	t.Parallel()
	face := newFace(t, newFixture(t))
	call(t, face, "POST", "/v1.0/state/orders", `[{"key":"a","value":1}]`)
	defer func() {
		if cause, _ := recover().(error); !errors.Is(cause, http.ErrAbortHandler) {
			t.Errorf("ended with %v", cause)
		}
	}()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1.0/state/orders/a", nil)
	r.Host = "localhost"
	face.ServeHTTP(cutWriter{httptest.NewRecorder()}, r)
}

func TestErrors_LogsServerErrorsOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	face := newFace(t, f)
	for _, key := range []string{"invalid", "unavailable", "timeout", "too_large"} {
		call(t, face, "GET", "/v1.0/state/faulty/"+key, "")
	}
	if f.Log.String() != "" {
		t.Errorf("logged: %s", f.Log)
	}
	call(t, face, "GET", "/v1.0/state/faulty/corrupt", "")
	if !strings.Contains(f.Log.String(), "the store reported corrupt") {
		t.Errorf("logged: %s", f.Log)
	}
}

func TestShutdown_AnswersFirstAndPassesFast(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	base := f.serve(t)
	for _, force := range []bool{false, true} {
		request, err := http.NewRequestWithContext(t.Context(), "POST", base+"/v1.0/shutdown", nil)
		if err != nil {
			t.Fatal(err)
		}
		if force {
			request.Header.Set("dapr-force-shutdown", "true")
		}
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if got := <-f.Stopped; response.StatusCode != http.StatusNoContent || got != force {
			t.Errorf("status %d, forced %v, want %v", response.StatusCode, got, force)
		}
	}
}

// proven is a store that answers with a given proof, and sends the options of each read to seen.
type proven struct {
	state.Store
	proof state.Proof
	seen  chan state.ReadOptions
}

func (s proven) Get(_ context.Context, r state.GetRequest) (state.Item, error) {
	if s.seen != nil {
		s.seen <- r.ReadOptions
	}
	return state.Item{ETag: "1", Value: []byte("1"), Proof: s.proof}, nil
}

// reporting is a store with a large value. Only its first read reports a lost write.
type reporting struct {
	state.Store
	reads *atomic.Int64
}

func (s reporting) Get(_ context.Context, r state.GetRequest) (state.Item, error) {
	item := state.Item{ETag: "1", Size: 1 << 20, Proof: state.Proof{Level: state.SessionLevel}}
	if s.reads.Add(1) == 1 {
		item.Level = state.Stale
	}
	if r.MaxValue == 0 {
		item.Value, item.Size = []byte(`"`+strings.Repeat("x", 1<<20)+`"`), 0
	}
	return item, nil
}

// A large value is read twice. The answer has the report of the first read.
func TestHeaders_LargeValueKeepsReport(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	store := reporting{reads: &atomic.Int64{}}
	f.Stores.List = []*state.Instance{apitest.Instance("orders", store)}
	f.config.Answers = admission.New(admission.Options{Name: "answers"})
	w := call(t, newFace(t, f), "GET", "/v1.0/state/orders/a", "")
	got := w.Header().Get("Quorate-Consistency")
	if w.Code != http.StatusOK || got != "stale" || store.reads.Load() != 2 {
		t.Errorf("%d at level %q after %d reads", w.Code, got, store.reads.Load())
	}
}

func TestHeaders_ReportFreshness(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name                string
		proof               state.Proof
		level, age, session string
	}{
		{"linearizable has no age", state.Proof{Level: state.Linearizable, Age: time.Second}, "linearizable", "", ""},
		{"session", state.Proof{Level: state.SessionLevel, Age: 1500 * time.Microsecond, Session: "tok"}, "session",
			"1", "tok"},
		{"bounded", state.Proof{Level: state.Bounded, Age: 2 * time.Second}, "bounded", "2000", ""},
		{"stale of unknown age", state.Proof{Level: state.Stale, Age: -1, Session: "tok"}, "stale", "", "tok"},
		{"age zero is an age", state.Proof{Level: state.Stale}, "stale", "0", ""},
		{"no promise", state.Proof{}, "", "", ""},
	}
	for _, test := range tests {
		f := newFixture(t)
		f.Stores.List = []*state.Instance{apitest.Instance("orders", proven{proof: test.proof})}
		h := call(t, newFace(t, f), "GET", "/v1.0/state/orders/a", "").Header()
		if h.Get("Quorate-Consistency") != test.level || h.Get("Quorate-Age") != test.age ||
			h.Get("Quorate-Session") != test.session {
			t.Errorf("%s: %v", test.name, h)
		}
		bulk := call(t, newFace(t, withNewMetrics(f)), "POST", "/v1.0/state/orders/bulk", `{"keys":["a"]}`).Header()
		if bulk.Get("Quorate-Consistency") != test.level || bulk.Get("Quorate-Age") != test.age ||
			bulk.Get("Quorate-Session") != test.session {
			t.Errorf("%s, bulk: %v", test.name, bulk)
		}
	}
}

// Set returns the given proof.
func (s proven) Set(context.Context, state.SetRequest) (state.Written, error) {
	return state.Written{Proof: s.proof}, nil
}

func TestHeaders_WriteHasSessionAndNoAge(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Stores.List = []*state.Instance{apitest.Instance("orders",
		proven{proof: state.Proof{Level: state.SessionLevel, Age: time.Second, Session: "tok"}})}
	h := call(t, newFace(t, f), "POST", "/v1.0/state/orders", `[{"key":"a","value":1}]`).Header()
	if h.Get("Quorate-Session") != "tok" || h.Get("Quorate-Consistency") != "session" ||
		h.Values("Quorate-Age") != nil || h.Values("ETag") != nil {
		t.Errorf("%v", h)
	}
}

func TestSession_ReachesStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	store := proven{seen: make(chan state.ReadOptions, 1)}
	f.Stores.List = []*state.Instance{apitest.Instance("orders", store)}
	face := newFace(t, f)
	call(t, face, "GET", "/v1.0/state/orders/a?metadata.maxStaleness=1s&metadata.maxStaleness=9s", "",
		"quorate-session", "tok")
	got := <-store.seen
	if got.Session != "tok" || got.MaxStaleness != time.Second || got.Consistency != state.Eventual {
		t.Errorf("%+v", got)
	}
}

func TestRequestID_RepeatedIsExecutedOnce(t *testing.T) {
	t.Parallel()
	face := newFace(t, newFixture(t))
	first := call(t, face, "POST", "/v1.0/state/orders", `[{"key":"a","value":1}]`, "Quorate-Request-Id", "id-1")
	again := call(t, face, "POST", "/v1.0/state/orders", `[{"key":"a","value":1}]`, "Quorate-Request-Id", "id-1")
	if first.Code != http.StatusNoContent || first.Header().Get("ETag") != again.Header().Get("ETag") {
		t.Errorf("first %d %v, again %d %v", first.Code, first.Header(), again.Code, again.Header())
	}
	long := call(t, face, "POST", "/v1.0/state/orders", `[{"key":"a","value":1}]`, "Quorate-Request-Id",
		strings.Repeat("x", 129))
	if long.Code != http.StatusBadRequest || !strings.Contains(long.Body.String(), "the limit is 128") {
		t.Errorf("%d %s", long.Code, long.Body)
	}
}

func TestToken_IsNotPassedToStore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.config.Tokens = apitest.Tokens("secret")
	face := newFace(t, f)
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1.0/state/orders/a", nil)
	r.Header.Set("dapr-api-token", "secret")
	face.ServeHTTP(httptest.NewRecorder(), r)
	if len(r.Header) != 0 {
		t.Errorf("headers left: %v", r.Header)
	}
}

func TestAnswer_LargeIsComplete(t *testing.T) {
	t.Parallel()
	base := newFixture(t).serve(t)
	value := `"` + strings.Repeat("x", 3<<20) + `"`
	if status, _, body := do(t, "POST", base+"/v1.0/state/orders",
		`[{"key":"big","value":`+value+`}]`); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, body)
	}
	status, header, body := do(t, "GET", base+"/v1.0/state/orders/big", "")
	if status != http.StatusOK || body != value || header.Get("Content-Length") != fmt.Sprint(len(value)) {
		t.Errorf("%d, %d bytes, header %v", status, len(body), header)
	}
	_, _, bulk := do(t, "POST", base+"/v1.0/state/orders/bulk", `{"keys":["big","big"]}`)
	if n := strings.Count(bulk, value); n != 2 {
		t.Errorf("the bulk answer of %d bytes has the value %d times", len(bulk), n)
	}
}

func TestBulk_AnswerIsAlwaysValidJSON(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.Stores.List = []*state.Instance{apitest.Instance("orders", foreign{})}
	w := call(t, newFace(t, f), "POST", "/v1.0/state/orders/bulk", `{"keys":["k\"\\\u0001é"]}`)
	want := `[{"key":"k\"\\\u0001é","data":"aGVsbG8gdGhlcmU=","etag":"e\"1",` +
		`"metadata":{"contentType":"application/octet-stream"}}]`
	if w.Body.String() != want {
		t.Errorf("got  %s\nwant %s", w.Body, want)
	}
}

// foreign is a store with a value that is not JSON.
type foreign struct{ state.Store }

func (foreign) Get(context.Context, state.GetRequest) (state.Item, error) {
	return state.Item{ETag: `e"1`, Value: []byte("hello there")}, nil
}

func TestAnswer_ConcurrentClientsGetTheirOwn(t *testing.T) {
	t.Parallel()
	base := newFixture(t).serve(t)
	var running sync.WaitGroup
	for i := range 16 {
		running.Go(func() {
			key := fmt.Sprintf("k%d", i)
			value := fmt.Sprintf(`{"owner":%q,"fill":%q}`, key, strings.Repeat(key, 50*i))
			for range 20 {
				if status, _, body := do(t, "POST", base+"/v1.0/state/orders",
					`[{"key":"`+key+`","value":`+value+`}]`); status != http.StatusNoContent {
					t.Errorf("%s: %d %s", key, status, body)
				}
				if _, _, body := do(t, "GET", base+"/v1.0/state/orders/"+key, ""); body != value {
					t.Errorf("%s: got %.80s", key, body)
				}
				if _, _, body := do(t, "POST", base+"/v1.0/state/orders/bulk",
					`{"keys":["`+key+`"]}`); !strings.Contains(body, value) {
					t.Errorf("%s: got %.80s", key, body)
				}
				if status, _, body := do(t, "GET", base+"/v1.0/state/none/"+key,
					""); status != http.StatusBadRequest || !json.Valid([]byte(body)) {
					t.Errorf("%s: %d %s", key, status, body)
				}
			}
		})
	}
	running.Wait()
}

func TestMetrics_CountByRouteNotPath(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	face := newFace(t, f)
	call(t, face, "POST", "/v1.0/state/orders", `[{"key":"a","value":1}]`)
	call(t, face, "GET", "/v1.0/state/orders/a", "")
	call(t, face, "GET", "/v1.0/state/orders/b/c", "")
	call(t, face, "GET", "/v1.0/state/unknown/a", "")
	call(t, face, "GET", "/random/path/1", "")
	call(t, face, "BREW", "/random/path/2", "")
	call(t, face, "GET", "/v1.0/healthz", "", "Origin", "https://attacker.example")
	got := map[string]float64{}
	for _, m := range family(t, f, "quorate_http_requests_total") {
		if n := m.GetCounter().GetValue(); n > 0 {
			got[labels(m)] = n
		}
	}
	want := map[string]float64{
		"app=shop method=POST route=/v1.0/state/{store} status=2xx":  1,
		"app=shop method=GET route=/v1.0/state/{store}/* status=2xx": 2,
		"app=shop method=GET route=/v1.0/state/{store}/* status=4xx": 1,
		"app=shop method=GET route=unmatched status=4xx":             1,
		"app=shop method=other route=unmatched status=4xx":           1,
		"app=shop method=GET route=refused status=4xx":               1,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if n := family(t, f, "quorate_http_requests_in_flight")[0].GetGauge().GetValue(); n != 0 {
		t.Errorf("%v requests in flight", n)
	}
	for _, m := range family(t, f, "quorate_http_request_bytes_total") {
		if n := m.GetCounter().GetValue(); n > 0 && n != float64(len(`[{"key":"a","value":1}]`)) {
			t.Errorf("%s: %v bytes", labels(m), n)
		}
	}
}

func family(t *testing.T, f *fixture, name string) []*dto.Metric {
	t.Helper()
	families, err := f.Metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()
		}
	}
	t.Fatalf("no metric %s", name)
	return nil
}

func labels(m *dto.Metric) string {
	var parts []string
	for _, l := range m.GetLabel() {
		parts = append(parts, l.GetName()+"="+l.GetValue())
	}
	return strings.Join(parts, " ")
}

// drip is a body that returns one byte per Read.
type drip struct{ rest string }

func (d *drip) Read(b []byte) (int, error) {
	if d.rest == "" {
		return 0, io.EOF
	}
	b[0], d.rest = d.rest[0], d.rest[1:]
	return 1, nil
}

func TestBody_InSmallPiecesIsComplete(t *testing.T) {
	t.Parallel()
	face := newFace(t, newFixture(t))
	body := `[{"key":"a","value":"` + strings.Repeat("x", 3000) + `"}]`
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1.0/state/orders", &drip{body})
	r.Host = "localhost"
	w := httptest.NewRecorder()
	face.ServeHTTP(w, r)
	if w.Code != http.StatusNoContent {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func withNewMetrics(f *fixture) *fixture {
	other := *f
	other.config.Registerer = prometheus.NewRegistry()
	other.config.State = api.NewState(f.config.App, f.Stores, api.Limits{})
	return &other
}

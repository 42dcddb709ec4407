package remoteinvoke_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	testv1 "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/remoteinvoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/peer"
)

// Short names, for tables.
type (
	statuses = resiliency.StatusSet
	policies = map[api.App]*resiliency.Policy
)

func get(t *testing.T, n *node, path string) (int, string) {
	t.Helper()
	answer, err := client(t).Get(n.url("/v1.0/invoke/" + path))
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, body(t, answer)
}

func TestAccess_DecidedAtCalleeByVerifiedIdentity(t *testing.T) {
	proven := &atomic.Bool{}
	w := newWorld(t)
	w.access = map[api.App]*invoke.Access{{ID: "web"}: invoke.NewAccess(&component.AccessControl{
		DefaultAction: component.Deny, Policies: []component.AccessPolicy{
			{AppID: "shop", Namespace: "default", TrustDomain: "public", DefaultAction: component.Deny,
				Operations: []component.AccessOperation{{Name: "/open/*", Verbs: []string{"GET"},
					Action: component.Allow}}},
		}}, false)}
	w.hooks = func(c *remoteinvoke.ServerConfig) {
		c.Prove = func(at peer.Caller, _ api.App) (string, bool) { return "public", at.Server == "a" && proven.Load() }
	}
	b := w.start("b", "web", app(t, describe), nil)
	a := w.start("a", "shop", "", nil)
	if status, text := get(t, a, "web/method/open/x"); status != http.StatusForbidden ||
		!strings.Contains(text, "does not allow shop to call GET /open/x") {
		t.Errorf("without a proof: %d %s", status, text)
	}
	proven.Store(true)
	for path, want := range map[string]int{"open/x": http.StatusTeapot, "closed": http.StatusForbidden,
		"open/./x": http.StatusTeapot, "open/%2e/x": http.StatusBadRequest, "open%2Fx": http.StatusForbidden,
		"OPEN/x": http.StatusTeapot, "closed;/../open/x": http.StatusTeapot, "open/;x": http.StatusForbidden} {
		if status, text := get(t, a, "web/method/"+path); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, text := get(t, b, "web/method/closed"); status != http.StatusTeapot {
		t.Errorf("an application was kept from itself: %d %s", status, text)
	}
	if got := testutil.CollectAndCount(b.metrics, "quorate_invoke_denied_total"); got != 1 {
		t.Errorf("%d series of refusals", got)
	}
}

func TestPolicy_RetriesAnswersAndTimesOutAttempts(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		b, _ := io.ReadAll(r.Body) // net/http detects a disconnected caller only after the body was read
		if r.URL.Path == "/slow" && n < 3 {
			<-r.Context().Done()
			return
		}
		if n < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write(append([]byte(r.URL.Path+" "), b...))
	})
	target := api.App{ID: "web"}
	a.policy.Set(policies{target: {Timeout: 1500 * time.Millisecond,
		Retry: &resiliency.Retry{Pause: time.Millisecond, Max: 5}}}, &resiliency.Policy{})
	for _, path := range []string{"/quick", "/slow"} {
		calls.Store(0)
		answer, err := client(t).Post(a.url("/v1.0/invoke/web/method"+path), "text/plain", strings.NewReader("kept"))
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, answer); got != path+" kept" || calls.Load() != 3 {
			t.Errorf("%s: %d %q after %d calls", path, answer.StatusCode, got, calls.Load())
		}
	}
	a.policy.Set(policies{target: {Timeout: 500 * time.Millisecond}}, &resiliency.Policy{})
	calls.Store(0)
	if status, text := get(t, a, "web/method/slow"); status != http.StatusInternalServerError ||
		!strings.Contains(text, "time-out of the resiliency policy") || calls.Load() != 1 {
		t.Errorf("%d %s after %d calls", status, text, calls.Load())
	}
	if err := testutil.CollectAndCompare(a.metrics,
		bytes.NewBufferString("# HELP quorate_invoke_retries_total Attempts after the first, by target.\n# TYPE "+
			"quorate_invoke_retries_total counter\nquorate_invoke_retries_total{target=\"web\"} 4\n"),
		"quorate_invoke_retries_total"); err != nil {
		t.Error(err)
	}
}

func TestPolicy_LargeBodyIsSentOnce(t *testing.T) {
	var calls atomic.Int64
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		n := 0
		for b := make([]byte, 1<<16); ; {
			k, err := r.Body.Read(b)
			if n += k; err != nil {
				break
			}
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	a.policy.Set(policies{{ID: "web"}: {Retry: &resiliency.Retry{Pause: time.Millisecond, Max: 5}}},
		&resiliency.Policy{})
	answer, err := client(t).Post(a.url("/v1.0/invoke/web/method/x"), "text/plain", &pattern{left: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	body(t, answer)
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}

func TestPolicy_RetriesOnlyMatchingFailures(t *testing.T) {
	var calls atomic.Int64
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		code, _ := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		w.WriteHeader(code)
	})
	all := statuses{{100, 599}}
	for _, c := range []struct {
		status int
		set    resiliency.StatusSet
		want   int64
	}{
		{200, all, 1}, {204, statuses{{204, 204}}, 1}, {304, all, 1}, {302, statuses{{300, 399}}, 1},
		{404, all, 3}, {503, statuses{{500, 599}}, 3}, {503, statuses{{200, 299}}, 1}, {429, nil, 3},
		{500, statuses{{429, 429}}, 1},
	} {
		a.policy.Set(policies{{ID: "web"}: {Retry: &resiliency.Retry{Pause: time.Millisecond, Max: 2,
			Statuses: c.set, Codes: statuses{{16, 16}}}}}, &resiliency.Policy{})
		calls.Store(0)
		status, _ := get(t, a, "web/method/"+strconv.Itoa(c.status))
		if status != c.status || calls.Load() != c.want {
			t.Errorf("%d with %v: %d after %d calls, want %d", c.status, c.set, status, calls.Load(), c.want)
		}
	}
}

func TestPolicy_StreamIsNeverSentAgain(t *testing.T) {
	var calls atomic.Int64
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	a.policy.Set(policies{{ID: "web"}: {Retry: &resiliency.Retry{Pause: time.Millisecond, Max: 2}}},
		&resiliency.Policy{})
	for name, c := range map[string]struct {
		body io.Reader
		want int64
	}{"known length": {strings.NewReader("text"), 3}, "chunked": {io.MultiReader(strings.NewReader("text")), 1},
		"none": {nil, 3}} {
		calls.Store(0)
		answer, err := client(t).Post(a.url("/v1.0/invoke/web/method/x"), "text/plain", c.body)
		if err != nil {
			t.Fatal(err)
		}
		body(t, answer)
		if answer.StatusCode != http.StatusServiceUnavailable || calls.Load() != c.want {
			t.Errorf("%s: %d after %d calls, want %d", name, answer.StatusCode, calls.Load(), c.want)
		}
	}
}

func TestPolicy_RetriesMatchingGRPCCodes(t *testing.T) {
	a, b, o := grpcPair(t)
	for _, from := range []*node{a, b} {
		conn := from.dial(t, nil)
		for _, c := range []struct {
			code codes.Code
			set  resiliency.StatusSet
			want int
		}{
			{codes.Canceled, statuses{{1, 1}, {4, 6}}, 3}, {codes.NotFound, statuses{{4, 6}}, 3},
			{codes.NotFound, statuses{{1, 1}}, 1}, {codes.Internal, nil, 3}, {codes.OK, statuses{{0, 16}}, 1},
		} {
			from.policy.Set(policies{{ID: "orders"}: {Retry: &resiliency.Retry{Pause: time.Millisecond, Max: 2,
				Statuses: statuses{{404, 404}}, Codes: c.set}}}, &resiliency.Policy{})
			o.calls.Store(0)
			_, err := testv1.NewTestServiceClient(conn).UnaryCall(to(t, "orders"), &testv1.SimpleRequest{
				FillUsername: true, ResponseStatus: &testv1.EchoStatus{Code: int32(c.code)}})
			if status.Code(err) != c.code || int(o.calls.Load()) != c.want {
				t.Errorf("its own service: %s with %v: %v after %d calls, want %d", c.code, c.set, err, o.calls.Load(),
					c.want)
			}
			o.calls.Store(0)
			_, err = runtimev1.NewDaprClient(conn).InvokeService(t.Context(),
				invokeService("orders", "code", &anypb.Any{Value: []byte(strconv.Itoa(int(c.code)))}, "text/plain"))
			if status.Code(err) != c.code || int(o.calls.Load()) != c.want {
				t.Errorf("OnInvoke: %s with %v: %v after %d calls, want %d", c.code, c.set, err, o.calls.Load(), c.want)
			}
		}
	}
}

func TestPolicy_CircuitBreakerOpensAndCloses(t *testing.T) {
	var broken atomic.Bool
	var calls atomic.Int64
	broken.Store(true)
	a, _ := pair(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		if broken.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	changes := make(chan string, 10)
	a.policy.Set(policies{{ID: "web"}: {Breaker: &resiliency.Breakers{Settings: resiliency.BreakerSettings{
		Name: "cb", Timeout: 50 * time.Millisecond, Trip: func(c resiliency.BreakerCounts) bool {
			return c.ConsecutiveFailures >= 3
		},
		OnChange: func(_ api.App, _, to string) {
			select {
			case changes <- to:
			default: // the test needs no further changes
			}
		},
	}}}}, &resiliency.Policy{})
	for range 3 {
		if status, _ := get(t, a, "web/method/x"); status != http.StatusInternalServerError {
			t.Fatal(status)
		}
	}
	if to := <-changes; to != "open" {
		t.Errorf("it is %s", to)
	}
	eventually(t, "it refuses without a call", func() bool { // the breaker lets a call through from time to time
		before := calls.Load()
		status, text := get(t, a, "web/method/x")
		return status == http.StatusInternalServerError && calls.Load() == before && strings.Contains(text, "circuit")
	})
	if status, text := get(t, a, "web/method/other"); strings.Contains(text, "circuit") {
		t.Errorf("another method: %d %s", status, text)
	}
	broken.Store(false)
	eventually(t, "it closes", func() bool { status, _ := get(t, a, "web/method/x"); return status == http.StatusOK })
}

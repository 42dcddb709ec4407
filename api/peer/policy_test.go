package peer_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quorate/quorate/api"
	apipeer "github.com/quorate/quorate/api/peer"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/peer"
)

func get(t *testing.T, n *node, path string) (int, string) {
	t.Helper()
	answer, err := client(t).Get(n.url("/v1.0/invoke/" + path))
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, body(t, answer)
}

func TestAccessControlIsDecidedAtTheCalleeOnWhatItsNodeProves(t *testing.T) {
	proven := &atomic.Bool{}
	w := newWorld(t)
	w.access = map[api.App]*api.Access{{ID: "web"}: api.NewAccess(&component.AccessControl{DefaultAction: component.Deny, Policies: []component.AccessPolicy{
		{AppID: "shop", Namespace: "default", TrustDomain: "public", DefaultAction: component.Deny, Operations: []component.AccessOperation{{Name: "/open/*", Verbs: []string{"GET"}, Action: component.Allow}}},
	}}, false)}
	w.hooks = func(c *apipeer.ServerConfig) {
		c.Prove = func(at peer.Caller, _ api.App) (string, bool) { return "public", at.Server == "a" && proven.Load() }
	}
	b := w.start("b", "web", app(t, describe), nil)
	a := w.start("a", "shop", "", nil)
	if status, text := get(t, a, "web/method/open/x"); status != http.StatusForbidden || !strings.Contains(text, "does not allow shop to call GET /open/x") {
		t.Errorf("without a proof: %d %s", status, text)
	}
	proven.Store(true)
	for path, want := range map[string]int{"open/x": http.StatusTeapot, "closed": http.StatusForbidden, "open/%2e/x": http.StatusTeapot, "open%2Fx": http.StatusTeapot, "OPEN/x": http.StatusTeapot} {
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

func TestARetryPolicyRepeatsAnswersAndATimeoutEndsAttempts(t *testing.T) {
	var calls atomic.Int64
	a, _ := pair(t, func(w http.ResponseWriter, r *http.Request) {
		n := calls.Add(1)
		b, _ := io.ReadAll(r.Body) // only then net/http sees that the caller is gone
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
	a.policy.Set(map[api.App]*api.Policy{target: {Timeout: 1500 * time.Millisecond, Retry: &api.Retry{Pause: time.Millisecond, Max: 5}}}, &api.Policy{})
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
	a.policy.Set(map[api.App]*api.Policy{target: {Timeout: 500 * time.Millisecond}}, &api.Policy{})
	calls.Store(0)
	if status, text := get(t, a, "web/method/slow"); status != http.StatusInternalServerError || !strings.Contains(text, "time-out of the resiliency policy") || calls.Load() != 1 {
		t.Errorf("%d %s after %d calls", status, text, calls.Load())
	}
	if err := testutil.CollectAndCompare(a.metrics, bytes.NewBufferString("# HELP quorate_invoke_retries_total Attempts after the first, by target.\n# TYPE quorate_invoke_retries_total counter\nquorate_invoke_retries_total{target=\"web\"} 4\n"), "quorate_invoke_retries_total"); err != nil {
		t.Error(err)
	}
}

func TestABodyTooLongToRememberIsSentOnce(t *testing.T) {
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
	a.policy.Set(map[api.App]*api.Policy{{ID: "web"}: {Retry: &api.Retry{Pause: time.Millisecond, Max: 5}}}, &api.Policy{})
	answer, err := client(t).Post(a.url("/v1.0/invoke/web/method/x"), "text/plain", &pattern{left: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	body(t, answer)
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}

func TestACircuitBreakerOpensAndCloses(t *testing.T) {
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
	a.policy.Set(map[api.App]*api.Policy{{ID: "web"}: {Breaker: &api.Breakers{Settings: api.BreakerSettings{
		Name: "cb", Timeout: 50 * time.Millisecond, Trip: func(c api.BreakerCounts) bool { return c.ConsecutiveFailures >= 3 },
		OnChange: func(_ api.App, _, to string) {
			select {
			case changes <- to:
			default: // enough is known
			}
		},
	}}}}, &api.Policy{})
	for range 3 {
		if status, _ := get(t, a, "web/method/x"); status != http.StatusInternalServerError {
			t.Fatal(status)
		}
	}
	if to := <-changes; to != "open" {
		t.Errorf("it is %s", to)
	}
	eventually(t, "it refuses without a call", func() bool { // it lets one through from time to time
		before := calls.Load()
		status, text := get(t, a, "web/method/x")
		return status == http.StatusInternalServerError && calls.Load() == before && strings.Contains(text, "circuit")
	})
	broken.Store(false)
	eventually(t, "it closes", func() bool { status, _ := get(t, a, "web/method/x"); return status == http.StatusOK })
}

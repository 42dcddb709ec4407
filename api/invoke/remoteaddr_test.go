package invoke_test

import (
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/middleware/ratelimit"
)

// limited is an application behind a rate limit.
type limited struct{ *ratelimit.Limiter }

// RoundTrip implements invoke.Channel.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := l.Filter(r); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

func TestCallee_RateLimitCountsEachCallingAddress(t *testing.T) {
	v, _, err := component.Metadata{{Name: "maxRequestsPerSecond", Value: "0.0001"}}.Check(component.Pos{}, "l",
		ratelimit.Fields())
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.Open(v, nil)
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := invoke.NewMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	web := api.App{ID: "web"}
	callee := invoke.NewCallee(api.NewSessions(nil), metrics, apitest.Untraced{})
	callee.Serve(map[api.App]invoke.Channel{web: limited{limiter}}, nil)
	for _, c := range []struct {
		remote string
		passes bool
	}{
		{"192.0.2.1:1", true}, {"192.0.2.1:2", false}, {"192.0.2.2:1", true}, {"[2001:db8::1]:1", true},
		{"[2001:db8::1]:2", false}, {"[2001:db8::2]:1", true},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := callee.Take(&invoke.Inbound{Target: web, Request: r, Remote: c.remote}); (err == nil) != c.passes {
			t.Errorf("%s: %v", c.remote, err)
		}
	}
}

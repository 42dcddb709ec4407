package invoke_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
)

// observed is an Observer that records its notifications with the targets of calls.
type observed struct{ events []string }

func (o *observed) add(format string, args ...any) {
	o.events = append(o.events, fmt.Sprintf(format, args...))
}

func (o *observed) Sent(_, target string, _ bool) { o.add("sent to %s", target) }

func (o *observed) Answered(_, target, status string, _ bool, _ time.Duration) {
	o.add("%s from %s", status, target)
}

func (o *observed) Received(string, string) {}

func (o *observed) Replied(string, string, string) {}

func (o *observed) Decided(string, string, string, bool, bool) {}

func (o *observed) PolicyApplied(_, _, policy, target, state string) {
	o.add("%s %s of %s", policy, state, target)
}

func (o *observed) PolicyActivated(_, _, policy, target, state string) {
	o.add("%s %s of %s", policy, state, target)
}

// A new node learns only after its start which applications exist. The first call waits for this, so that its metrics
// have the label of its target.
func TestObserver_FirstCallOfANewNodeCountsForItsTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{settles: 10, arrives: 5}
		registry := prometheus.NewRegistry()
		metrics, err := invoke.NewMetrics(registry, func(app api.App) bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return app.ID == "shop" || len(c.nodes) > 0
		})
		if err != nil {
			t.Fatal(err)
		}
		o := &observed{}
		metrics.Report(o)
		sessions, routes, policies := api.NewSessions(nil), &invoke.Routes{}, resiliency.NewPolicies()
		policies.Set(map[discovery.App]*resiliency.Policy{{ID: "web"}: {Breaker: &resiliency.Breakers{}}},
			&resiliency.Policy{})
		routes.Open(c, c)
		service := invoke.New(api.App{ID: "shop"}, invoke.Parts{
			Routes: routes, Here: invoke.NewCallee(sessions, metrics, apitest.Untraced{}), Sessions: sessions,
			Policies: policies, Tracer: apitest.Untraced{}, Metrics: metrics, Logger: slog.New(slog.DiscardHandler),
		})
		var want []string
		for range 4 {
			if err := call(t.Context(), service); err != nil {
				t.Fatal(err)
			}
			want = append(want, "sent to web", "circuitbreaker closed of web", "200 from web")
		}
		if !slices.Equal(o.events, want) {
			t.Errorf("%q, want %q", o.events, want)
		}
		if n, err := testutil.GatherAndCount(registry, "quorate_invoke_requests_total"); err != nil || n != 1 {
			t.Errorf("%d series, %v", n, err)
		}
	})
}

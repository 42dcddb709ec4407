package workflows

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/testutil"
)

// gather returns, for a metric and the value of its second label, the values by application. If the metric has only
// one label, second is "".
func gather(t *testing.T, c prometheus.Collector, metric, second string) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	testutil.Must(t, reg.Register(c))
	families, err := reg.Gather()
	testutil.Must(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := m.GetLabel()
			if f.GetName() == metric && (second == "" || labels[1].GetValue() == second) {
				out[labels[0].GetValue()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
					float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}

// A server leads several Raft groups with more applications than may have series of their own. All others share one
// series. A counter with a series of its own keeps the series when other applications follow.
func TestCollector_ApplicationsAboveTheLimitShareASeries(t *testing.T) {
	one, two := NewKeeper(Options{}), NewKeeper(Options{})
	c := NewCollector([]*Keeper{one, two})
	add := func(k *Keeper, first, count int) {
		for n := first; n < first+count; n++ {
			app := fmt.Sprintf("t%03d", n)
			k.totals.of(app).created++
			k.totals.of(app).turnTimes.add(1)
			k.apps[app] = &application{name: app, ready: make([]readyTurn, 2), blocked: true}
		}
	}
	type want struct{ sum, shared float64 }
	check := func(created, turns, waiting, blocked want) {
		t.Helper()
		for metric, w := range map[[2]string]want{{"quorate_workflows_total", "created"}: created,
			{"quorate_workflow_turn_seconds", ""}: turns, {"quorate_workflow_waiting", "turn"}: waiting,
			{"quorate_workflow_without_worker", ""}: blocked} {
			got := gather(t, c, metric[0], metric[1])
			sum := 0.0
			for _, v := range got {
				sum += v
			}
			if len(got) != maxApps+1 || sum != w.sum || got[other] != w.shared {
				t.Errorf("%s has %d series; their sum is %v, want %v; the shared one is %v, want %v", metric, len(got),
					sum, w.sum, got[other], w.shared)
			}
		}
	}
	add(one, 100, maxApps+2)
	check(want{202, 2}, want{202, 2}, want{404, 4}, want{201, 1})
	add(two, 0, 102)
	check(want{304, 102}, want{304, 102}, want{608, 204}, want{201, 1})
}

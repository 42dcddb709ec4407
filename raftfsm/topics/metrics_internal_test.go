package topics

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/testutil"
)

// gather returns the series of a metric and their values. The key of a series has its labels in the order of their
// names, each followed by a space. Series with an outcome other than delivered are left out.
func gather(t *testing.T, c prometheus.Collector, metric string) map[string]float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	testutil.Must(t, reg.Register(c))
	families, err := reg.Gather()
	testutil.Must(t, err)
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key, left := "", f.GetName() != metric
			for _, l := range m.GetLabel() {
				key += l.GetValue() + " "
				left = left || l.GetName() == "outcome" && l.GetValue() != "delivered"
			}
			if !left {
				out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return out
}

// A server leads several Raft groups with more topics than may have series of their own. All others share one series.
// A counter with a series of its own keeps the series when other topics follow.
func TestCollector_LabelsAboveTheLimitShareASeries(t *testing.T) {
	one, two := NewKeeper(Options{}), NewKeeper(Options{})
	c := NewCollector([]*Keeper{one, two})
	add := func(k *Keeper, first, count int) {
		for n := first; n < first+count; n++ {
			now := &topic{Topic: Topic{Store: "ns/s", Name: fmt.Sprintf("t%03d", n)}, full: true}
			g := &consumer{t: now, group: "g", items: map[uint64]*item{1: {}}, tailed: 2}
			now.consumers = []*consumer{g}
			k.topics[now.Topic] = now
			k.countStored(now.Topic)
			k.total(g).Delivered++
		}
	}
	type want struct{ sum, shared float64 }
	check := func(all map[string]want) {
		t.Helper()
		for metric, w := range all {
			got := gather(t, c, metric)
			sum, shared := 0.0, got["other other "]
			for key, v := range got {
				sum += v
				if key == "other other delivered other " || key == "other other other " {
					shared = v
				}
			}
			if len(got) != maxLabels+1 || sum != w.sum || shared != w.shared {
				t.Errorf("%s has %d series; their sum is %v, want %v; the shared one is %v, want %v", metric, len(got),
					sum, w.sum, shared, w.shared)
			}
		}
	}
	add(one, 100, maxLabels+2)
	check(map[string]want{"quorate_topics_published_total": {202, 2}, "quorate_topics_messages_total": {202, 2},
		"quorate_topics_unsettled": {202, 2}, "quorate_topics_parked": {404, 4}, "quorate_topics_full": {201, 1}})
	add(two, 0, 102)
	check(map[string]want{"quorate_topics_published_total": {304, 102}, "quorate_topics_messages_total": {304, 102},
		"quorate_topics_unsettled": {304, 102}, "quorate_topics_parked": {608, 204}, "quorate_topics_full": {201, 1}})
}

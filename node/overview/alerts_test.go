package overview

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api/admin/schema"
)

// gathered returns the figures and the alerts that the console gets from the metrics of cs.
func gathered(t *testing.T, cs ...prometheus.Collector) (schema.Figures, []schema.NodeAlert) {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(cs...)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return figuresOf(families), alertsOf(families, time.Unix(1_000_000, 0))
}

func gauge(name string, v float64) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name})
	g.Set(v)
	return g
}

// vector returns a counter with a series for each key of values. labels and the keys are names and values of labels,
// separated by spaces.
func vector(name, labels string, values map[string]float64) *prometheus.CounterVec {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name}, strings.Fields(labels))
	for of, n := range values {
		v.WithLabelValues(strings.Fields(of)...).Add(n)
	}
	return v
}

func TestAlerts_FireOnlyIfTheirConditionHolds(t *testing.T) {
	const hour = 3600
	quiet := []prometheus.Collector{gauge("quorate_store_disk_low", 0), gauge("quorate_store_disk_free_bytes", 2e9),
		gauge("quorate_cluster_certificate_expiry_timestamp_seconds", 1_000_000+5*hour),
		gauge("quorate_catalogue_disagreement_seconds", 60),
		vector("quorate_peer_refused_total", "reason direction", map[string]float64{"tls inbound": 4}),
		vector("quorate_binding_operations_total", "binding outcome", map[string]float64{"mail ok": 4})}
	if _, got := gathered(t, quiet...); len(got) > 0 {
		t.Errorf("nothing is wrong, but these alerts fire: %+v", got)
	}
	doubt := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_raft_state_in_doubt"}, []string{"group"})
	doubt.WithLabelValues("0").Set(0)
	doubt.WithLabelValues("3").Set(1)
	_, got := gathered(t, doubt, gauge("quorate_store_disk_low", 1), gauge("quorate_store_disk_free_bytes", 1e6),
		gauge("quorate_cluster_certificate_expiry_timestamp_seconds", 1_000_000+3*hour),
		vector("quorate_peer_refused_total", "reason direction", map[string]float64{"plain inbound": 4,
			"plain outbound": 1, "authority inbound": 0}),
		vector("quorate_binding_operations_total", "binding outcome", map[string]float64{"mail failed": 2,
			"mail ok": 9}))
	type brief struct {
		Name, About string
		Count       float64
	}
	var all []brief
	for _, a := range got {
		if a.Text == "" || a.Grows != (a.Count > 0) {
			t.Errorf("%+v", a)
		}
		all = append(all, brief{a.Name, a.About, a.Count})
	}
	want := []brief{{"QuorateStateInDoubt", "group 3", 0}, {"QuorateDiskLow", "", 0}, {"QuorateDiskFilling", "", 0},
		{"QuorateCertificateEnds", "", 0}, {"QuorateBindingErrors", "binding mail", 2},
		{"QuorateStrangers", "reason plain", 5}}
	if diff := cmp.Diff(want, all); diff != "" {
		t.Error(diff)
	}
}

func TestFigures_CountFailedCallsOfStores(t *testing.T) {
	f, _ := gathered(t, vector("quorate_state_requests_total", "store operation outcome", map[string]float64{
		"orders get ok": 5, "orders get not_found": 2, "orders set timeout": 3, "orders set conflict": 1}),
		gauge("quorate_reload_last_timestamp_seconds", 77), gauge("quorate_scheduled_backup_failing", 1))
	if diff := cmp.Diff([]schema.NamedCount{{Name: "orders", Part: "get", Value: 7},
		{Name: "orders", Part: "set", Value: 4}}, f.Stores); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]schema.NamedCount{{Name: "orders", Value: 3}}, f.StoreErrors); diff != "" {
		t.Error(diff)
	}
	if f.ReloadedAt != 77 || !f.Backup.Failing {
		t.Errorf("%+v", f)
	}
}

package due

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics implements Observer. It has no series until the first tick.
type Metrics struct {
	ticks    *prometheus.CounterVec   // by kind and outcome
	late     *prometheus.HistogramVec // by kind
	underWay *prometheus.GaugeVec     // by kind
}

// NewMetrics registers the metrics of handed out work.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		ticks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_due_ticks_total",
			Help: "Ticks of jobs and reminders handed out by this server, by what has become of them."},
			[]string{"kind", "outcome"}),
		late: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "quorate_due_late_seconds",
			Help:    "Time between the moment a tick was due and the moment it was handed out.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600}},
			[]string{"kind"}),
		underWay: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_due_under_way",
			Help: "Ticks that this server has handed out and that are not acknowledged in the log yet."},
			[]string{"kind"}),
	}
	reg.MustRegister(m.ticks, m.late, m.underWay)
	return m
}

// collector reports the metrics of the due work that waits in the groups that this server leads. A kind without due
// work in these groups has no series.
type collector struct {
	keepers      []*Keeper
	ticks, delay *prometheus.Desc
}

// NewCollector returns a collector of the metrics of waiting due work. keepers are the Keepers of all groups of this
// server. Only the work of groups that this server leads is counted.
func NewCollector(keepers []*Keeper) prometheus.Collector {
	return &collector{keepers,
		prometheus.NewDesc("quorate_due_waiting", "Ticks that are due and not handed out, at the leader of their "+
			"group. At most 512 of an application are counted.", []string{"kind"}, nil),
		prometheus.NewDesc("quorate_due_waiting_seconds", "Time since the oldest of these ticks was due.",
			[]string{"kind"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.ticks
	out <- c.delay
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	for _, kind := range []byte{KindJob, KindReminder} {
		ticks, delay, used := 0, uint64(0), false
		for _, k := range c.keepers {
			w, now, ok := k.Waiting(kind)
			if used = used || ok; w.Ticks > 0 {
				ticks, delay = ticks+w.Ticks, max(delay, max(now, w.Oldest)-w.Oldest)
			}
		}
		if !used {
			continue
		}
		gauge := func(d *prometheus.Desc, v float64) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, KindName(kind))
		}
		gauge(c.ticks, float64(ticks))
		gauge(c.delay, (time.Duration(delay) * time.Millisecond).Seconds()) //nolint:gosec // a difference of times
	}
}

// Fired implements Observer.
func (m *Metrics) Fired(kind byte, late time.Duration) {
	m.late.WithLabelValues(KindName(kind)).Observe(late.Seconds())
}

// Ended implements Observer.
func (m *Metrics) Ended(kind byte, outcome string) {
	m.ticks.WithLabelValues(KindName(kind), outcome).Inc()
}

// UnderWay implements Observer.
func (m *Metrics) UnderWay(kind byte, change int) {
	m.underWay.WithLabelValues(KindName(kind)).Add(float64(change))
}

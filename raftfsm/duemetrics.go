package raftfsm

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/raftfsm/due"
)

// dueMetrics implements due.Observer. It has no series until the first tick.
type dueMetrics struct {
	ticks    *prometheus.CounterVec   // by kind and outcome
	late     *prometheus.HistogramVec // by kind
	underWay *prometheus.GaugeVec     // by kind
}

func newDueMetrics(reg prometheus.Registerer) *dueMetrics {
	m := &dueMetrics{
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

// dueCollector reads how much due work waits at the Keepers of this server. It has no series while there
// is no due work in the groups that this server leads.
type dueCollector struct {
	keepers      []*due.Keeper
	ticks, delay *prometheus.Desc
}

func newDueCollector(keepers []*due.Keeper) *dueCollector {
	return &dueCollector{keepers,
		prometheus.NewDesc("quorate_due_waiting", "Ticks that are due and not handed out, at the leader of their "+
			"group. At most 512 of an application are counted.", []string{"kind"}, nil),
		prometheus.NewDesc("quorate_due_waiting_seconds", "Time since the oldest of these ticks was due.",
			[]string{"kind"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *dueCollector) Describe(out chan<- *prometheus.Desc) {
	out <- c.ticks
	out <- c.delay
}

// Collect implements prometheus.Collector.
func (c *dueCollector) Collect(out chan<- prometheus.Metric) {
	for _, kind := range []byte{due.KindJob, due.KindReminder} {
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
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, due.KindName(kind))
		}
		gauge(c.ticks, float64(ticks))
		gauge(c.delay, (time.Duration(delay) * time.Millisecond).Seconds()) //nolint:gosec // a difference of times
	}
}

// Fired implements due.Observer.
func (m *dueMetrics) Fired(kind byte, late time.Duration) {
	m.late.WithLabelValues(due.KindName(kind)).Observe(late.Seconds())
}

// Ended implements due.Observer.
func (m *dueMetrics) Ended(kind byte, outcome string) {
	m.ticks.WithLabelValues(due.KindName(kind), outcome).Inc()
}

// UnderWay implements due.Observer.
func (m *dueMetrics) UnderWay(kind byte, change int) {
	m.underWay.WithLabelValues(due.KindName(kind)).Add(float64(change))
}

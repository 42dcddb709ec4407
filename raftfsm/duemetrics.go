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

// dueKind is the value of the label "kind".
func dueKind(kind byte) string {
	if kind == due.KindReminder {
		return "reminder"
	}
	return "job"
}

// Fired implements due.Observer.
func (m *dueMetrics) Fired(kind byte, late time.Duration) {
	m.late.WithLabelValues(dueKind(kind)).Observe(late.Seconds())
}

// Ended implements due.Observer.
func (m *dueMetrics) Ended(kind byte, outcome string) {
	m.ticks.WithLabelValues(dueKind(kind), outcome).Inc()
}

// UnderWay implements due.Observer.
func (m *dueMetrics) UnderWay(kind byte, change int) {
	m.underWay.WithLabelValues(dueKind(kind)).Add(float64(change))
}

package backups

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Values of the label "outcome".
const (
	outcomeOK     = "ok"
	outcomeFailed = "failed"
	outcomeLost   = "given_up" // the node stopped, or another node has the claim
)

// metrics are the metrics of the schedule.
type metrics struct {
	runs     *prometheus.CounterVec
	removals *prometheus.CounterVec
	last     prometheus.Gauge
	bytes    prometheus.Gauge
	failing  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, every time.Duration) *metrics {
	m := &metrics{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_scheduled_backup_runs_total",
			Help: "Scheduled backups of this node, by outcome."}, []string{"outcome"}),
		removals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_scheduled_backup_removals_total",
			Help: "Removals of old backups after a scheduled backup, by outcome."}, []string{"outcome"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "quorate_scheduled_backup_last_success_timestamp_seconds",
			Help: "Unix time of the cluster's last scheduled backup; 0 = none."}),
		bytes: prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_scheduled_backup_last_bytes",
			Help: "Size of that backup as it is stored."}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_scheduled_backup_failing",
			Help: "1 if the cluster's last attempt at a scheduled backup failed."}),
	}
	interval := prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_scheduled_backup_interval_seconds",
		Help: "Configured time between scheduled backups; 0 = none are configured."})
	interval.Set(every.Seconds())
	for _, outcome := range []string{outcomeOK, outcomeFailed, outcomeLost} {
		m.runs.WithLabelValues(outcome) // creates the series with value 0, which rate() needs
	}
	for _, outcome := range []string{outcomeOK, outcomeFailed} {
		m.removals.WithLabelValues(outcome)
	}
	reg.MustRegister(m.runs, m.removals, m.last, m.bytes, m.failing, interval)
	return m
}

// show sets the gauges from the record r, which all nodes share.
func (m *metrics) show(r record) {
	if r.Last != nil {
		m.last.Set(float64(r.Last.Time.Unix()))
		m.bytes.Set(float64(r.Last.Bytes))
	}
	m.failing.Set(0)
	if r.Failed != nil {
		m.failing.Set(1)
	}
}

func (m *metrics) removed(err error) {
	outcome := outcomeOK
	if err != nil {
		outcome = outcomeFailed
	}
	m.removals.WithLabelValues(outcome).Inc()
}

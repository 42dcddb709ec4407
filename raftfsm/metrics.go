package raftfsm

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/raftfsm/group"
)

// Metrics count what the store itself decides; groups and state machines are measured by
// group.Metrics and by a collector that reads them when asked.
type Metrics struct {
	retries     *prometheus.CounterVec // by cause
	staleReads  *prometheus.CounterVec // by reason
	lostEvents  prometheus.Counter
	sessionWait prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_store_retries_total",
			Help: "Writes and reads that were tried again inside their deadline, by cause."}, []string{"cause"}),
		staleReads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_store_stale_reads_total",
			Help: "Eventual reads answered without the session guarantees and marked stale, by reason."}, []string{"reason"}),
		lostEvents: prometheus.NewCounter(prometheus.CounterOpts{Name: "quorate_store_sessions_lost_total",
			Help: "Session tokens that name an eventual write which another leader replaced."}),
		sessionWait: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "quorate_store_session_wait_seconds",
			Help: "Time eventual reads waited for what their session had seen.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8)}),
	}
	reg.MustRegister(m.retries, m.staleReads, m.lostEvents, m.sessionWait)
	return m
}

// collector reads groups when Prometheus asks.
type collector struct{ host *Host }

type gauge struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*group.Status) float64
}

func newGauge(name, help string, get func(*group.Status) float64) gauge {
	return gauge{prometheus.NewDesc(name, help, []string{"group"}, nil), prometheus.GaugeValue, get}
}

// gauges are the values of one group, in documentation order.
func gauges() []gauge {
	return []gauge{
		newGauge("quorate_raft_term", "Current term.", func(s *group.Status) float64 { return float64(s.Term) }),
		newGauge("quorate_raft_is_leader", "1 if this node leads the group.", func(s *group.Status) float64 { return flag(s.State == "leader") }),
		newGauge("quorate_raft_has_leader", "1 if this node knows a leader of the group.", func(s *group.Status) float64 { return flag(s.Leader != "") }),
		newGauge("quorate_raft_commit_index", "Index of the newest committed log entry this node knows.", func(s *group.Status) float64 { return float64(s.CommitIndex) }),
		newGauge("quorate_raft_applied_index", "Index of the newest log entry the state machine has applied.", func(s *group.Status) float64 { return float64(s.AppliedIndex) }),
		newGauge("quorate_raft_last_index", "Index of the newest log entry on this node.", func(s *group.Status) float64 { return float64(s.LastIndex) }),
		newGauge("quorate_raft_snapshot_index", "Index of the newest snapshot.", func(s *group.Status) float64 { return float64(s.SnapshotIndex) }),
		newGauge("quorate_raft_log_bytes", "Log bytes since the newest snapshot.", func(s *group.Status) float64 { return float64(s.LogBytes) }),
		newGauge("quorate_raft_voters", "Voters in the group's configuration.", func(s *group.Status) float64 { return float64(s.Voters()) }),
		newGauge("quorate_store_keys", "Live keys in the partition.", func(s *group.Status) float64 { return float64(s.Machine.Keys) }),
		newGauge("quorate_store_disk_bytes", "Bytes of the partition's database on disk.", func(s *group.Status) float64 { return float64(s.Machine.DiskBytes) }),
		newGauge("quorate_store_memtable_bytes", "Bytes of the partition's memtables.", func(s *group.Status) float64 { return float64(s.Machine.MemTableBytes) }),
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var (
	spaceDesc    = prometheus.NewDesc("quorate_store_disk_free_bytes", "Free bytes of the data directory's disk.", nil, nil)
	readOnlyDesc = prometheus.NewDesc("quorate_store_read_only", "1 while values are refused because the disk is nearly full.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range gauges() {
		ch <- g.desc
	}
	ch <- spaceDesc
	ch <- readOnlyDesc
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	list := gauges()
	for i, g := range c.host.groups {
		s := g.Status()
		for _, v := range list {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.get(&s), strconv.Itoa(i))
		}
	}
	ch <- prometheus.MustNewConstMetric(spaceDesc, prometheus.GaugeValue, float64(c.host.space.left.Load()))
	ch <- prometheus.MustNewConstMetric(readOnlyDesc, prometheus.GaugeValue, flag(c.host.WritesAllowed() != nil))
}

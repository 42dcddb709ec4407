package raftfsm

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
	"github.com/quorate/quorate/raftfsm/due"
	"github.com/quorate/quorate/raftfsm/group"
)

// Metrics has the metrics of the store itself. The metrics of groups are in group.Metrics, and the metrics of state
// machines are in collector.
type Metrics struct {
	retries      *prometheus.CounterVec // by cause
	staleReads   *prometheus.CounterVec // by reason
	lostEvents   prometheus.Counter
	sessionWait  prometheus.Histogram
	reads        *prometheus.CounterVec          // by level and served
	readsOf      map[readKind]prometheus.Counter // the counters of reads, looked up once
	leaderless   prometheus.Counter              // eventual reads answered while no leader was known
	readAge      prometheus.Histogram
	forwards     *prometheus.CounterVec // by kind and outcome
	forwardBatch prometheus.Histogram
	backups      *prometheus.CounterVec // by outcome
	lastBackup   prometheus.Gauge       // Unix seconds
	backupBytes  prometheus.Gauge
	restores     *prometheus.CounterVec // by outcome
	due          *due.Metrics
}

// readKind has the values of the labels "level" and "served" of a read.
type readKind struct {
	level  state.Level
	served string
}

// Values of the label "served".
const (
	servedLocal   = "local"   // the replica on this node
	servedLeader  = "leader"  // another server, the leader
	servedReplica = "replica" // another server, which does not lead
)

// causeOrigin is the value of the label "cause" if a write is retried because the group no longer knows the origin of
// the request (see origin).
const causeOrigin = "origin"

func newMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_store_retries_total",
			Help: "Retries of writes and reads, by cause."}, []string{"cause"}),
		staleReads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_store_stale_reads_total",
			Help: "Eventual reads answered without the session guarantees and marked stale, by reason."},
			[]string{"reason"}),
		lostEvents: prometheus.NewCounter(prometheus.CounterOpts{Name: "quorate_store_sessions_lost_total",
			Help: "Session tokens with an eventual write that a new leader overwrote."}),
		sessionWait: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "quorate_store_session_wait_seconds",
			Help:    "Time eventual reads waited for what their session had seen.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8)}),
		reads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_store_reads_total",
			Help: "Answered reads of one group, by level and by the server that answered."},
			[]string{"level", "served"}),
		leaderless: prometheus.NewCounter(prometheus.CounterOpts{Name: "quorate_store_reads_without_leader_total",
			Help: "Eventual reads answered while this node knew no leader of the group."}),
		readAge: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "quorate_store_read_age_seconds",
			Help:    "Upper bound of the age of eventual reads, where it is known.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 9)}),
		forwards: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_store_forwards_total",
			Help: "Calls to other servers for requests of this node."}, []string{"kind", "outcome"}),
		forwardBatch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "quorate_store_forward_writes",
			Help: "Writes that share one call to the leader.", Buckets: prometheus.ExponentialBuckets(1, 2, 9)}),
	}
	m.backups = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_store_backups_total",
		Help: "Backups written by this node, by outcome."}, []string{"outcome"})
	m.lastBackup = prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_store_backup_last_success_timestamp_seconds",
		Help: "Unix time of the last complete backup written by this node; 0 = none since its start."})
	m.backupBytes = prometheus.NewGauge(prometheus.GaugeOpts{Name: "quorate_store_backup_last_bytes",
		Help: "Size of that backup."})
	m.restores = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_store_restores_total",
		Help: "Restores run by this node, by outcome."}, []string{"outcome"})
	for _, cause := range []string{causeOrigin, string(fault.NotLeader), string(fault.Indeterminate),
		string(fault.Unavailable)} {
		m.retries.WithLabelValues(cause) // creates the series with value 0, which rate() needs
	}
	for _, reason := range []string{staleForeign, staleLost, staleBehind, staleNoQuorum, staleRestored} {
		m.staleReads.WithLabelValues(reason)
	}
	m.readsOf = map[readKind]prometheus.Counter{}
	for _, level := range levels() {
		for _, served := range []string{servedLocal, servedLeader, servedReplica} {
			m.readsOf[readKind{level, served}] = m.reads.WithLabelValues(string(level), served)
		}
	}
	reg.MustRegister(m.retries, m.staleReads, m.lostEvents, m.sessionWait, m.reads, m.leaderless, m.readAge,
		m.forwards, m.forwardBatch, m.backups, m.lastBackup, m.backupBytes, m.restores)
	m.due = due.NewMetrics(reg)
	return m
}

func (m *Metrics) saved(t backup.Totals, err error) {
	m.backups.WithLabelValues(outcomeWord(err)).Inc()
	if err == nil {
		m.lastBackup.SetToCurrentTime()
		m.backupBytes.Set(float64(t.Bytes))
	}
}

func (m *Metrics) restored(err error) { m.restores.WithLabelValues(outcomeWord(err)).Inc() }

// outcomeWord returns the label for the outcome of a call.
func outcomeWord(err error) string {
	if err == nil {
		return "ok"
	}
	return string(fault.CodeOf(err))
}

// gave counts an answered read. led reports whether a leader of the group is known.
func (m *Metrics) gave(g *given, led bool) {
	if !led && g.level != state.Linearizable && g.level != state.Bounded {
		m.leaderless.Inc()
	}
	m.readsOf[readKind{g.level, g.served}].Inc()
	if g.reason != "" {
		m.staleReads.WithLabelValues(g.reason).Inc()
	}
	if g.level != state.Linearizable && g.age >= 0 {
		m.readAge.Observe(g.age.Seconds())
	}
}

// Forwarded implements peercalls.Observer.
func (m *Metrics) Forwarded(kind string, err error) {
	m.forwards.WithLabelValues(kind, outcomeWord(err)).Inc()
}

// collector is a Prometheus collector. On each scrape, it reads the status of all groups of a server and the state of
// the server's disk.
type collector struct{ server *server }

type gauge struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*group.Status) float64
}

func newGauge(name, help string, get func(*group.Status) float64) gauge {
	return gauge{prometheus.NewDesc(name, help, []string{"group"}, nil), prometheus.GaugeValue, get}
}

// gauges returns the gauges of one group, in the order in which the documentation lists them.
func gauges() []gauge {
	return []gauge{
		newGauge("quorate_raft_term", "Current term.", func(s *group.Status) float64 { return float64(s.Term) }),
		newGauge("quorate_raft_is_leader", "1 if this node leads the group.", func(s *group.Status) float64 {
			return flag(s.State == "leader")
		}),
		newGauge("quorate_raft_has_leader", "1 if this node knows a leader of the group.",
			func(s *group.Status) float64 {
				return flag(s.Leader != "")
			}),
		newGauge("quorate_raft_commit_index", "Index of the newest committed log entry this node knows.",
			func(s *group.Status) float64 {
				return float64(s.CommitIndex)
			}),
		newGauge("quorate_raft_applied_index", "Index of the newest log entry the state machine has applied.",
			func(s *group.Status) float64 {
				return float64(s.AppliedIndex)
			}),
		newGauge("quorate_raft_last_index", "Index of the newest log entry on this node.",
			func(s *group.Status) float64 {
				return float64(s.LastIndex)
			}),
		newGauge("quorate_raft_snapshot_index", "Index of the newest snapshot.", func(s *group.Status) float64 {
			return float64(s.SnapshotIndex)
		}),
		newGauge("quorate_raft_log_bytes", "Log bytes since the newest snapshot.", func(s *group.Status) float64 {
			return float64(s.LogBytes)
		}),
		newGauge("quorate_raft_voters", "Voters in the group's configuration.", func(s *group.Status) float64 {
			return float64(s.Voters())
		}),
		newGauge("quorate_raft_state_in_doubt", "1 while this node's replica serves nothing because its state "+
			"differs from a majority's, is damaged, or no majority agrees.", func(s *group.Status) float64 {
			return flag(s.Doubt != nil)
		}),
		newGauge("quorate_raft_state_damaged", "1 if the last verification found damaged records.",
			func(s *group.Status) float64 {
				return flag(s.Damaged)
			}),
		newGauge("quorate_store_keys", "Live keys in the partition.", func(s *group.Status) float64 {
			return float64(s.Machine.Keys)
		}),
		newGauge("quorate_store_disk_bytes", "Bytes of the partition's database on disk.",
			func(s *group.Status) float64 {
				return float64(s.Machine.DiskBytes)
			}),
		newGauge("quorate_store_memtable_bytes", "Bytes of the partition's memtables.", func(s *group.Status) float64 {
			return float64(s.Machine.MemTableBytes)
		}),
		newGauge("quorate_watch_history_bytes", "Bytes of the changes that the partition keeps for watchers.",
			func(s *group.Status) float64 {
				return float64(s.Machine.HistoryBytes)
			}),
		newGauge("quorate_watch_histories", "Prefixes whose changes the partition keeps for watchers.",
			func(s *group.Status) float64 {
				return float64(s.Machine.Histories)
			}),
	}
}

func flag(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

var (
	spaceDesc = prometheus.NewDesc("quorate_store_disk_free_bytes", "Free bytes of the data directory's disk.", nil,
		nil)
	readOnlyDesc = prometheus.NewDesc("quorate_store_read_only",
		"1 while values are refused because the disks of a majority of voters are nearly full.", nil, nil)
	lowDesc = prometheus.NewDesc("quorate_store_disk_low",
		"1 while the data directory's disk has less free space than --min-free-disk.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, g := range gauges() {
		ch <- g.desc
	}
	ch <- spaceDesc
	ch <- readOnlyDesc
	ch <- lowDesc
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	list := gauges()
	for i, g := range c.server.groups {
		s := g.Status()
		for _, v := range list {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.get(&s), strconv.Itoa(i))
		}
	}
	ch <- prometheus.MustNewConstMetric(spaceDesc, prometheus.GaugeValue, float64(c.server.space.Free()))
	ch <- prometheus.MustNewConstMetric(readOnlyDesc, prometheus.GaugeValue, flag(c.server.anyReadOnly()))
	ch <- prometheus.MustNewConstMetric(lowDesc, prometheus.GaugeValue, flag(c.server.space.Low() != nil))
}

// ForwardedBatch implements peercalls.Observer.
func (m *Metrics) ForwardedBatch(writes int) { m.forwardBatch.Observe(float64(writes)) }

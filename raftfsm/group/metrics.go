package group

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// Metrics holds the metrics of all groups of a process, labelled by group id.
type Metrics struct {
	fsync         *prometheus.HistogramVec
	fsyncEntries  *prometheus.HistogramVec
	fsyncBytes    *prometheus.CounterVec
	batchRequests *prometheus.HistogramVec
	batchBytes    *prometheus.HistogramVec
	refused       *prometheus.CounterVec
	applySeconds  *prometheus.HistogramVec
	snapshots     *prometheus.HistogramVec
	installed     *prometheus.CounterVec
	readRounds    *prometheus.CounterVec
	readBatch     *prometheus.HistogramVec
	leaderChanges *prometheus.CounterVec
	expired       *prometheus.CounterVec
	elections     *prometheus.CounterVec
	leaders       *prometheus.CounterVec
	eventualLost  *prometheus.CounterVec
	doubts        *prometheus.CounterVec
	compared      *prometheus.CounterVec
	verified      *prometheus.CounterVec
	reinstalls    *prometheus.CounterVec
	handOvers     *prometheus.CounterVec
	diskSlow      *prometheus.GaugeVec
}

// NewMetrics creates the metrics and registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	group := []string{"group"}
	hist := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name,
			Help: help, Buckets: buckets}, append(group, labels...))
		reg.MustRegister(h)
		return h
	}
	count := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name,
			Help: help}, append(group, labels...))
		reg.MustRegister(c)
		return c
	}
	slow := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "quorate_raft_disk_slow",
		Help: "1 while the median time of this node's log writes is above the bound."}, group)
	reg.MustRegister(slow)
	seconds := prometheus.ExponentialBuckets(0.0001, 2, 17) // 0.1 ms to 6.5 s
	counts := prometheus.ExponentialBuckets(1, 2, 13)
	return &Metrics{
		fsync: hist("quorate_raft_log_append_seconds",
			"Time to make appended log entries durable on this node.", seconds),
		fsyncEntries: hist("quorate_raft_log_append_entries",
			"Log entries made durable together.", prometheus.ExponentialBuckets(1, 2, 8)),
		fsyncBytes: count("quorate_raft_log_append_bytes_total",
			"Bytes appended to the log."),
		batchRequests: hist("quorate_raft_batch_requests",
			"Requests that share one log entry.", counts),
		batchBytes: hist("quorate_raft_batch_bytes",
			"Size of one log entry.", prometheus.ExponentialBuckets(64, 4, 10)),
		refused: count("quorate_raft_proposals_refused_total",
			"Writes refused because too many were waiting."),
		applySeconds: hist("quorate_raft_apply_seconds",
			"Time to apply a run of committed entries to the state machine.", seconds),
		snapshots: hist("quorate_raft_snapshot_seconds",
			"Time to take a snapshot.", seconds),
		installed: count("quorate_raft_snapshots_installed_total",
			"Snapshots received from another server or restored."),
		readRounds: count("quorate_raft_read_rounds_total",
			"Rounds that confirmed leadership for linearizable reads.", "outcome"),
		readBatch: hist("quorate_raft_read_round_reads",
			"Linearizable reads that shared one round.", counts),
		leaderChanges: count("quorate_raft_leadership_changes_total",
			"Times this node gained or lost leadership of the group.", "change"),
		expired: count("quorate_raft_expired_total",
			"Expired keys and expired results of writes that were removed."),
		elections: count("quorate_raft_elections_total",
			"Times this node stood for election."),
		leaders: count("quorate_raft_leaders_seen_total",
			"Times this node learned of a leader, itself included."),
		eventualLost: count("quorate_raft_eventual_writes_lost_total",
			"Eventual writes that this node acknowledged as leader and a new leader overwrote."),
		doubts: count("quorate_raft_state_doubts_total",
			"Times this node's replica stopped serving because its state differs from a majority's, "+
				"is damaged, or no majority agrees.", "cause"),
		compared: count("quorate_raft_state_comparisons_total",
			"Comparisons of this replica's state with those of the other servers.", "outcome"),
		verified: count("quorate_raft_state_verifications_total",
			"Checks of all stored records against what was applied.", "outcome"),
		reinstalls: count("quorate_raft_state_reinstalls_total",
			"Attempts of this replica to replace its state by that of another server.", "outcome"),
		handOvers: count("quorate_raft_disk_handovers_total",
			"Times this leader tried to transfer leadership because its disk was slow.", "outcome"),
		diskSlow: slow,
	}
}

// groupMetrics holds the metrics of one group with their labels resolved.
type groupMetrics struct {
	fsync         prometheus.Observer
	fsyncEntries  prometheus.Observer
	fsyncBytes    prometheus.Counter
	batchRequests prometheus.Observer
	batchBytes    prometheus.Observer
	refused       prometheus.Counter
	applySeconds  prometheus.Observer
	snapshots     prometheus.Observer
	installed     prometheus.Counter
	roundsOK      prometheus.Counter
	roundsFailed  prometheus.Counter
	readBatch     prometheus.Observer
	gained, lost  prometheus.Counter
	expired       prometheus.Counter
	elections     prometheus.Counter
	leaders       prometheus.Counter
	eventualLost  prometheus.Counter

	doubts   func(snapshot.Cause) prometheus.Counter
	verified func(outcome string) prometheus.Counter

	comparedSame, comparedNot               prometheus.Counter
	reinstalled, reinstallFailed            prometheus.Counter
	handOvers, handOverFailed, handOverNone prometheus.Counter
	diskSlow                                prometheus.Gauge
}

func (m *Metrics) group(id uint32) *groupMetrics {
	g := strconv.FormatUint(uint64(id), 10)
	return &groupMetrics{
		fsync: m.fsync.WithLabelValues(g), fsyncEntries: m.fsyncEntries.WithLabelValues(g),
		fsyncBytes:    m.fsyncBytes.WithLabelValues(g),
		batchRequests: m.batchRequests.WithLabelValues(g), batchBytes: m.batchBytes.WithLabelValues(g),
		refused:      m.refused.WithLabelValues(g),
		applySeconds: m.applySeconds.WithLabelValues(g), snapshots: m.snapshots.WithLabelValues(g),
		installed: m.installed.WithLabelValues(g),
		roundsOK:  m.readRounds.WithLabelValues(g, "ok"), roundsFailed: m.readRounds.WithLabelValues(g, "failed"),
		readBatch: m.readBatch.WithLabelValues(g),
		gained:    m.leaderChanges.WithLabelValues(g, "gained"), lost: m.leaderChanges.WithLabelValues(g, "lost"),
		expired:   m.expired.WithLabelValues(g),
		elections: m.elections.WithLabelValues(g), leaders: m.leaders.WithLabelValues(g),
		eventualLost: m.eventualLost.WithLabelValues(g),
		doubts:       func(c snapshot.Cause) prometheus.Counter { return m.doubts.WithLabelValues(g, string(c)) },
		verified:     func(outcome string) prometheus.Counter { return m.verified.WithLabelValues(g, outcome) },
		comparedSame: m.compared.WithLabelValues(g, "same"), comparedNot: m.compared.WithLabelValues(g, "undecided"),
		reinstalled: m.reinstalls.WithLabelValues(g, "ok"), reinstallFailed: m.reinstalls.WithLabelValues(g, "failed"),
		handOvers: m.handOvers.WithLabelValues(g, "ok"), handOverFailed: m.handOvers.WithLabelValues(g, "failed"),
		handOverNone: m.handOvers.WithLabelValues(g, "no_better_voter"),
		diskSlow:     m.diskSlow.WithLabelValues(g),
	}
}

func (g *groupMetrics) appended(d time.Duration, entries, bytes int) {
	g.fsync.Observe(d.Seconds())
	g.fsyncEntries.Observe(float64(entries))
	g.fsyncBytes.Add(float64(bytes))
}

func (g *groupMetrics) entry(requests, bytes int) {
	g.batchRequests.Observe(float64(requests))
	g.batchBytes.Observe(float64(bytes))
}

func (g *groupMetrics) readRound(reads int, err error) {
	g.readBatch.Observe(float64(reads))
	if err == nil {
		g.roundsOK.Inc()
		return
	}
	if !fault.Is(err, fault.NotLeader) {
		g.roundsFailed.Inc()
	}
}

package overview

import (
	"math"
	"slices"
	"sort"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/quorate/quorate/api/admin/schema"
)

// rule describes an alert of deploy/prometheus/alerts.yml that depends on one metric of a single node. The node
// evaluates such an alert itself. The console evaluates the other alerts, which need a rate or the metrics of all
// nodes.
type rule struct {
	alert, metric, text string
	label               string   // label that names the subject of the alert, such as group
	only                string   // label that selects samples by its values; empty = all samples
	values              []string // values of that label that select a sample; nil = all except ok
	fails               bool     // something does not work; false = something may stop working
	// holds reports whether the gauge value v fires the alert; nil = the metric is a counter, and the alert fires
	// while the counter grows
	holds func(v float64, now time.Time) bool
}

func rules() []rule {
	is := func(want float64) func(float64, time.Time) bool {
		return func(v float64, _ time.Time) bool { return v == want }
	}
	return []rule{
		{alert: "QuorateNodeWithoutLeader", metric: "quorate_raft_has_leader", label: "group", holds: is(0),
			text: "the node knows no leader: writes and strong reads fail there"},
		{alert: "QuorateStateInDoubt", metric: "quorate_raft_state_in_doubt", label: "group", holds: is(1), fails: true,
			text: "the state of this replica differs from the others"},
		{alert: "QuorateStateInDoubt", metric: "quorate_raft_state_damaged", label: "group", holds: is(1), fails: true,
			text: "the records of this replica are damaged"},
		{alert: "QuorateReadOnly", metric: "quorate_store_read_only", holds: is(1), fails: true,
			text: "saves are refused: the disks of a majority of the voters are nearly full"},
		{alert: "QuorateDiskLow", metric: "quorate_store_disk_low", holds: is(1), text: "the disk is nearly full"},
		{alert: "QuorateDiskFilling", metric: "quorate_store_disk_free_bytes",
			holds: func(v float64, _ time.Time) bool { return v < 1e9 }, text: "less than 1 GB is free"},
		{alert: "QuorateFollowerLags", metric: "quorate_raft_follower_lag_entries", label: "node",
			holds: func(v float64, _ time.Time) bool { return v > 10_000 },
			text:  "the server is more than 10,000 log entries behind this leader"},
		{alert: "QuorateStoreUnreachable", metric: "quorate_state_store_up", label: "store", holds: is(0), fails: true,
			text: "the server of the store does not answer"},
		{alert: "QuorateCatalogueDisagrees", metric: "quorate_catalogue_disagreement_seconds",
			holds: func(v float64, _ time.Time) bool { return v > 60 },
			text:  "records of applications do not reach this node"},
		{alert: "QuorateCertificateEnds", metric: "quorate_cluster_certificate_expiry_timestamp_seconds", fails: true,
			holds: func(v float64, now time.Time) bool {
				return v > 0 && v-float64(now.Unix()) < (4*time.Hour).Seconds()
			}, text: "the certificate ends in less than four hours and is not renewed"},
		{alert: "QuorateOverloaded", metric: "quorate_request_memory_refused_total",
			text: "requests are refused because there is no memory for them"},
		{alert: "QuorateEventualWritesLost", metric: "quorate_raft_eventual_writes_lost_total", label: "group",
			text: "eventual writes were lost"},
		{alert: "QuorateStaleReads", metric: "quorate_store_reads_without_leader_total",
			text: "eventual reads are answered without a leader"},
		{alert: "QuorateStaleReads", metric: "quorate_store_stale_reads_total", only: "reason",
			values: []string{"no_quorum"}, text: "eventual reads are answered without a quorum"},
		{alert: "QuorateBindingErrors", metric: "quorate_binding_operations_total", label: "binding", only: "outcome",
			values: notOK(), text: "operations fail"},
		{alert: "QuorateBindingErrors", metric: "quorate_binding_events_total", label: "binding", only: "outcome",
			values: notOK(), text: "events are not taken"},
		{alert: "QuorateStrangers", metric: "quorate_peer_refused_total", label: "reason", only: "reason",
			values: []string{"authority", "expired", "certificate", "plain"}, text: "connections are refused"},
		{alert: "QuorateCredentialsRefused", metric: "quorate_cluster_credential_changes_total", only: "outcome",
			values: []string{"refused"}, text: "changed credentials cannot be used"},
		{alert: "QuorateConfigurationNotTaken", metric: "quorate_configuration_events_total", label: "store",
			only: "outcome", values: []string{"failed"}, text: "an application does not take changes"},
		{alert: "QuorateActorsWithoutHost", metric: "quorate_actor_requests_total", only: "outcome",
			values: []string{"no_host"}, text: "no node hosts the type of a called actor"},
		{alert: "QuorateActorSessionsLost", metric: "quorate_actor_sessions_total", label: "app", only: "change",
			values: []string{"lost"}, text: "the application loses its actors"},
		{alert: "QuorateTicksDropped", metric: "quorate_due_ticks_total", label: "kind", only: "outcome",
			values: []string{"failed"}, text: "ticks are dropped by the failure policy"},
		{alert: "QuorateTicksWait", metric: "quorate_due_waiting_seconds", label: "kind",
			holds: func(v float64, _ time.Time) bool { return v > 60 }, text: "ticks wait for an application"},
		{alert: "QuorateWorkflowsWithoutWorker", metric: "quorate_workflow_without_worker", label: "app_id",
			holds: is(1), text: "workflows wait, and no worker is connected"},
		{alert: "QuorateWorkflowsWait", metric: "quorate_workflow_waiting_seconds", label: "app_id",
			holds: func(v float64, _ time.Time) bool { return v > 60 },
			text:  "workflows wait for a worker for more than a minute"},
		{alert: "QuorateWorkflowsStalled", metric: "quorate_workflow_stalled", label: "app_id",
			holds: func(v float64, _ time.Time) bool { return v > 0 }, text: "workflows are stalled"},
		{alert: "QuorateTopicLagGrows", metric: "quorate_topics_oldest_unacknowledged_seconds", label: "topic",
			holds: func(v float64, _ time.Time) bool { return v > 300 },
			text:  "a message has waited for a consumer group for more than five minutes"},
		{alert: "QuorateDeadLetters", metric: "quorate_topics_messages_total", label: "topic", only: "outcome",
			values: []string{"dead_lettered"}, text: "messages become dead letters"},
		{alert: "QuorateTopicFull", metric: "quorate_topics_full", label: "topic", holds: is(1), fails: true,
			text: "publishing is refused: a consumer group has not acknowledged its messages"},
		{alert: "QuorateClockOff", metric: "quorate_raft_clock_offset_seconds", label: "node",
			holds: func(v float64, _ time.Time) bool { return math.Abs(v) > 1 },
			text:  "the clock of the server differs from cluster time"},
	}
}

// notOK returns the value of rule.values that selects the samples whose label has any value other than "ok".
func notOK() []string { return nil }

// counts reports whether the rule applies to the sample s. This depends only on the label r.only of s.
func (r *rule) counts(s sample) bool {
	switch {
	case r.only == "":
		return true
	case r.values == nil:
		return s.label(r.only) != "ok"
	}
	return slices.Contains(r.values, s.label(r.only))
}

// alertsOf returns the alerts of all rules. A rule about a gauge gives an alert while rule.holds accepts the value. A
// rule about a counter gives an alert if the counter is above 0.
func alertsOf(families []*dto.MetricFamily, now time.Time) (out []schema.NodeAlert) {
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	for _, r := range rules() {
		count := map[string]float64{}
		for _, m := range byName[r.metric].GetMetric() {
			s := sample{m}
			if !r.counts(s) {
				continue
			}
			about := ""
			if r.label != "" {
				about = r.label + " " + s.label(r.label)
			}
			if r.holds == nil {
				count[about] += s.value()
			} else if r.holds(s.value(), now) {
				count[about] = 1
			}
		}
		abouts := make([]string, 0, len(count))
		for about, n := range count {
			if n > 0 {
				abouts = append(abouts, about)
			}
		}
		sort.Strings(abouts)
		for _, about := range abouts {
			one := schema.NodeAlert{Name: r.alert, About: about, Text: r.text, Fails: r.fails}
			if r.holds == nil {
				one.Grows, one.Count = true, count[about]
			}
			out = append(out, one)
		}
	}
	return out
}

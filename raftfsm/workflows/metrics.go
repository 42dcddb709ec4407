package workflows

import (
	"cmp"
	"sync"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/raftfsm/records"
)

// maxApps limits how many applications have metrics of their own. All other applications share one series, with the
// label value "other".
const maxApps = 200

// other is the label value of the series that all other applications share.
const other = "other"

// total has the counters of an application at a leader.
type total struct {
	created, completed, failed, terminated, stalled      uint64
	turnsHanded, turns, refused, tasks, results, retried uint64
	failures, retries                                    uint64 // results that are failures; timers before retries
	turnTimes, activityTimes                             durations
}

// bounds are the upper bounds of the buckets in histograms of durations, in seconds.
var bounds = [...]float64{0.005, 0.025, 0.1, 0.5, 2.5, 10, 60, 600}

// durations is a histogram.
type durations struct {
	counts [len(bounds)]uint64 // durations in each bucket, not cumulative
	n      uint64
	sum    float64 // seconds
}

// add counts a duration in milliseconds.
func (d *durations) add(ms uint64) {
	s := float64(ms) / 1000
	d.n++
	d.sum += s
	for i, b := range bounds {
		if s <= b {
			d.counts[i]++
			return
		}
	}
}

// merge adds another histogram.
func (d *durations) merge(o *durations) {
	for i := range o.counts {
		d.counts[i] += o.counts[i]
	}
	d.n, d.sum = d.n+o.n, d.sum+o.sum
}

func (d *durations) metric(desc *prometheus.Desc, app string) prometheus.Metric {
	buckets, up := make(map[float64]uint64, len(bounds)), uint64(0)
	for i, b := range bounds {
		up += d.counts[i]
		buckets[b] = up
	}
	return prometheus.MustNewConstHistogram(desc, d.n, d.sum, buckets, app)
}

type totals struct{ apps map[string]*total }

// of returns the counters of an application. The caller holds k.mu.
func (t *totals) of(app string) *total {
	if t.apps == nil {
		t.apps = map[string]*total{}
	}
	one := t.apps[app]
	if one == nil && len(t.apps) >= maxApps {
		app = other
		one = t.apps[app]
	}
	if one == nil {
		one = &total{}
		t.apps[app] = one
	}
	return one
}

func (t *totals) handedTask(app string, again bool) {
	one := t.of(app)
	one.tasks++
	if again {
		one.retried++
	}
}

// result counts a result of an activity.
func (t *totals) result(app string, failed bool) {
	one := t.of(app)
	if failed {
		one.failures++
	} else {
		one.results++
	}
}

// stall records for the metrics whether an instance is stalled. The caller holds k.mu.
func (k *Keeper) stall(i *instance) {
	a := k.application(i.App)
	switch {
	case !i.exists() || i.head.status != statusStalled:
		delete(a.stalled, hash(i.ID))
	case len(a.stalled) < maxQueue:
		if a.stalled == nil {
			a.stalled = map[uint64]struct{}{}
		}
		a.stalled[hash(i.ID)] = struct{}{}
	}
}

// count updates the counters for an entry that is in the log. was is the status of the instance before the entry. fresh
// is true if the entry has created, replaced or removed the instance. o is the outcome of the turn in the entry, or
// nil. The caller holds k.mu.
func (k *Keeper) count(i *instance, was int32, fresh bool, o *turn.Outcome) {
	t := k.totals.of(i.App)
	if fresh && i.exists() {
		t.created++
	}
	if o != nil {
		t.turns++
		for _, e := range o.Append {
			if e.GetTimerCreated().GetActivityRetry() != nil {
				t.retries++
			}
		}
	}
	k.stall(i)
	if i.head.status == was || !i.exists() {
		return
	}
	switch protos.OrchestrationStatus(i.head.status) {
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED:
		t.completed++
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_FAILED:
		t.failed++
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_TERMINATED,
		protos.OrchestrationStatus_ORCHESTRATION_STATUS_CANCELED:
		t.terminated++
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED:
		t.stalled++
	}
}

// collector reads the state of Keepers.
type collector struct {
	keepers                                             []*Keeper
	instances, turns, activities, waiting, out, backlog *prometheus.Desc
	oldest, stalled, turnTimes, activityTimes           *prometheus.Desc

	mu       sync.Mutex
	counters *records.Series[string]
}

// NewCollector returns a Prometheus collector for the metrics of workflows. keepers are the Keepers of all groups on
// this server. Gauges cover only the groups that this server leads. Counters cover the events that this server has
// counted while it led.
func NewCollector(keepers []*Keeper) prometheus.Collector {
	app := []string{"app_id"}
	return &collector{keepers: keepers, counters: series(),
		instances: prometheus.NewDesc("quorate_workflows_total", "Instances of workflows that were created, or "+
			"have reached a status, counted by the leader.", append(app, "status"), nil),
		turns: prometheus.NewDesc("quorate_workflow_turns_total", "Turns of workflows by what has become of them, "+
			"counted by the leader.", append(app, "outcome"), nil),
		activities: prometheus.NewDesc("quorate_workflow_activities_total", "Activities of workflows by what has "+
			"become of them, counted by the leader.", append(app, "outcome"), nil),
		waiting: prometheus.NewDesc("quorate_workflow_waiting", "Turns and activities that are ready and for "+
			"which no worker has room.", append(app, "kind"), nil),
		out: prometheus.NewDesc("quorate_workflow_running", "Turns and activities that workers have.", append(app,
			"kind"), nil),
		backlog: prometheus.NewDesc("quorate_workflow_without_worker", "1 if an application has instances that "+
			"wait and no worker is connected.", app, nil),
		oldest: prometheus.NewDesc("quorate_workflow_waiting_seconds", "For how long the oldest turn or activity "+
			"that is ready has waited for a worker.", app, nil),
		stalled: prometheus.NewDesc("quorate_workflow_stalled", "Instances that no worker could run, because it "+
			"lacks a patch or a version, or the history is too long.", app, nil),
		turnTimes: prometheus.NewDesc("quorate_workflow_turn_seconds", "Time from handing a turn to a worker to "+
			"its answer.", app, nil),
		activityTimes: prometheus.NewDesc("quorate_workflow_activity_seconds", "Time from handing an activity to "+
			"a worker to the stored result.", app, nil)}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.instances, c.turns, c.activities, c.waiting, c.out, c.backlog, c.oldest,
		c.stalled, c.turnTimes, c.activityTimes} {
		out <- d
	}
}

// gauge has the present values of an application at a leader.
type gauge struct {
	ready, tasks, turns, activities, blocked, stalled int

	waited uint64 // how long the oldest turn or activity has waited, in milliseconds
}

// Collect implements prometheus.Collector. It adds up the values of all Raft groups.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	sums, gauges := map[string]*total{}, map[string]gauge{}
	for _, k := range c.keepers {
		k.read(sums, gauges)
	}
	c.mu.Lock()
	counted := records.Fold(c.counters, sums, addTotals)
	c.mu.Unlock()
	for _, app := range counted {
		t := sums[app]
		for _, one := range []struct {
			d     *prometheus.Desc
			label string
			n     uint64
		}{{c.instances, "created", t.created}, {c.instances, "completed", t.completed},
			{c.instances, "failed", t.failed}, {c.instances, "terminated", t.terminated},
			{c.instances, "stalled", t.stalled},
			{c.turns, "handed_out", t.turnsHanded}, {c.turns, "stored", t.turns}, {c.turns, "refused", t.refused},
			{c.activities, "handed_out", t.tasks}, {c.activities, "completed", t.results},
			{c.activities, "failed", t.failures}, {c.activities, "retried", t.retries},
			{c.activities, "handed_out_again", t.retried}} {
			out <- prometheus.MustNewConstMetric(one.d, prometheus.CounterValue, float64(one.n), app, one.label)
		}
		out <- t.turnTimes.metric(c.turnTimes, app)
		out <- t.activityTimes.metric(c.activityTimes, app)
	}
	for _, app := range records.Fold(series(), gauges, gauge.plus) {
		g := gauges[app]
		for _, one := range []struct {
			d     *prometheus.Desc
			label string
			n     int
		}{{c.waiting, "turn", g.ready}, {c.waiting, "activity", g.tasks}, {c.out, "turn", g.turns},
			{c.out, "activity", g.activities}} {
			out <- prometheus.MustNewConstMetric(one.d, prometheus.GaugeValue, float64(one.n), app, one.label)
		}
		out <- prometheus.MustNewConstMetric(c.backlog, prometheus.GaugeValue, float64(min(g.blocked, 1)), app)
		out <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, float64(g.waited)/1000, app)
		out <- prometheus.MustNewConstMetric(c.stalled, prometheus.GaugeValue, float64(g.stalled), app)
	}
}

func series() *records.Series[string] {
	return &records.Series[string]{Max: maxApps, Other: other, Compare: cmp.Compare[string]}
}

// addTotals adds t to sum, or to new counters if sum is nil.
func addTotals(sum, t *total) *total {
	if sum == nil {
		sum = &total{}
	}
	for _, p := range [...]struct {
		to   *uint64
		from uint64
	}{{&sum.created, t.created}, {&sum.completed, t.completed}, {&sum.failed, t.failed},
		{&sum.terminated, t.terminated}, {&sum.stalled, t.stalled}, {&sum.turnsHanded, t.turnsHanded},
		{&sum.turns, t.turns}, {&sum.refused, t.refused}, {&sum.tasks, t.tasks}, {&sum.results, t.results},
		{&sum.retried, t.retried}, {&sum.failures, t.failures}, {&sum.retries, t.retries}} {
		*p.to += p.from
	}
	sum.turnTimes.merge(&t.turnTimes)
	sum.activityTimes.merge(&t.activityTimes)
	return sum
}

func (g gauge) plus(o gauge) gauge {
	return gauge{g.ready + o.ready, g.tasks + o.tasks, g.turns + o.turns, g.activities + o.activities,
		g.blocked + o.blocked, g.stalled + o.stalled, max(g.waited, o.waited)}
}

func (k *Keeper) read(sums map[string]*total, gauges map[string]gauge) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for app, t := range k.totals.apps {
		sums[app] = addTotals(sums[app], t)
	}
	for app, a := range k.apps {
		g := gauges[app]
		g.ready += len(a.ready)
		g.tasks += len(a.tasks)
		for _, s := range a.streams {
			g.turns += s.turns
			g.activities += s.activities
		}
		if len(a.streams) == 0 && a.blocked {
			g.blocked++
		}
		g.stalled += len(a.stalled)
		if since := k.oldest(a); since != 0 {
			now := k.group.Now()
			g.waited = max(g.waited, now-min(since, now))
		}
		gauges[app] = g
	}
}

package topics

import (
	"cmp"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/raftfsm/records"
)

// maxLabels limits how many topics and groups have metrics of their own. All other topics and groups share one
// series, with the label value "other".
const maxLabels = 200

// other is the label value of the series that all other topics and groups share.
const other = "other"

// label identifies the series of a topic or of a consumer group.
type label struct{ store, topic, group string }

// Labels of the shared series.
var (
	otherTopics = label{store: other, topic: other}
	otherGroups = label{other, other, other}
)

// Totals counts the events of a consumer group at one leader. Redelivered messages also count as Delivered.
type Totals struct {
	Delivered, Redelivered, Acknowledged, Failed, DeadLettered uint64
}

func (t Totals) plus(o Totals) Totals {
	return Totals{t.Delivered + o.Delivered, t.Redelivered + o.Redelivered, t.Acknowledged + o.Acknowledged,
		t.Failed + o.Failed, t.DeadLettered + o.DeadLettered}
}

// total returns the counters of a consumer group. At most maxLabels groups have counters of their own. All other groups
// share one set of counters. The caller holds k.mu.
func (k *Keeper) total(c *consumer) *Totals {
	l := label{c.t.Store, c.t.Name, c.group}
	t := k.totals[l]
	if t != nil {
		return t
	}
	if len(k.totals) >= maxLabels {
		l = otherGroups
		if t = k.totals[l]; t != nil {
			return t
		}
	}
	t = &Totals{}
	k.totals[l] = t
	return t
}

// countStored counts a message that was stored in a topic. The caller holds k.mu.
func (k *Keeper) countStored(t Topic) {
	l := label{store: t.Store, topic: t.Name}
	if _, known := k.stored[l]; !known && len(k.stored) >= maxLabels {
		l = otherTopics
	}
	k.stored[l]++
}

// count adds a settlement that is in the log to the totals of a consumer. The caller holds k.mu.
func (k *Keeper) count(c *consumer, s *settlement) {
	switch t := k.total(c); {
	case s.kind == settleDone:
		t.Acknowledged++
	case s.kind == settleDead:
		t.DeadLettered++
	case s.parked.attempts > 0:
		t.Failed++
	}
}

// collector reads the state of Keepers.
type collector struct {
	keepers                               []*Keeper
	messages, unsettled, waiting, refuses *prometheus.Desc
	stored, lag, oldest                   *prometheus.Desc

	mu     sync.Mutex
	topics *records.Series[label] // of the counters of topics
	groups *records.Series[label] // of the counters of consumer groups
}

// NewCollector returns a Prometheus collector for the metrics of topics. keepers are the Keepers of all Raft groups on
// this server. Gauges cover only the groups that this server leads. Counters cover the events that this server has
// counted while it led.
func NewCollector(keepers []*Keeper) prometheus.Collector {
	group := []string{"component", "topic", "consumer_group"}
	return &collector{keepers: keepers, topics: seriesOf(otherTopics), groups: seriesOf(otherGroups),
		messages: prometheus.NewDesc("quorate_topics_messages_total", "Messages of topics by what a consumer "+
			"group has done with them, counted by the leader.", append(group, "outcome"), nil),
		unsettled: prometheus.NewDesc("quorate_topics_unsettled", "Messages that a consumer group has read and "+
			"not settled.", group, nil),
		waiting: prometheus.NewDesc("quorate_topics_parked", "Messages that a consumer group gets later, because "+
			"an attempt has failed or they are delayed.", group, nil),
		refuses: prometheus.NewDesc("quorate_topics_full", "1 if a topic refuses messages, because its groups "+
			"have not acknowledged those that it has.", []string{"component", "topic"}, nil),
		stored: prometheus.NewDesc("quorate_topics_published_total", "Messages that were stored in a topic, dead "+
			"letters included, counted by the leader.", []string{"component", "topic"}, nil),
		lag: prometheus.NewDesc("quorate_topics_lag", "Messages that a consumer group has not acknowledged.", group,
			nil),
		oldest: prometheus.NewDesc("quorate_topics_oldest_unacknowledged_seconds", "For how long the oldest "+
			"message has waited that a consumer group has not acknowledged and that could be delivered; 0 = there "+
			"is none.", group, nil)}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.messages, c.unsettled, c.waiting, c.refuses, c.stored, c.lag,
		c.oldest} {
		out <- d
	}
}

// Collect implements prometheus.Collector. It adds up the values of all Raft groups.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	totals, unsettled, waiting := map[label]Totals{}, map[label]int{}, map[label]int{}
	full, stored := map[label]bool{}, map[label]uint64{}
	for _, k := range c.keepers {
		k.read(totals, unsettled, waiting, full, stored)
	}
	c.collectLag(out)
	c.mu.Lock()
	topics, groups := records.Fold(c.topics, stored, sum), records.Fold(c.groups, totals, Totals.plus)
	c.mu.Unlock()
	for _, l := range topics {
		out <- prometheus.MustNewConstMetric(c.stored, prometheus.CounterValue, float64(stored[l]), l.store, l.topic)
	}
	for _, l := range groups {
		t := totals[l]
		for _, one := range []struct {
			outcome string
			n       uint64
		}{{"delivered", t.Delivered}, {"redelivered", t.Redelivered}, {"acknowledged", t.Acknowledged},
			{"failed", t.Failed}, {"dead_lettered", t.DeadLettered}} {
			out <- prometheus.MustNewConstMetric(c.messages, prometheus.CounterValue, float64(one.n), l.store, l.topic,
				l.group, one.outcome)
		}
	}
	records.Fold(seriesOf(otherGroups), waiting, sum)
	for _, l := range records.Fold(seriesOf(otherGroups), unsettled, sum) {
		out <- prometheus.MustNewConstMetric(c.unsettled, prometheus.GaugeValue, float64(unsettled[l]), l.store,
			l.topic, l.group)
		out <- prometheus.MustNewConstMetric(c.waiting, prometheus.GaugeValue, float64(waiting[l]), l.store, l.topic,
			l.group)
	}
	for _, l := range records.Fold(seriesOf(otherTopics), full, func(a, b bool) bool { return a || b }) {
		out <- prometheus.MustNewConstMetric(c.refuses, prometheus.GaugeValue, 1, l.store, l.topic)
	}
}

// collectLag sends two metrics for each consumer group: the lag, and the age of the oldest deliverable message that the
// group has not settled. It leaves out a lag that is not completely counted. Groups without a series of their own share
// one series, with the sum of their lags and the greatest of their ages.
func (c *collector) collectLag(out chan<- prometheus.Metric) {
	all := map[label]measured{}
	for _, k := range c.keepers {
		for t, list := range k.measure() {
			for i := range list {
				l := label{t.Store, t.Name, list[i].group}
				all[l] = all[l].plus(list[i])
			}
		}
	}
	for _, l := range records.Fold(seriesOf(otherGroups), all, measured.plus) {
		one := all[l]
		if !one.partial {
			out <- prometheus.MustNewConstMetric(c.lag, prometheus.GaugeValue, float64(one.lag), l.store, l.topic,
				l.group)
		}
		out <- prometheus.MustNewConstMetric(c.oldest, prometheus.GaugeValue, one.age, l.store, l.topic, l.group)
	}
}

func (m measured) plus(o measured) measured {
	return measured{lag: m.lag + o.lag, age: max(m.age, o.age), partial: m.partial || o.partial}
}

func sum[N int | uint64](a, b N) N { return a + b }

func seriesOf(other label) *records.Series[label] {
	return &records.Series[label]{Max: maxLabels, Other: other, Compare: compareLabels}
}

func compareLabels(a, b label) int {
	return cmp.Or(cmp.Compare(a.store, b.store), cmp.Compare(a.topic, b.topic), cmp.Compare(a.group, b.group))
}

func (k *Keeper) read(totals map[label]Totals, unsettled, waiting map[label]int, full map[label]bool,
	stored map[label]uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for l, n := range k.stored {
		stored[l] += n
	}
	for l, one := range k.totals {
		totals[l] = totals[l].plus(*one)
	}
	for _, t := range k.topics {
		if t.full {
			full[label{store: t.Store, topic: t.Name}] = true
		}
		for _, c := range t.consumers {
			l := label{t.Store, t.Name, c.group}
			unsettled[l] += len(c.items) - c.parkedIn
			waiting[l] += c.parkedIn + c.tailed
		}
	}
}

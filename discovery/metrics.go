package discovery

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
)

// metrics has the counters of a catalogue. It is also a collector that reads the catalogue on each scrape.
type metrics struct {
	catalogue *Catalogue
	pulls     *prometheus.CounterVec // by kind and outcome
	demotions prometheus.Counter

	nodes     *prometheus.Desc
	bytes     *prometheus.Desc
	age       *prometheus.Desc // by which: newest or oldest
	agreed    *prometheus.Desc
	instances *prometheus.Desc // by health
	messages  *prometheus.Desc // by kind and direction
	dropped   *prometheus.Desc // by reason
	queued    *prometheus.Desc
}

func newMetrics(c *Catalogue) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	m := &metrics{
		catalogue: c,
		pulls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_catalogue_pulls_total",
			Help: "Questions to other nodes about applications, by what was requested and outcome."},
			[]string{"what", "outcome"}),
		demotions: prometheus.NewCounter(prometheus.CounterOpts{Name: "quorate_catalogue_demotions_total",
			Help: "Calls that did not reach an instance, which then got no calls for a while."}),
		nodes: desc("quorate_catalogue_nodes", "Nodes alive whose applications this node knows, including itself."),
		bytes: desc("quorate_catalogue_bytes", "Size of the records of other nodes, as encoded for sending."),
		age: desc("quorate_catalogue_record_age_seconds", "Time since the newest and the oldest record of another "+
			"node arrived.",
			"which"),
		agreed: desc("quorate_catalogue_disagreement_seconds",
			"Time since another node last had the same catalogue; 0 without other nodes."),
		instances: desc("quorate_catalogue_instances", "Instances of applications on nodes alive, by health: "+
			"healthy or unhealthy "+
			"as their nodes report, demoted after failed calls of this node, uncalled without a port.", "health"),
		messages: desc("quorate_catalogue_messages_total", "Messages about applications, by kind and direction.",
			"kind", "direction"),
		dropped: desc("quorate_catalogue_dropped_total",
			"Messages that were not applied, by reason: old (known already), gap (had to be pulled), bad "+
				"(unreadable), refused (over a limit), ended (of a node that is gone).", "reason"),
		queued: desc("quorate_catalogue_queued", "Broadcasts that are queued."),
	}
	for _, what := range []string{"digest", "records"} {
		m.pulls.WithLabelValues(what, "ok")
		m.pulls.WithLabelValues(what, "failed")
	}
	return m
}

func (m *metrics) pulled(what string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	m.pulls.WithLabelValues(what, outcome).Inc()
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.pulls, m.demotions, m}
}

// register registers all metrics or none.
func (m *metrics) register(reg prometheus.Registerer) error {
	for i, c := range m.collectors() {
		if err := reg.Register(c); err != nil {
			for _, done := range m.collectors()[:i] {
				reg.Unregister(done)
			}
			return &fault.Error{Code: fault.Internal, Op: "discovery.New", Msg: "metrics cannot be registered",
				Err: err}
		}
	}
	return nil
}

func (m *metrics) unregister(reg prometheus.Registerer) {
	for _, c := range m.collectors() {
		reg.Unregister(c)
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.nodes, m.bytes, m.age, m.agreed, m.instances, m.messages, m.dropped,
		m.queued} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	c := m.catalogue
	c.mu.Lock()
	_, size := c.machine.Size()
	counts, queued, agreed := c.machine.Counts(), c.machine.Queued(), c.machine.Agreed()
	now := c.opts.Now()
	c.mu.Unlock()
	v := c.View()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	count := func(d *prometheus.Desc, value uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(m.nodes, float64(v.Nodes()))
	gauge(m.bytes, float64(size))
	newest, oldest := v.ages(now)
	gauge(m.age, newest.Seconds(), "newest")
	gauge(m.age, oldest.Seconds(), "oldest")
	gauge(m.agreed, disagreement(v, now, agreed, c.begun).Seconds())
	for condition, n := range v.conditions() {
		gauge(m.instances, float64(n), string(condition))
	}
	for _, k := range records.Kinds() {
		count(m.messages, counts.Sent[k], k.String(), "sent")
		count(m.messages, counts.Received[k], k.String(), "received")
	}
	count(m.dropped, counts.Old, "old")
	count(m.dropped, counts.Gaps, "gap")
	count(m.dropped, counts.Bad, "bad")
	count(m.dropped, counts.Refused, "refused")
	count(m.dropped, counts.Ended, "ended")
	gauge(m.queued, float64(queued))
}

// ages returns the times since the newest and the oldest record of another node arrived.
func (v *View) ages(now time.Time) (newest, oldest time.Duration) {
	first := true
	for i := range v.records {
		if at := v.records[i].Since; !at.IsZero() {
			age := now.Sub(at)
			if first {
				newest, first = age, false
			}
			newest, oldest = min(newest, age), max(oldest, age)
		}
	}
	return newest, oldest
}

func disagreement(v *View, now, agreed, begun time.Time) time.Duration {
	switch {
	case v.Nodes() < 2:
		return 0
	case agreed.IsZero():
		return now.Sub(begun)
	}
	return now.Sub(agreed)
}

// conditions counts instances by condition.
func (v *View) conditions() map[Condition]int {
	n := map[Condition]int{Healthy: 0, Unhealthy: 0, Demoted: 0, Uncalled: 0}
	for _, i := range v.All() {
		word, _ := v.catalogue.Standing(&i)
		n[word]++
	}
	return n
}

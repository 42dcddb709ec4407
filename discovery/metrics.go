package discovery

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
)

// metrics are counters, and a collector that reads the catalogue when asked.
type metrics struct {
	catalogue *Catalogue
	pulls     *prometheus.CounterVec // by what and outcome
	demotions prometheus.Counter

	nodes     *prometheus.Desc
	bytes     *prometheus.Desc
	age       *prometheus.Desc // by which
	agreed    *prometheus.Desc
	instances *prometheus.Desc // by health
	messages  *prometheus.Desc // by kind and direction
	dropped   *prometheus.Desc // by reason
	queued    *prometheus.Desc
}

func newMetrics(c *Catalogue) *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("quorate_catalogue_"+name, help, labels, nil)
	}
	m := &metrics{
		catalogue: c,
		pulls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_catalogue_pulls_total",
			Help: "Questions to other nodes about applications, by what was asked for and outcome."}, []string{"what", "outcome"}),
		demotions: prometheus.NewCounter(prometheus.CounterOpts{Name: "quorate_catalogue_demotions_total",
			Help: "Calls that did not reach an instance, which was then kept from calls for a while."}),
		nodes:     desc("nodes", "Nodes alive whose applications this node knows, itself included."),
		bytes:     desc("bytes", "Size of the records held of other nodes, as they are sent."),
		age:       desc("record_age_seconds", "Time since the newest and the oldest record of another node came.", "which"),
		agreed:    desc("disagreement_seconds", "Time since another node last had the very same catalogue; 0 without other nodes."),
		instances: desc("instances", "Instances of applications on nodes alive, by health: healthy and unhealthy by what their nodes say, demoted by what this node met, uncalled without a port.", "health"),
		messages:  desc("messages_total", "Messages about applications, by kind and direction.", "kind", "direction"),
		dropped:   desc("dropped_total", "Messages that were not taken in, by reason: old (known already), gap (had to be pulled), bad (unreadable), refused (over a bound), ended (of a node that is gone).", "reason"),
		queued:    desc("queued", "Broadcasts that wait."),
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

// register adds all or none.
func (m *metrics) register(reg prometheus.Registerer) error {
	for i, c := range m.collectors() {
		if err := reg.Register(c); err != nil {
			for _, done := range m.collectors()[:i] {
				reg.Unregister(done)
			}
			return &fault.Error{Code: fault.Internal, Op: "discovery.New", Msg: "metrics cannot be registered", Err: err}
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
	for _, d := range []*prometheus.Desc{m.nodes, m.bytes, m.age, m.agreed, m.instances, m.messages, m.dropped, m.queued} {
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

// ages are the times since the newest and the oldest record of others came.
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

// conditions counts instances.
func (v *View) conditions() map[Condition]int {
	n := map[Condition]int{Healthy: 0, Unhealthy: 0, Demoted: 0, Uncalled: 0}
	for _, i := range v.All() {
		word, _ := v.catalogue.Standing(&i)
		n[word]++
	}
	return n
}

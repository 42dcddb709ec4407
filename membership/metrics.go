package membership

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
)

// metrics are the counters of this package, and a collector that reads the roster.
type metrics struct {
	joins   *prometheus.CounterVec // by outcome
	refused *prometheus.CounterVec // by reason
	members *prometheus.Desc
	health  *prometheus.Desc
	gossip  *Gossip
}

func newMetrics(g *Gossip) *metrics {
	m := &metrics{
		gossip: g,
		joins: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_gossip_joins_total",
			Help: "Attempts to join a seed or to find a lost member again, by outcome."}, []string{"outcome"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_gossip_refused_total",
			Help: "Refusals to merge with a node or to accept its data, by reason; one node may " +
				"be refused many times."}, []string{"reason"}),
		members: prometheus.NewDesc("quorate_gossip_members", "Members this node knows, itself included.",
			[]string{"state", "role"}, nil),
		health: prometheus.NewDesc("quorate_gossip_health_score",
			"How badly this node keeps up with gossip itself: 0 is well, 7 is worst.", nil, nil),
	}
	for _, o := range outcomes() {
		m.joins.WithLabelValues(string(o))
	}
	for _, r := range Reasons() {
		m.refused.WithLabelValues(string(r))
	}
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.joins, m.refused, m}
}

// register registers all collectors. If one of them cannot be registered, none stays registered.
func (m *metrics) register(reg prometheus.Registerer) error {
	for i, c := range m.collectors() {
		if err := reg.Register(c); err != nil {
			unregister(reg, m.collectors()[:i])
			return &fault.Error{Code: fault.Internal, Op: "membership.Open", Msg: "metrics cannot be registered",
				Err: err}
		}
	}
	return nil
}

func unregister(reg prometheus.Registerer, list []prometheus.Collector) {
	for _, c := range list {
		reg.Unregister(c)
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.members
	ch <- m.health
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	type kind struct {
		state State
		role  Role
	}
	count := map[kind]int{}
	for _, member := range m.gossip.Roster().Members() {
		count[kind{member.State, member.Role}]++
	}
	for _, s := range []State{Alive, Left, Failed} {
		for _, r := range []Role{Server, Sidecar} {
			ch <- prometheus.MustNewConstMetric(m.members, prometheus.GaugeValue, float64(count[kind{s, r}]),
				s.String(), r.String())
		}
	}
	ch <- prometheus.MustNewConstMetric(m.health, prometheus.GaugeValue, float64(m.gossip.HealthScore()))
}

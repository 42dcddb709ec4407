package node

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/raftfsm/placement"
)

// lagCollector tells, where this node leads, how far each server of a group is behind.
type lagCollector struct {
	reconciler *reconciler
	desc       *prometheus.Desc
}

func newLagCollector(r *reconciler) *lagCollector {
	return &lagCollector{r, prometheus.NewDesc("quorate_raft_follower_lag_entries",
		"Log entries that a server is behind, as the leader of the group was told last.", []string{"group", "node"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *lagCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements prometheus.Collector. Of several servers of one node the one that is
// least behind counts.
func (c *lagCollector) Collect(ch chan<- prometheus.Metric) {
	c.reconciler.mu.Lock()
	defer c.reconciler.mu.Unlock()
	for i, v := range c.reconciler.views {
		if v.since.IsZero() {
			continue // led elsewhere
		}
		lags := map[string]uint64{}
		for _, s := range v.input.Servers {
			node := placement.NodeOf(s.ID)
			if have, seen := lags[node]; s.LagKnown && s.ID != v.input.Leader && (!seen || s.Lag < have) {
				lags[node] = s.Lag
			}
		}
		for node, lag := range lags {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(lag), strconv.Itoa(i), node)
		}
	}
}

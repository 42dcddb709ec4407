package clusterctl

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/raftfsm/placement"
)

// lagCollector is a Prometheus collector for the groups that this node leads. It collects two metrics for each server
// of these groups:
//
//   - the number of log entries by which the server is behind the leader
//   - the time by which the wall clock of the server is ahead of the cluster time of the group
type lagCollector struct {
	reconciler   *reconciler
	desc, offset *prometheus.Desc
}

func newLagCollector(r *reconciler) *lagCollector {
	return &lagCollector{r, prometheus.NewDesc("quorate_raft_follower_lag_entries",
		"Log entries that a server is behind the leader of the group, as last reported.", []string{"group", "node"},
		nil), prometheus.NewDesc("quorate_raft_clock_offset_seconds", "Time by which the wall clock of a server is "+
		"ahead of the cluster time of the group, as last reported to its leader.", []string{"group", "node"}, nil)}
}

// Describe implements prometheus.Collector.
func (c *lagCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.desc
	ch <- c.offset
}

// Collect implements prometheus.Collector. If a node has several servers in a group, the smallest lag is reported.
func (c *lagCollector) Collect(ch chan<- prometheus.Metric) {
	c.reconciler.mu.Lock()
	defer c.reconciler.mu.Unlock()
	for i := range c.reconciler.views {
		v := &c.reconciler.views[i]
		if v.since.IsZero() {
			continue // led elsewhere
		}
		offsets := map[string]float64{}
		for server, offset := range v.offsets {
			offsets[placement.NodeOf(server)] = offset.Seconds()
		}
		for node, offset := range offsets {
			ch <- prometheus.MustNewConstMetric(c.offset, prometheus.GaugeValue, offset, strconv.Itoa(i), node)
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

package node

import (
	"encoding/json"
	"net/http"
	"net/netip"

	"github.com/quorate/quorate/membership"
)

// targetsPath is where the metrics listener tells Prometheus which nodes there are, in the
// form of its http_sd_configs.
const targetsPath = "/targets"

// targetGroup is what Prometheus is to scrape, and what it may make labels of: names that
// begin with __meta_ are dropped after relabelling, so that none of them can clash with a
// label of a metric.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// serveTargets lists the live nodes whose metrics can be reached, by node id. Until this
// node has met the others it answers 503: Prometheus then keeps the list it has, while an
// empty one would make it drop every target.
func (n *Node) serveTargets(w http.ResponseWriter, _ *http.Request) {
	g := n.gossip.Load()
	if g == nil {
		http.Error(w, "this node is starting and does not know the others yet", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(targetGroups(n.config.Cluster.Name, g.Roster().Alive())) // the client has gone
}

func targetGroups(cluster string, alive []membership.Member) []targetGroup {
	out := []targetGroup{} // a list also where it is empty
	for _, m := range alive {
		if m.MetricsAddr == "" {
			continue
		}
		out = append(out, targetGroup{Targets: []string{m.MetricsAddr}, Labels: map[string]string{
			"__meta_quorate_node": m.NodeID, "__meta_quorate_role": m.Role.String(), "__meta_quorate_cluster": cluster,
			"__meta_quorate_cluster_id": m.ClusterID, "__meta_quorate_version": m.Version,
		}})
	}
	return out
}

// metricsAddr is where others reach the metrics of a node that serves them on listener and
// is known as advertised; empty if they do not.
func metricsAddr(listener string, advertised netip.Addr) string {
	bound, err := netip.ParseAddrPort(listener)
	if err != nil { // off
		return ""
	}
	ip := bound.Addr().Unmap()
	switch {
	case ip.IsUnspecified():
		ip = advertised
	case ip.IsLoopback() && !advertised.Unmap().IsLoopback():
		return "" // other machines would ask themselves
	}
	return netip.AddrPortFrom(ip, bound.Port()).String()
}

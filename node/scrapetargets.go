package node

import (
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/membership"
)

// scrapeTargetsPath is the path of the list of nodes on the metrics listener. Prometheus reads the list with
// http_sd_configs.
const scrapeTargetsPath = "/targets"

// targetGroup is a node in the list for Prometheus. The names of its labels begin with __meta_. Prometheus removes such
// labels after relabelling, so they cannot collide with the labels of metrics.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// scrapeTargets serves the list of nodes from which Prometheus reads metrics. The list has every node that announces a
// metrics address, sorted by node id.
//
// A failed node stays in the list until it is removed from the cluster or gossip forgets it. Otherwise Prometheus would
// drop the node, and could not report that the node is down. A node that has left is not in the list.
//
// Before gossip is open, scrapeTargets answers 503, because Prometheus then keeps its previous list. An empty list
// would make Prometheus drop every node.
type scrapeTargets struct {
	cluster string
	known   interface{ Roster() *membership.Roster } // nil until gossip is open
}

// ServeHTTP implements http.Handler.
func (s scrapeTargets) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	r := s.known.Roster()
	if r == nil {
		http.Error(w, "this node is starting and does not know the others yet", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(targetGroups(s.cluster, r.Members())) // fails only if the client has gone
}

func targetGroups(cluster string, members []membership.Member) []targetGroup {
	out := []targetGroup{} // encodes as [] if empty
	for i := range members {
		m := &members[i]
		if m.MetricsAddr == "" || m.State == membership.Left {
			continue
		}
		out = append(out, targetGroup{Targets: []string{m.MetricsAddr}, Labels: map[string]string{
			"__meta_quorate_node": m.NodeID, "__meta_quorate_role": m.Role.String(),
			"__meta_quorate_cluster":    cluster,
			"__meta_quorate_cluster_id": m.ClusterID, "__meta_quorate_version": m.Version,
			"__meta_quorate_state": m.State.String(),
		}})
	}
	return out
}

package node

import (
	"encoding/json"
	"net/http"

	"github.com/quorate/quorate/membership"
)

// scrapeTargetsPath is the path at which the metrics listener serves the list of nodes, in the format of
// http_sd_configs of Prometheus.
const scrapeTargetsPath = "/targets"

// targetGroup is a scrape target with its labels. The names of the labels begin with __meta_. Prometheus drops such
// labels after relabelling, so they cannot collide with labels of metrics.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// scrapeTargets serves the list of nodes that announce a metrics address, sorted by node id. Nodes that have failed
// are listed until they are removed or forgotten. Prometheus would drop them otherwise, and could not report that they
// are down. Nodes that have left are not listed. Before gossip is open, scrapeTargets answers 503, so that Prometheus
// keeps its previous list. With an empty list, Prometheus would drop every target.
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

package node

import (
	"testing"

	"github.com/quorate/quorate/membership"
)

// The alert QuorateNodeDown needs the targets of nodes that have failed. Nodes that have left must not cause this
// alert.
func TestTargetGroups_ListsFailedNodes(t *testing.T) {
	var members []membership.Member
	for id, state := range map[string]membership.State{"up": membership.Alive, "down": membership.Failed,
		"gone": membership.Left} {
		m := membership.Member{State: state}
		m.NodeID, m.MetricsAddr, m.Role = id, id+":9090", membership.Server
		members = append(members, m)
	}
	got := map[string]string{}
	for _, g := range targetGroups("c", members) {
		got[g.Targets[0]] = g.Labels["__meta_quorate_state"]
	}
	if len(got) != 2 || got["up:9090"] != "alive" || got["down:9090"] != "failed" {
		t.Errorf("listed: %v", got)
	}
}

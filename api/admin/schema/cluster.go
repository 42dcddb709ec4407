package schema

import "slices"

// ClusterStatus describes the whole cluster: the nodes that gossip knows, and the status that each node reports.
type ClusterStatus struct {
	Node   string         `json:"node"`   // id of the node that collected the status
	Nodes  []NodeReport   `json:"nodes"`  // in order of their node ids
	Groups []ClusterGroup `json:"groups"` // in order of their ids
	Notes  []Issue        `json:"notes"`  // settings on which the live nodes do not agree
}

// NodeReport describes one node of the cluster.
type NodeReport struct {
	Member MemberStatus `json:"member"`
	Status *NodeStatus  `json:"status,omitempty"` // nil if the node did not answer
	Error  string       `json:"error,omitempty"`  // why the node did not answer
	// Lag is the largest number of log entries by which the node is behind the leader of a group. It is nil if no
	// leader knows it, and on a node without data.
	Lag *uint64 `json:"lag,omitempty"`
}

// ClusterGroup describes one replication group, as its leader reports it. If no leader answered, the report with the
// highest term is used.
type ClusterGroup struct {
	ID      uint64         `json:"id"`
	Leader  string         `json:"leader"` // node id; empty = none known
	Term    uint64         `json:"term"`
	Reads   bool           `json:"reads"`
	Writes  bool           `json:"writes"`
	Reason  string         `json:"reason,omitempty"` // why reads or writes do not work
	Servers []ServerStatus `json:"servers"`          // by node id
}

// NewClusterStatus combines one report per node into the status of the cluster. node is the id of the node that
// collected the reports. The result includes the state of each group and how far each node lags behind.
func NewClusterStatus(node string, reports []NodeReport) ClusterStatus {
	out := ClusterStatus{Node: node, Nodes: reports, Groups: []ClusterGroup{}, Notes: []Issue{}}
	best := map[uint64]GroupStatus{}
	for _, r := range reports {
		if r.Status == nil {
			continue
		}
		if r.Member.Node == node && r.Status.Notes != nil {
			out.Notes = r.Status.Notes
		}
		for _, g := range r.Status.Groups {
			if other, known := best[g.ID]; !known || describesBetter(g, other) {
				best[g.ID] = g
			}
		}
	}
	for _, g := range best {
		out.Groups = append(out.Groups, ClusterGroup{ID: g.ID, Leader: g.Leader, Term: g.Term, Reads: g.Reads,
			Writes: g.Writes, Reason: g.Reason, Servers: g.Servers})
	}
	slices.SortFunc(out.Groups, func(a, b ClusterGroup) int { return int(a.ID) - int(b.ID) })
	for i := range out.Nodes {
		out.Nodes[i].Lag = out.lag(out.Nodes[i].Member.ServerID)
	}
	return out
}

// describesBetter reports whether the report a describes its group better than the report b. In this order, it prefers:
//
//   - a report with servers
//   - the higher term, because a deposed leader may not know yet that it was deposed
//   - the report of the leader
func describesBetter(a, b GroupStatus) bool {
	switch {
	case len(a.Servers) == 0 || len(b.Servers) == 0:
		return len(a.Servers) > len(b.Servers)
	case a.Term != b.Term:
		return a.Term > b.Term
	default:
		return a.State == "leader" && b.State != "leader"
	}
}

// lag returns the largest lag of a server over all groups, or nil if no lag is known.
func (c ClusterStatus) lag(server string) *uint64 {
	var most *uint64
	for _, g := range c.Groups {
		for _, s := range g.Servers {
			if s.ServerID == server && s.Lag != nil && (most == nil || *s.Lag > *most) {
				most = s.Lag
			}
		}
	}
	return most
}

// Leads returns the ids of the groups that a node leads.
func (c ClusterStatus) Leads(node string) []uint64 {
	var out []uint64
	for _, g := range c.Groups {
		if g.Leader == node {
			out = append(out, g.ID)
		}
	}
	return out
}

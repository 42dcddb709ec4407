package schema_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api/admin/schema"
)

func TestClusterStatus_TrustsTheLeaderOfTheHighestTerm(t *testing.T) {
	lag := func(n uint64) *uint64 { return &n }
	servers := func(n2 *uint64) []schema.ServerStatus {
		return []schema.ServerStatus{{Node: "n1", ServerID: "n1.a", Voter: true, Lag: lag(0)},
			{Node: "n2", ServerID: "n2.b", Voter: true, Lag: n2}}
	}
	report := func(node string, groups ...schema.GroupStatus) schema.NodeReport {
		return schema.NodeReport{Member: schema.MemberStatus{Node: node,
			ServerID: node + "." + map[string]string{"n1": "a",
				"n2": "b"}[node]}, Status: &schema.NodeStatus{Groups: groups,
			Notes: []schema.Issue{{About: "settings", Reason: "as " + node + " sees them"}}}}
	}
	routed := schema.GroupStatus{State: "routed", Leader: "n2", Term: 9, Servers: []schema.ServerStatus{}}
	deposed := schema.GroupStatus{State: "leader", Leader: "n2", Term: 4, Servers: servers(lag(99))}
	leader := schema.GroupStatus{State: "leader", Leader: "n1", Term: 5, Writes: true, Servers: servers(lag(7))}
	follower := schema.GroupStatus{State: "follower", Leader: "n1", Term: 5, Servers: servers(nil)}
	for name, c := range map[string]struct {
		reports []schema.NodeReport
		leader  string
		term    uint64
		lag     *uint64 // of n2
	}{
		"leader and follower": {[]schema.NodeReport{report("n1", leader), report("n2", follower)}, "n1", 5, lag(7)},
		"a deposed leader":    {[]schema.NodeReport{report("n1", leader), report("n2", deposed)}, "n1", 5, lag(7)},
		"follower came first": {[]schema.NodeReport{report("n2", follower), report("n1", leader)}, "n1", 5, lag(7)},
		"a node without data": {[]schema.NodeReport{report("n3", routed), report("n2", follower)}, "n1", 5, nil},
		"no server at all":    {[]schema.NodeReport{report("n3", routed)}, "n2", 9, nil},
		"the leader is silent": {[]schema.NodeReport{{Member: schema.MemberStatus{Node: "n1"}}, report("n2", follower)},
			"n1", 5, nil},
	} {
		s := schema.NewClusterStatus(c.reports[0].Member.Node, c.reports)
		if len(s.Groups) != 1 || s.Groups[0].Leader != c.leader || s.Groups[0].Term != c.term {
			t.Errorf("%s: %+v", name, s.Groups)
			continue
		}
		for _, n := range s.Nodes {
			if n.Member.Node == "n2" {
				if diff := cmp.Diff(c.lag, n.Lag); diff != "" {
					t.Errorf("%s: lag of n2: %s", name, diff)
				}
			}
		}
		if n := c.reports[0]; n.Status != nil && s.Notes[0].Reason != "as "+n.Member.Node+" sees them" {
			t.Errorf("%s: notes %v", name, s.Notes)
		}
		if got := s.Leads(c.leader); len(got) != 1 || got[0] != 0 {
			t.Errorf("%s: leads %v", name, got)
		}
	}
}

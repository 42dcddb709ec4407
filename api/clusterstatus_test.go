package api_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api"
)

func TestClusterStatus_TrustsTheLeaderOfTheHighestTerm(t *testing.T) {
	lag := func(n uint64) *uint64 { return &n }
	servers := func(n2 *uint64) []api.ServerStatus {
		return []api.ServerStatus{{Node: "n1", ServerID: "n1.a", Voter: true, Lag: lag(0)},
			{Node: "n2", ServerID: "n2.b", Voter: true, Lag: n2}}
	}
	report := func(node string, groups ...api.GroupStatus) api.NodeReport {
		return api.NodeReport{Member: api.MemberStatus{Node: node, ServerID: node + "." + map[string]string{"n1": "a",
			"n2": "b"}[node]}, Status: &api.NodeStatus{Groups: groups,
			Notes: []api.Issue{{About: "settings", Reason: "as " + node + " sees them"}}}}
	}
	routed := api.GroupStatus{State: "routed", Leader: "n2", Term: 9, Servers: []api.ServerStatus{}}
	deposed := api.GroupStatus{State: "leader", Leader: "n2", Term: 4, Servers: servers(lag(99))}
	leader := api.GroupStatus{State: "leader", Leader: "n1", Term: 5, Writes: true, Servers: servers(lag(7))}
	follower := api.GroupStatus{State: "follower", Leader: "n1", Term: 5, Servers: servers(nil)}
	for name, c := range map[string]struct {
		reports []api.NodeReport
		leader  string
		term    uint64
		lag     *uint64 // of n2
	}{
		"leader and follower": {[]api.NodeReport{report("n1", leader), report("n2", follower)}, "n1", 5, lag(7)},
		"a deposed leader":    {[]api.NodeReport{report("n1", leader), report("n2", deposed)}, "n1", 5, lag(7)},
		"follower came first": {[]api.NodeReport{report("n2", follower), report("n1", leader)}, "n1", 5, lag(7)},
		"a node without data": {[]api.NodeReport{report("n3", routed), report("n2", follower)}, "n1", 5, nil},
		"no server at all":    {[]api.NodeReport{report("n3", routed)}, "n2", 9, nil},
		"the leader is silent": {[]api.NodeReport{{Member: api.MemberStatus{Node: "n1"}}, report("n2", follower)},
			"n1", 5, nil},
	} {
		s := api.NewClusterStatus(c.reports[0].Member.Node, c.reports)
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

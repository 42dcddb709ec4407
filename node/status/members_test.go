package status_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/node/nodetest"
)

func TestMembers_ListsAllAndMarksSelf(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	leader := nodetest.Leader(t, nodes)
	for i, n := range nodes {
		s, m := nodetest.Status(t, n), map[string]schema.MemberStatus{}
		nodetest.Poll(t, func() error {
			m = nodetest.Members(t, n)
			if total := m["n1"].Leads + m["n2"].Leads + m["n3"].Leads; len(m) != 3 || total != 1 {
				return fmt.Errorf("at %d: %+v", i, m)
			}
			for id, one := range m { // what gossip has brought of the other nodes
				if one.Self != (id == s.Node.ID) || one.State != "alive" || one.Role != "server" ||
					one.ClusterID != s.Node.ClusterID || one.Since.IsZero() || one.Version != "test" {
					return fmt.Errorf("%s as %s sees it: %+v", id, s.Node.ID, one)
				}
			}
			return nil
		})
		own := m[s.Node.ID]
		if !own.Self || own.ServerID != s.Node.ServerID || own.Peer != s.Node.Peer || own.Gossip != s.Node.Gossip ||
			s.Node.Gossip == "" || s.Node.Peer == "" {
			t.Errorf("own entry %+v, identity %+v", own, s.Node)
		}
	}
	gone := (leader + 1) % 3
	id, watcher := nodetest.Status(t, nodes[gone]).Node.ID, nodes[leader]
	nodetest.Close(t, nodes[gone])
	nodetest.Poll(t, func() error {
		if m := nodetest.Members(t, watcher)[id]; m.State != "left" {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
}

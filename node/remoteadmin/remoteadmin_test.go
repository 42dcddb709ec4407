package remoteadmin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// reports returns the reports of all nodes by node id.
func reports(t *testing.T, n *node.Node) (map[string]schema.NodeReport, schema.ClusterStatus) {
	t.Helper()
	s, err := n.Admin().ClusterStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]schema.NodeReport{}
	for _, r := range s.Nodes {
		out[r.Member.Node] = r
	}
	return out, s
}

func TestClusterStatus_ShowsAllNodesFromAnyNode(t *testing.T) {
	nodes, _ := nodetest.ThreeSecured(t, func(*node.Config) {}, trust.NewToken())
	leader := nodetest.Leader(t, nodes)
	for _, n := range nodes {
		nodetest.Poll(t, func() error {
			all, s := reports(t, n)
			if len(all) != 3 || len(s.Groups) != 1 || s.Node != nodetest.Status(t, n).Node.ID {
				return fmt.Errorf("%+v", s)
			}
			for id, r := range all {
				if r.Status == nil || r.Status.Node.ID != id || r.Lag == nil || r.Status.Disk == nil ||
					r.Status.Disk.FreeBytes == 0 {
					return fmt.Errorf("%s: %+v", id, r)
				}
			}
			if got, want := s.Groups[0].Leader, nodetest.Status(t, nodes[leader]).Node.ID; got != want {
				return fmt.Errorf("the leader is %q, not %q", got, want)
			}
			return nil
		})
	}
	gone, watcher := nodes[(leader+1)%3], nodes[(leader+2)%3]
	id := nodetest.Status(t, gone).Node.ID
	nodetest.Close(t, gone)
	nodetest.Poll(t, func() error {
		all, _ := reports(t, watcher)
		if r := all[id]; r.Status != nil || r.Error == "" || all[nodetest.Status(t, watcher).Node.ID].Status == nil {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

func TestForward_ReachesServersAndSidecars(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	side := nodetest.Open(t, nodetest.Sidecar(t, "side", nodes[0].Addresses().Gossip))
	nodetest.Ready(t, side)
	for _, c := range []struct {
		from *node.Node
		to   string
	}{{nodes[0], "n1"}, {nodes[0], "n2"}, {nodes[1], "side"}, {side, "n3"}} {
		nodetest.Poll(t, func() error {
			s, err := adminapi.Get[schema.NodeStatus](t.Context(), c.from.Admin(), c.to, adminapi.StatusPath)
			if err != nil || s.Node.ID != c.to {
				return fmt.Errorf("to %s: %+v, %w", c.to, s.Node, err)
			}
			return nil
		})
	}
	_, err := side.Admin().Forward(t.Context(), "n9", adminapi.Request{Method: http.MethodGet,
		Path: adminapi.StatusPath})
	if !fault.Is(err, fault.NotFound) || !strings.Contains(fault.Text(err), "n9") {
		t.Errorf("unknown node: %v", err)
	}
	_, err = side.Admin().Forward(t.Context(), "n2", adminapi.Request{Method: http.MethodPost,
		Path: adminapi.LeavePath})
	if !fault.Is(err, fault.NotFound) {
		t.Errorf("a request that must not be forwarded: %v", err)
	}
}

func TestForward_KeepsErrorsOfTheOtherNode(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	body, err := json.Marshal(schema.TransferRequest{To: "n9"})
	if err != nil {
		t.Fatal(err)
	}
	nodetest.Poll(t, func() error { // the leader may change, and gossip may be late
		leader := nodetest.Leader(t, nodes)
		_, err := nodes[(leader+1)%3].Admin().Forward(t.Context(), nodetest.Status(t, nodes[leader]).Node.ID,
			adminapi.Request{Method: http.MethodPost, Path: adminapi.TransferPath(0), Body: body})
		if !fault.Is(err, fault.NotFound) || !strings.Contains(fault.HintOf(err), "its other voters are") {
			return fmt.Errorf("the error is %w", err)
		}
		return nil
	})
}

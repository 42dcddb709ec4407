package clusterctl_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
	"github.com/quorate/quorate/raftfsm/group"
)

// threeSlow is nodetest.Three with long Raft timeouts, so that a busy machine causes no election during a test.
func threeSlow(t testing.TB) ([]*node.Node, []node.Config) {
	t.Helper()
	return nodetest.ThreeWith(t, func(c *node.Config) {
		c.Cluster.Timing = group.Timing{Heartbeat: 3 * time.Second, Election: 3 * time.Second}
	})
}

// remove repeats the request until the removal is done.
func remove(t testing.TB, n *node.Node, target string) {
	t.Helper()
	nodetest.Poll(t, func() error {
		r, err := n.Admin().Remove(t.Context(), target)
		switch {
		case err != nil:
			return err
		case !r.Done:
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

// knowsItIsRemoved waits until a node reports its removal in health and status.
func knowsItIsRemoved(t testing.TB, n *node.Node) {
	t.Helper()
	nodetest.Poll(t, func() error {
		code, body, _ := nodetest.Ask(t, n, "GET", "/v1.0/healthz", "")
		if code != 500 || !strings.Contains(body, "was removed from the cluster") ||
			!strings.Contains(body, "empty ") {
			return fmt.Errorf("healthz: %d %s", code, body)
		}
		for _, i := range nodetest.Status(t, n).Issues {
			if strings.Contains(i.Reason, "was removed from the cluster") {
				return nil
			}
		}
		return fmt.Errorf("status: %+v", nodetest.Status(t, n).Issues)
	})
	if code, body := nodetest.Save(t, n, "at-removed", "1"); code == 204 {
		t.Errorf("a removed server took a write: %s", body)
	}
	if code, body, _ := nodetest.Ask(t, n, "GET", "/v1.0/state/statestore/k", ""); code < 400 {
		t.Errorf("a removed server answered a read: %d %s", code, body)
	}
}

func TestRemove_ServerStaysRemoved(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	nodes, configs := threeSlow(t)
	if code, body := nodetest.Save(t, nodes[0], "k", "1"); code != 204 {
		t.Fatalf("save: %d %s", code, body)
	}
	at := nodetest.Leader(t, nodes)
	gone, asked := (at+1)%3, (at+2)%3
	id := nodetest.Status(t, nodes[gone]).Node.ServerID
	remove(t, nodes[asked], nodetest.Status(t, nodes[gone]).Node.ID) // not on the leader
	nodetest.Voters(t, nodes[at], 2)
	knowsItIsRemoved(t, nodes[gone])
	before := nodetest.Term(t, nodes[at])
	nodetest.Close(t, nodes[gone])
	back := nodetest.Open(t, configs[gone])
	knowsItIsRemoved(t, back)
	if _, err := back.Admin().Checkup(t.Context()); err != nil { // the node has no groups any more
		t.Errorf("checkup: %v", err)
	}
	remove(t, nodes[asked], id) // again, by its server id: this changes nothing
	if now := nodetest.Term(t, nodes[at]); now != before {
		t.Errorf("term %d became %d: the removed server disturbed the others", before, now)
	}
	nodetest.Close(t, back)
	fresh := configs[gone]
	fresh.Data.Dir = filepath.Join(t.TempDir(), "new")
	again := nodetest.Open(t, fresh)
	nodetest.Ready(t, again)
	nodetest.Voters(t, nodes[at], 3)
	if code, _, _ := nodetest.Ask(t, again, "GET", "/v1.0/state/statestore/k?consistency=strong", ""); code != 200 {
		t.Errorf("read at the new server: %d", code)
	}
}

func TestRemove_StoppedServerLearnsOnRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	nodes, configs := threeSlow(t)
	at := nodetest.Leader(t, nodes)
	gone := (at + 1) % 3
	name := nodetest.Status(t, nodes[gone]).Node.ID
	nodetest.Close(t, nodes[gone])
	remove(t, nodes[at], name)
	nodetest.Voters(t, nodes[at], 2)
	before := nodetest.Term(t, nodes[at])
	back := nodetest.Open(t, configs[gone])
	knowsItIsRemoved(t, back)
	for range 3 { // the removed node polls the other servers during these saves
		if code, body := nodetest.Save(t, nodes[at], "k", "1"); code != 204 {
			t.Errorf("save: %d %s", code, body)
		}
	}
	if now := nodetest.Term(t, nodes[at]); now != before {
		t.Errorf("term %d became %d", before, now)
	}
	nodetest.Voters(t, nodes[at], 2)
}

func TestRemove_Leader(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	at := nodetest.Leader(t, nodes)
	remove(t, nodes[(at+1)%3], nodetest.Status(t, nodes[at]).Node.ID)
	knowsItIsRemoved(t, nodes[at])
	rest := []*node.Node{nodes[(at+1)%3], nodes[(at+2)%3]}
	nodetest.Voters(t, rest[nodetest.Leader(t, rest)], 2)
}

func TestRemove_RefusesLossOfQuorum(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	at := nodetest.Leader(t, nodes)
	dead, other := (at+1)%3, (at+2)%3
	deadName := nodetest.Status(t, nodes[dead]).Node.ID
	nodetest.Close(t, nodes[dead])
	nodetest.Poll(t, func() error {
		if m := nodetest.Members(t, nodes[at])[deadName]; m.State == "alive" {
			return errors.New("not seen to be gone")
		}
		return nil
	})
	nodetest.Poll(t, func() error { // repeated, because leadership may move
		_, err := nodes[at].Admin().Remove(t.Context(), nodetest.Status(t, nodes[other]).Node.ID)
		if err == nil {
			t.Fatal("a living server was removed while another is dead")
		}
		if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Text(err), "majority") ||
			!strings.Contains(fault.Text(err), deadName) {
			return fmt.Errorf("removing a living server while another is dead: %w", err)
		}
		return nil
	})
	remove(t, nodes[other], deadName)
	nodetest.Voters(t, nodes[at], 2)
	if code, body := nodetest.Save(t, nodes[other], "k", "1"); code != 204 {
		t.Errorf("save: %d %s", code, body)
	}
}

func TestRemove_OneServerStaysIfAllAreRemovedAtOnce(t *testing.T) {
	nodes, _ := threeSlow(t)
	leader := nodes[nodetest.Leader(t, nodes)]
	var wg sync.WaitGroup
	errs := make([]error, len(nodes))
	for i, n := range nodes {
		id := nodetest.Status(t, n).Node.ServerID
		wg.Go(func() { _, errs[i] = leader.Admin().Remove(t.Context(), id) })
	}
	wg.Wait()
	refused := 0
	for _, err := range errs {
		if fault.Is(err, fault.Conflict) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused == 0 {
		t.Error("all servers are being removed")
	}
}

func TestRemove_RepeatSucceedsThoughGossipForgotTheServer(t *testing.T) {
	nodes, configs := nodetest.Three(t)
	at := nodetest.Leader(t, nodes)
	gone := (at + 1) % 3
	name, id := nodetest.Status(t, nodes[gone]).Node.ID, nodetest.Status(t, nodes[gone]).Node.ServerID
	nodetest.Close(t, nodes[gone])
	remove(t, nodes[at], name)
	rest := []int{at, (at + 2) % 3}
	for _, i := range rest {
		nodetest.Close(t, nodes[i])
	}
	for _, i := range rest {
		nodes[i] = nodetest.Open(t, configs[i])
	}
	for _, i := range rest {
		nodetest.Ready(t, nodes[i])
	}
	side := nodetest.Open(t, nodetest.Sidecar(t, "side", nodes[at].Addresses().Gossip))
	nodetest.Ready(t, side)
	for _, n := range []*node.Node{nodes[rest[0]], nodes[rest[1]], side} {
		if m, ok := nodetest.Members(t, n)[name]; ok {
			t.Fatalf("gossip still knows the removed server: %+v", m)
		}
		for _, target := range []string{name, id} {
			r, err := n.Admin().Remove(t.Context(), target)
			if err != nil || !r.Done || r.ServerID != id {
				t.Errorf("removing %s again: %+v, %v", target, r, err)
			}
		}
	}
}

func TestRemove_Errors(t *testing.T) {
	lone := nodetest.Open(t, nodetest.Member(t, "n1", 0))
	nodetest.Ready(t, lone)
	side := nodetest.Open(t, nodetest.Sidecar(t, "side", lone.Addresses().Gossip))
	nodetest.Ready(t, side)
	for name, c := range map[string]struct {
		target string
		code   fault.Code
		text   string
	}{
		"the only voter": {"n1", fault.Conflict, "the only voter"},
		"a stranger":     {"n9", fault.NotFound, "the servers are n1."},
		"a sidecar":      {"side", fault.Invalid, "stop it"},
	} {
		for _, n := range []*node.Node{lone, side} {
			nodetest.Poll(t, func() error {
				_, err := n.Admin().Remove(t.Context(), c.target)
				if !fault.Is(err, c.code) || !strings.Contains(fault.Text(err), c.text) {
					return fmt.Errorf("%s: %w", name, err)
				}
				return nil
			})
		}
	}
	if _, err := lone.Admin().Leave(t.Context()); !fault.Is(err, fault.Conflict) {
		t.Errorf("leaving as the only voter: %v", err)
	}
}

func TestLeave_WaitsForReplacementVoter(t *testing.T) {
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) { c.Cluster.Partitions = 2 })
	c := nodetest.Member(t, "n4", 0, nodes[0].Addresses().Gossip)
	c.Cluster.Partitions = 2
	fourth := nodetest.Open(t, c)
	nodetest.Ready(t, fourth)
	at := nodetest.Leader(t, nodes)
	nodetest.Poll(t, func() error { // until n4 is a non-voter that keeps up
		at = nodetest.Leader(t, nodes) // leadership may have moved
		for _, s := range nodetest.Status(t, nodes[at]).Groups[0].Servers {
			if s.Node == "n4" && !s.Voter && strings.Contains(s.Reason, "ready") {
				return nil
			}
		}
		return errors.New("n4 is not ready")
	})
	var last schema.RemoveResult
	nodetest.Poll(t, func() error {
		r, err := nodes[at].Admin().Leave(t.Context())
		if err != nil {
			return err
		}
		if last = r; !r.Done {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if err := nodes[at].Wait(t.Context()); err != nil { // Leave stops the node
		t.Error(err)
	}
	nodetest.Close(t, nodes[at])
	if len(last.Groups) != 2 && len(last.Groups) != 0 {
		t.Errorf("%+v", last)
	}
	rest := append(append([]*node.Node{}, nodes[:at]...), nodes[at+1:]...)
	rest = append(rest, fourth)
	nodetest.Voters(t, rest[nodetest.Leader(t, rest)], 3)
	if code, body := nodetest.Save(t, fourth, "k", "1"); code != 204 {
		t.Errorf("save: %d %s", code, body)
	}
}

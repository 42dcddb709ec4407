package node_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
)

// openAt is open with a clock of the test's own.
func openAt(t testing.TB, c node.Config, now func() time.Time) *node.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d := deps(t)
	d.Now = now
	n, err := node.Open(ctx, c, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeNode(t, n) })
	return n
}

// calm is three at longer times of raft, for tests in which no election may happen by itself.
func calm(t testing.TB) ([]*node.Node, []node.Config) {
	t.Helper()
	return threeWith(t, func(c *node.Config) {
		c.Cluster.Timing = group.Timing{Heartbeat: 3 * time.Second, Election: 3 * time.Second}
	})
}

// remove asks until a removal is done.
func remove(t testing.TB, n *node.Node, target string) {
	t.Helper()
	poll(t, func() error {
		r, err := n.Remove(t.Context(), target)
		switch {
		case err != nil:
			return err
		case !r.Done:
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

// knowsItIsRemoved waits until a node says so in health and status.
func knowsItIsRemoved(t testing.TB, n *node.Node) {
	t.Helper()
	poll(t, func() error {
		code, body, _ := ask(t, n, "GET", "/v1.0/healthz", "")
		if code != 500 || !strings.Contains(body, "was removed from the cluster") || !strings.Contains(body, "empty ") {
			return fmt.Errorf("healthz: %d %s", code, body)
		}
		for _, i := range status(t, n).Issues {
			if strings.Contains(i.Reason, "was removed from the cluster") {
				return nil
			}
		}
		return fmt.Errorf("status: %+v", status(t, n).Issues)
	})
	if code, body := save(t, n, "at-removed", "1"); code == 204 {
		t.Errorf("a removed server took a write: %s", body)
	}
	if code, body, _ := ask(t, n, "GET", "/v1.0/state/statestore/k", ""); code < 400 {
		t.Errorf("a removed server answered a read: %d %s", code, body)
	}
}

func TestARemovedServerKnowsItAndStaysOut(t *testing.T) {
	nodes, configs := calm(t)
	if code, body := save(t, nodes[0], "k", "1"); code != 204 {
		t.Fatalf("save: %d %s", code, body)
	}
	at := leads(t, nodes)
	gone, asked := (at+1)%3, (at+2)%3
	id := status(t, nodes[gone]).Node.ServerID
	remove(t, nodes[asked], status(t, nodes[gone]).Node.ID) // not on the leader
	voters(t, nodes[at], 2)
	knowsItIsRemoved(t, nodes[gone])
	before := term(t, nodes[at])
	closeNode(t, nodes[gone])
	back := open(t, configs[gone])
	knowsItIsRemoved(t, back)
	remove(t, nodes[asked], id) // again, by its server id: nothing to do
	if now := term(t, nodes[at]); now != before {
		t.Errorf("term %d became %d: the removed server disturbed the others", before, now)
	}
	closeNode(t, back)
	fresh := configs[gone]
	fresh.Data.Dir = filepath.Join(t.TempDir(), "new")
	again := open(t, fresh)
	ready(t, again)
	voters(t, nodes[at], 3)
	if code, _, _ := ask(t, again, "GET", "/v1.0/state/statestore/k?consistency=strong", ""); code != 200 {
		t.Errorf("read at the new server: %d", code)
	}
}

func TestAServerThatWasDownWhenItWasRemovedLearnsOfIt(t *testing.T) {
	nodes, configs := calm(t)
	at := leads(t, nodes)
	gone := (at + 1) % 3
	name := status(t, nodes[gone]).Node.ID
	closeNode(t, nodes[gone])
	remove(t, nodes[at], name)
	voters(t, nodes[at], 2)
	before := term(t, nodes[at])
	back := open(t, configs[gone])
	knowsItIsRemoved(t, back)
	for range 3 { // the others are asked again and again meanwhile
		if code, body := save(t, nodes[at], "k", "1"); code != 204 {
			t.Errorf("save: %d %s", code, body)
		}
	}
	if now := term(t, nodes[at]); now != before {
		t.Errorf("term %d became %d", before, now)
	}
	voters(t, nodes[at], 2)
}

func TestTheLeaderCanBeRemoved(t *testing.T) {
	nodes, _ := three(t)
	at := leads(t, nodes)
	remove(t, nodes[(at+1)%3], status(t, nodes[at]).Node.ID)
	knowsItIsRemoved(t, nodes[at])
	rest := []*node.Node{nodes[(at+1)%3], nodes[(at+2)%3]}
	voters(t, rest[leads(t, rest)], 2)
}

func TestARemovalThatWouldLoseTheQuorumIsRefused(t *testing.T) {
	nodes, _ := three(t)
	at := leads(t, nodes)
	dead, other := (at+1)%3, (at+2)%3
	deadName := status(t, nodes[dead]).Node.ID
	closeNode(t, nodes[dead])
	poll(t, func() error {
		if m := membersOf(t, nodes[at])[deadName]; m.State == "alive" {
			return errors.New("not seen to be gone")
		}
		return nil
	})
	poll(t, func() error { // leadership may move
		_, err := nodes[at].Remove(t.Context(), status(t, nodes[other]).Node.ID)
		if err == nil {
			t.Fatal("a living server was removed while another is dead")
		}
		if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Text(err), "majority") || !strings.Contains(fault.Text(err), deadName) {
			return fmt.Errorf("removing a living server while another is dead: %w", err)
		}
		return nil
	})
	remove(t, nodes[other], deadName)
	voters(t, nodes[at], 2)
	if code, body := save(t, nodes[other], "k", "1"); code != 204 {
		t.Errorf("save: %d %s", code, body)
	}
}

func TestARemovalSaysWhatItDoesNotKnow(t *testing.T) {
	lone := open(t, member(t, "n1", 0))
	ready(t, lone)
	side := open(t, beside(t, "side", lone.Addresses().Gossip))
	ready(t, side)
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
			poll(t, func() error {
				_, err := n.Remove(t.Context(), c.target)
				if !fault.Is(err, c.code) || !strings.Contains(fault.Text(err), c.text) {
					return fmt.Errorf("%s: %w", name, err)
				}
				return nil
			})
		}
	}
	if _, err := lone.Leave(t.Context()); !fault.Is(err, fault.Conflict) {
		t.Errorf("leaving as the only voter: %v", err)
	}
}

func TestAServerLeavesOnceItsSuccessorVotes(t *testing.T) {
	nodes, _ := threeWith(t, func(c *node.Config) { c.Cluster.Partitions = 2 })
	c := member(t, "n4", 0, nodes[0].Addresses().Gossip)
	c.Cluster.Partitions = 2
	fourth := open(t, c)
	ready(t, fourth)
	at := leads(t, nodes)
	poll(t, func() error { // as a replica that keeps up
		at = leads(t, nodes) // leadership may be spread meanwhile
		for _, s := range status(t, nodes[at]).Groups[0].Servers {
			if s.Node == "n4" && !s.Voter && strings.Contains(s.Reason, "ready") {
				return nil
			}
		}
		return errors.New("n4 is not ready")
	})
	var last api.RemoveResult
	poll(t, func() error {
		r, err := nodes[at].Leave(t.Context())
		if err != nil {
			return err
		}
		if last = r; !r.Done {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if err := nodes[at].Wait(t.Context()); err != nil { // it stops by itself
		t.Error(err)
	}
	closeNode(t, nodes[at])
	if len(last.Groups) != 2 && len(last.Groups) != 0 {
		t.Errorf("%+v", last)
	}
	rest := append(append([]*node.Node{}, nodes[:at]...), nodes[at+1:]...)
	rest = append(rest, fourth)
	voters(t, rest[leads(t, rest)], 3)
	if code, body := save(t, fourth, "k", "1"); code != 204 {
		t.Errorf("save: %d %s", code, body)
	}
}

package clusterctl_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// leaders returns the node id of the leader of each group, as n knows them.
func leaders(t testing.TB, n *node.Node) []string {
	var out []string
	for _, g := range nodetest.Status(t, n).Groups {
		out = append(out, g.Leader)
	}
	return out
}

func TestSpread_KeepsOperatorsLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	var clock atomic.Int64 // added to the time; the test moves it forward to end the choice
	now := func() time.Time { return time.Now().Add(time.Duration(clock.Load())) }
	seed := nodetest.SparePort(t)
	var nodes []*node.Node
	for i, id := range []string{"n1", "n2", "n3"} {
		c := nodetest.Member(t, id, 3, fmt.Sprintf("127.0.0.1:%d", seed))
		if i == 0 {
			c.Cluster.Gossip = node.Port{Number: seed, Given: true}
		}
		c.Cluster.Partitions = 3
		// long timeouts, so that only the operator and the balancing move leadership
		c.Cluster.Timing = group.Timing{Heartbeat: 2 * time.Second, Election: 2 * time.Second}
		c.Cluster.Limits = placement.Limits{Stable: 100 * time.Millisecond, Settle: 300 * time.Millisecond}
		nodes = append(nodes, nodetest.OpenAt(t, c, now))
	}
	for _, n := range nodes {
		nodetest.Ready(t, n)
	}
	spread := func() error {
		seen := map[string]bool{}
		for _, l := range leaders(t, nodes[0]) {
			seen[l] = l != ""
		}
		if len(seen) != 3 || seen[""] {
			return fmt.Errorf("leaders: %v", leaders(t, nodes[0]))
		}
		return nil
	}
	nodetest.Poll(t, spread)
	nodetest.Poll(t, func() error { // all must vote first, because a choice ends when the members change
		for i, g := range nodetest.Status(t, nodes[0]).Groups {
			have := 0
			for _, s := range g.Servers {
				if s.Voter {
					have++
				}
			}
			if have != len(nodes) {
				return fmt.Errorf("group %d has %d voters", i, have)
			}
		}
		return nil
	})
	for i := range 3 { // transfer every group to n1
		nodetest.Poll(t, func() error {
			for _, n := range nodes {
				if s := nodetest.Status(t, n).Groups[i]; s.State == "leader" {
					_, err := n.Admin().TransferLeader(t.Context(), uint64(i), "n1")
					return err
				}
			}
			return fmt.Errorf("group %d has no leader", i)
		})
	}
	nodetest.Poll(t, func() error {
		for _, l := range leaders(t, nodes[0]) {
			if l != "n1" {
				return fmt.Errorf("leaders: %v", leaders(t, nodes[0]))
			}
		}
		return nil
	})
	// the balancing of leaders runs several times
	for begun := time.Now(); time.Since(begun) < 2*time.Second; <-time.After(100 * time.Millisecond) {
		for _, l := range leaders(t, nodes[0]) {
			if l != "n1" {
				t.Fatalf("spread although an operator chose: %v", leaders(t, nodes[0]))
			}
		}
	}
	clock.Store(int64(11 * time.Minute))
	nodetest.Poll(t, spread)
}

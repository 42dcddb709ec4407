package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/placement"
)

// placed asks as the probe of an orchestrator does.
func placed(t *testing.T, n *node.Node) error {
	t.Helper()
	if code, body, _ := ask(t, n, "GET", "/readyz/placed", ""); code != 200 {
		return errors.New(body)
	}
	return nil
}

// The votes of this cluster are never given: each waits for an hour of keeping up.
func TestAServerThatWaitsForItsVoteIsReadyAndNotPlaced(t *testing.T) {
	seed := freePort(t)
	var nodes []*node.Node
	for i, id := range []string{"n1", "n2", "n3"} {
		c := member(t, id, 3, fmt.Sprintf("127.0.0.1:%d", seed))
		if i == 0 {
			c.Cluster.Gossip = node.Port{Number: seed, Given: true}
		}
		c.Cluster.Limits = placement.Limits{Stable: time.Hour}
		nodes = append(nodes, open(t, c))
	}
	for _, n := range nodes {
		ready(t, n)
	}
	poll(t, func() error { return placed(t, nodes[0]) })
	for i, n := range nodes[1:] {
		poll(t, func() error {
			if code, body, _ := ask(t, n, "GET", "/readyz", ""); code != 200 {
				return errors.New(body)
			}
			return nil
		})
		want := fmt.Sprintf("vote in group 0 (n%d does not vote yet: 1 of 3 votes are given)", i+2)
		poll(t, func() error { // until gossip has told it of all three
			if err := placed(t, n); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("it says %w, want %s", err, want)
			}
			return nil
		})
	}
}

// The setting of the leader counts: replicas that were told of more votes are in their place.
func TestServersArePlacedWithTheVoteThatIsMeantForThem(t *testing.T) {
	nodes, configs := three(t)
	for _, id := range []string{"n4", "n5"} {
		c := member(t, id, 0, configs[0].Cluster.Join...)
		c.Cluster.Voters = 5
		replica := open(t, c)
		ready(t, replica)
		nodes = append(nodes, replica)
	}
	for _, n := range nodes {
		poll(t, func() error { return placed(t, n) })
	}
	sidecar := member(t, "s1", 0, configs[0].Cluster.Join...)
	sidecar.Cluster.Role = node.RoleSidecar
	s := open(t, sidecar)
	ready(t, s)
	poll(t, func() error { return placed(t, s) })
}

package clusterctl_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
	"github.com/quorate/quorate/raftfsm/placement"
)

// placed requests /readyz/placed, as the probe of an orchestrator does.
func placed(t *testing.T, n *node.Node) error {
	t.Helper()
	if code, body, _ := nodetest.Ask(t, n, "GET", "/readyz/placed", ""); code != 200 {
		return errors.New(body)
	}
	return nil
}

// No server of this cluster becomes a voter during the test, because it would have to keep up with the log for an
// hour first.
func TestVotes_NonVoterWaitingForVoteIsReady(t *testing.T) {
	seed := nodetest.SparePort(t)
	var nodes []*node.Node
	for i, id := range []string{"n1", "n2", "n3"} {
		c := nodetest.Member(t, id, 3, fmt.Sprintf("127.0.0.1:%d", seed))
		if i == 0 {
			c.Cluster.Gossip = node.Port{Number: seed, Given: true}
		}
		c.Cluster.Limits = placement.Limits{Stable: time.Hour}
		nodes = append(nodes, nodetest.Open(t, c))
	}
	for _, n := range nodes {
		nodetest.Ready(t, n)
	}
	nodetest.Poll(t, func() error { return placed(t, nodes[0]) })
	for i, n := range nodes[1:] {
		nodetest.Poll(t, func() error {
			if code, body, _ := nodetest.Ask(t, n, "GET", "/readyz", ""); code != 200 {
				return errors.New(body)
			}
			return nil
		})
		want := fmt.Sprintf("vote in group 0 (n%d does not vote yet: 1 of 3 votes are given)", i+2)
		nodetest.Poll(t, func() error { // until the node knows all three servers by gossip
			if err := placed(t, n); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("it says %w, want %s", err, want)
			}
			return nil
		})
	}
}

// The --voters setting of the leader applies. So servers with a higher setting do not wait for a vote.
func TestVotes_LeaderSettingPlacesServers(t *testing.T) {
	if testing.Short() {
		t.Skip("moves votes several times")
	}
	nodes, configs := nodetest.Three(t)
	for _, id := range []string{"n4", "n5"} {
		c := nodetest.Member(t, id, 0, configs[0].Cluster.Join...)
		c.Cluster.Voters = 5
		replica := nodetest.Open(t, c)
		nodetest.Ready(t, replica)
		nodes = append(nodes, replica)
	}
	for _, n := range nodes {
		nodetest.Poll(t, func() error { return placed(t, n) })
	}
	sidecar := nodetest.Member(t, "s1", 0, configs[0].Cluster.Join...)
	sidecar.Cluster.Role = node.RoleSidecar
	s := nodetest.Open(t, sidecar)
	nodetest.Ready(t, s)
	nodetest.Poll(t, func() error { return placed(t, s) })
}

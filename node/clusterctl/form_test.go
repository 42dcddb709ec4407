package clusterctl_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
	"github.com/quorate/quorate/raftfsm/datadir"
)

// A server with another --partitions is refused while a cluster forms. Its own status has the reason. The status of
// the server that it has tried to join has the reason too.
func TestForm_StatusOfBothSidesNamesTheDifference(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes that form no cluster")
	}
	seed := nodetest.SparePort(t)
	var nodes []*node.Node
	for i, partitions := range []int{2, 2, 3} {
		c := nodetest.Member(t, fmt.Sprintf("n%d", i+1), 3, fmt.Sprintf("127.0.0.1:%d", seed))
		c.Cluster.Partitions = partitions
		if i == 0 {
			c.Cluster.Gossip = node.Port{Number: seed, Given: true}
		}
		nodes = append(nodes, nodetest.Open(t, c))
	}
	for _, n := range []*node.Node{nodes[0], nodes[2]} {
		nodetest.Poll(t, func() error {
			issues := nodetest.Status(t, n).Issues
			for _, i := range issues {
				if i.About == "cluster" && strings.Contains(i.Reason, "--partitions differs") &&
					strings.Contains(i.Reason, "3 on n3") {
					return nil
				}
			}
			return fmt.Errorf("%+v", issues)
		})
	}
}

// Old servers that come back after a rescue can be a majority of the old cluster. They then serve requests, and their
// status reports that there are two clusters.
func TestRescue_OldMajorityReportsSecondCluster(t *testing.T) {
	c := nodetest.Config(t)
	n := nodetest.Open(t, c)
	nodetest.Ready(t, n)
	if issues := nodetest.Status(t, n).Issues; len(issues) != 0 {
		t.Errorf("before the rescue: %+v", issues)
	}
	nodetest.Close(t, n)
	supersede(t, c.Data.Dir)
	n = nodetest.Open(t, c)
	nodetest.Ready(t, n)
	if code, body := nodetest.Save(t, n, "k", "1"); code != 204 {
		t.Errorf("save: %d %s", code, body)
	}
	s := nodetest.Status(t, n)
	if !s.Ready || len(s.Issues) != 1 || s.Issues[0].About != "cluster" ||
		!strings.Contains(s.Issues[0].Reason, "a rescue left this server and those that it works with behind") ||
		strings.Contains(s.Issues[0].Reason, "quorate rescue") {
		t.Errorf("ready %v, issues %+v", s.Ready, s.Issues)
	}
}

// supersede records in a data directory that the cluster was rescued without this server.
func supersede(t *testing.T, dir string) {
	t.Helper()
	id, err := datadir.ReadIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	id.Superseded = id.Epoch + 1
	if err := id.Write(dir); err != nil {
		t.Fatal(err)
	}
}

// The node a knows the node b by gossip, but cannot reach b at the address that b advertises.
func TestForm_SaysThatAnAddressIsWrong(t *testing.T) {
	seed := nodetest.SparePort(t)
	join := fmt.Sprintf("127.0.0.1:%d", seed)
	a, b := nodetest.Member(t, "a", 2, join), nodetest.Member(t, "b", 2, join)
	a.Cluster.Gossip = node.Port{Number: seed, Given: true}
	b.Cluster.Advertise = "127.0.0.9" // b listens on 127.0.0.1
	first := nodetest.Open(t, a)
	nodetest.Open(t, b)
	nodetest.Poll(t, func() error {
		for _, i := range nodetest.Status(t, first).Issues {
			if strings.Contains(i.Reason, "b cannot promise that a may form the cluster: ") &&
				strings.Contains(i.Reason, "at 127.0.0.9:") &&
				strings.Contains(i.Reason, "set --advertise-address there") {
				return nil
			}
		}
		return fmt.Errorf("%+v", nodetest.Status(t, first).Issues)
	})
}

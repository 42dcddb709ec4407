package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// Each server has a file system of its own. One disk that is nearly full costs its server the leadership, and writes
// fail only until another server leads. If the disks of a majority are nearly full, the group is read-only, and
// every node reports that.
func TestDisk_LowLeaderHandsOverAndMajorityIsReadOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	nodes, configs := nodetest.ThreeWith(t, func(c *node.Config) {
		c.Data.Dir, c.Data.MinFree = filepath.Join(smallDisk(t, "96m"), "data"), 48<<20
		c.Data.LogStore = node.LogStoreBolt // wal allocates 64 MiB
	})
	side := nodetest.Open(t, nodetest.Sidecar(t, "side", nodes[0].Addresses().Gossip))
	nodetest.Ready(t, side)
	everywhere := append(nodes[:3:3], side)
	disk := func(i int) string { return filepath.Dir(configs[i].Data.Dir) }
	first := nodetest.Leader(t, nodes)

	ballastOf := map[int]string{first: ballast(t, disk(first), 60<<20)}
	start := time.Now()
	second := first
	for second == first {
		for i, n := range nodes {
			if code, body := nodetest.Save(t, n, "k", "1"); code == 500 && strings.Contains(body, "read_only") {
				t.Fatalf("one disk of three is low, and node %d answers %s", i, body)
			}
		}
		if second = nodetest.Leader(t, nodes); time.Since(start) > patience {
			t.Fatal("the leader whose disk is nearly full still leads")
		}
	}
	t.Logf("another server leads after %v", time.Since(start))
	for _, n := range everywhere { // each learns the new leader on its own
		waitFor(t, func() bool { code, _, _ := ask(t, n, "GET", "/readyz", ""); return code == 200 })
	}
	waitFor(t, func() bool { return hasIssue(t, nodes[first], "disk", "MiB are free on the disk of") })
	waitFor(t, func() bool { // until gossip has reached the new leader
		for _, s := range nodetest.Status(t, nodes[second]).Groups[0].Servers {
			if strings.Contains(s.Reason, "does not lead, because its disk is nearly full") {
				return true
			}
		}
		return false
	})
	if _, err := nodes[second].Admin().TransferLeader(t.Context(), 0, configs[first].Cluster.NodeID); err == nil ||
		!strings.Contains(err.Error(), "its disk is nearly full") {
		t.Errorf("leadership was given to a server whose disk is nearly full: %v", err)
	}

	ballastOf[second] = ballast(t, disk(second), 60<<20)
	for _, n := range everywhere {
		waitFor(t, func() bool {
			code, body, _ := ask(t, n, "GET", "/readyz", "")
			return code == 503 && strings.Contains(body, "group 0 is read-only: the disks of")
		})
		waitFor(t, func() bool {
			code, body := nodetest.Save(t, n, "k", "2")
			return code == 500 && strings.Contains(body, `"reason":"read_only"`)
		})
		if code, body, _ := ask(t, n, "GET", "/v1.0/state/statestore/k?consistency=strong", ""); code != 200 {
			t.Errorf("reads must go on: %d %s", code, body)
		}
	}
	for _, n := range nodes {
		nodetest.Poll(t, func() error {
			if s := nodetest.Status(t, n); !s.Groups[0].ReadOnly || s.Groups[0].Writes {
				return fmt.Errorf("status of %s: %+v", s.Node.ID, s.Groups[0])
			}
			return nil
		})
	}

	for _, path := range ballastOf {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range everywhere {
		waitFor(t, func() bool { code, _ := nodetest.Save(t, n, "k", "3"); return code == 204 })
		waitFor(t, func() bool { code, _, _ := ask(t, n, "GET", "/readyz", ""); return code == 200 })
	}
}

func hasIssue(t *testing.T, n *node.Node, about, words string) bool {
	t.Helper()
	for _, i := range nodetest.Status(t, n).Issues {
		if i.About == about && strings.Contains(i.Reason, words) {
			return true
		}
	}
	return false
}

package node_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/node"
)

func TestCluster_AnyNodeServesAnyRequest(t *testing.T) {
	t.Parallel()
	nodes, _ := three(t)
	ids := map[string]bool{}
	for i, n := range nodes {
		ids[status(t, n).Node.ClusterID] = true
		key := fmt.Sprint("k", i)
		if code, body := save(t, n, key, "v"); code != 204 {
			t.Fatalf("save at %d: %d %s", i, code, body)
		}
		for j, other := range nodes {
			code, body, h := ask(t, other, "GET", "/v1.0/state/statestore/"+key+"?consistency=strong", "")
			if code != 200 || body != `"v"` || h.Get("Quorate-Consistency") != "linearizable" {
				t.Errorf("written at %d, read at %d: %d %s %v", i, j, code, body, h)
			}
		}
	}
	if len(ids) != 1 || ids[""] {
		t.Errorf("cluster ids: %v", ids)
	}
}

func TestCluster_SurvivesStopAndReturnOfLeader(t *testing.T) {
	t.Parallel()
	nodes, configs := three(t)
	for i := range 20 {
		if code, body := save(t, nodes[i%3], fmt.Sprint("k", i), "before"); code != 204 {
			t.Fatalf("save %d: %d %s", i, code, body)
		}
	}
	at := leads(t, nodes)
	closeNode(t, nodes[at])
	rest := append(append([]*node.Node{}, nodes[:at]...), nodes[at+1:]...)
	for i := range 20 {
		code, body, _ := ask(t, rest[i%2], "GET", fmt.Sprintf("/v1.0/state/statestore/k%d?consistency=strong", i), "")
		if code != 200 || body != `"before"` {
			t.Fatalf("k%d after the leader went: %d %s", i, code, body)
		}
	}
	if code, body := save(t, rest[0], "while-away", "1"); code != 204 {
		t.Fatalf("save with two of three: %d %s", code, body)
	}
	back := open(t, configs[at])
	ready(t, back)
	if code, body, _ := ask(t, back, "GET", "/v1.0/state/statestore/while-away?consistency=strong", ""); code != 200 {
		t.Errorf("read at the node that came back: %d %s", code, body)
	}
	if code, body, _ := ask(t, back, "GET", "/v1.0/state/statestore/while-away", ""); code != 200 {
		t.Errorf("eventual read at the node that came back: %d %s", code, body)
	}
}

// A lock, a watch, a backup and a restore work although one server is down, also if the cluster uses them for the
// first time.
func TestCluster_FirstUseWhileServerIsDown(t *testing.T) {
	t.Parallel()
	nodes, _ := three(t)
	voters(t, nodes[0], 3)
	closeNode(t, nodes[2])
	n := nodes[0]
	if code, body, _ := ask(t, n, "POST", "/v1.0/lock/lockstore",
		`{"resourceId":"r","lockOwner":"x","expiryInSeconds":600}`); code != 200 || body != `{"success":true}` {
		t.Errorf("lock: %d %s", code, body)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Addresses().API[0]+
		"/v1.0/watch/statestore?prefix=k", nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	if code, body := save(t, n, "k", "1"); code != 204 {
		t.Errorf("save: %d %s", code, body)
	}
	for lines := bufio.NewScanner(watch.Body); ; {
		if !lines.Scan() {
			t.Fatalf("the watch ended with status %d: %v", watch.StatusCode, lines.Err())
		}
		if strings.Contains(lines.Text(), `"key":"k"`) {
			break
		}
	}
	var file bytes.Buffer
	if err := n.Admin().SaveBackup(ctx, &file); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Admin().RestoreBackup(ctx, &file); err != nil {
		t.Fatal(err)
	}
	if code, body, _ := ask(t, n, "GET", "/v1.0/state/statestore/k?consistency=strong", ""); code != 200 ||
		body != `"1"` {
		t.Errorf("after the restore: %d %s", code, body)
	}
}

func TestCluster_SingleNodeGrowsToThree(t *testing.T) {
	t.Parallel()
	first := member(t, "n1", 0)
	lone := open(t, first)
	if code, body := save(t, lone, "early", "1"); code != 204 {
		t.Fatalf("save alone: %d %s", code, body)
	}
	seed := lone.Addresses().Gossip
	others := []*node.Node{open(t, member(t, "n2", 0, seed)), open(t, member(t, "n3", 0, seed))}
	for _, n := range others {
		ready(t, n)
	}
	voters(t, lone, 3)
	for _, n := range others {
		if code, body, _ := ask(t, n, "GET", "/v1.0/state/statestore/early?consistency=strong", ""); code != 200 ||
			body != `"1"` {
			t.Errorf("a joined node reads %d %s", code, body)
		}
	}
	closeNode(t, lone)
	if code, body := save(t, others[0], "late", "1"); code != 204 {
		t.Errorf("save without the first node: %d %s", code, body)
	}
}

func TestJoin_WithoutClusterIsNotReady(t *testing.T) {
	t.Parallel()
	c := member(t, "n1", 0, fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	n := open(t, c)
	poll(t, func() error { // the reason has the hint only after the first attempt to reach the seed
		code, body, _ := ask(t, n, "GET", "/v1.0/healthz", "")
		if code != 500 || !strings.Contains(body, "--bootstrap-expect") {
			return fmt.Errorf("healthz: %d %s", code, body)
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.Addresses().API[0]+
		"/v1.0/state/statestore", strings.NewReader(`[{"key":"k","value":1}]`))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		defer resp.Body.Close()
		if resp.StatusCode == 204 {
			t.Error("a node without a cluster acknowledged a write")
		}
	}
}

func TestStatus_ReportsLossOfAllMembers(t *testing.T) {
	first := open(t, member(t, "n1", 0))
	second := open(t, member(t, "n2", 0, first.Addresses().Gossip))
	ready(t, second)
	gossip := func() []schema.Issue {
		return slices.DeleteFunc(status(t, second).Issues, func(i schema.Issue) bool { return i.About != "gossip" })
	}
	if got := gossip(); len(got) != 0 {
		t.Errorf("with another node: %+v", got)
	}
	closeNode(t, first)
	poll(t, func() error {
		if got := gossip(); len(got) != 1 || !strings.Contains(got[0].Reason, "no connection to") {
			return fmt.Errorf("alone: %+v", got)
		}
		return nil
	})
}

func TestJoin_RefusesMismatchedNode(t *testing.T) {
	first := open(t, member(t, "n1", 0))
	seed := first.Addresses().Gossip
	for name, c := range map[string]struct {
		change func(*node.Config)
		want   string
	}{
		// the node first forms a cluster of its own
		"another cluster":    {func(c *node.Config) { closeNode(t, open(t, *c)) }, "cluster"},
		"more partitions":    {func(c *node.Config) { c.Cluster.Partitions = 3 }, "partitions"},
		"the id of a member": {func(c *node.Config) { c.Cluster.NodeID = "n1" }, "n1"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := member(t, "x", 0)
			if name == "another cluster" {
				c.change(&conf)
			}
			conf.Cluster.Join = []string{seed}
			if name != "another cluster" {
				c.change(&conf)
			}
			n := open(t, conf)
			poll(t, func() error {
				// The node of another cluster may have become ready before it was refused. Its health then stays good,
				// but its status has the reason.
				code, body, _ := ask(t, n, "GET", "/v1.0/healthz", "")
				for _, i := range status(t, n).Issues {
					body += i.Reason
				}
				if code == 204 && name != "another cluster" || !strings.Contains(body, c.want) {
					return fmt.Errorf("healthz: %d %s", code, body)
				}
				return nil
			})
		})
	}
	if code, body := save(t, first, "k", "1"); code != 204 {
		t.Errorf("the cluster does not go on: %d %s", code, body)
	}
}

func TestJoin_WipedServerGetsNewID(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	nodes, configs := three(t)
	if code, body := save(t, nodes[0], "k", "1"); code != 204 {
		t.Fatalf("save: %d %s", code, body)
	}
	gone := (leads(t, nodes) + 1) % 3
	old := status(t, nodes[gone]).Node.ServerID
	closeNode(t, nodes[gone])
	c := configs[gone]
	c.Data.Dir = filepath.Join(t.TempDir(), "new-disk")
	c.Cluster.BootstrapExpect = 3 // the same value as before; the node must still not form another cluster
	back := open(t, c)
	ready(t, back)
	if id := status(t, back).Node.ServerID; id == old {
		t.Fatalf("a wiped disk kept the server id %s", id)
	}
	poll(t, func() error {
		var seen []string
		for _, s := range status(t, back).Groups[0].Servers {
			if s.Voter {
				seen = append(seen, s.ServerID)
			}
		}
		if len(seen) != 3 || strings.Contains(strings.Join(seen, " "), old) {
			return fmt.Errorf("voters: %v, the old server was %s", seen, old)
		}
		return nil
	})
	if code, body, _ := ask(t, back, "GET", "/v1.0/state/statestore/k?consistency=strong", ""); code != 200 ||
		body != `"1"` {
		t.Errorf("read at the new server: %d %s", code, body)
	}
}

package node_test

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
)

var lostMetric = regexp.MustCompile(`(?m)^quorate_raft_eventual_writes_lost_total\{group="0"\} (\S+)$`)

// A leader may step down before it acknowledges a write without its followers. Then the test begins again.
func TestLostWrites_AreCountedAcrossRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	for !lostWritesAreCounted(t) {
		t.Log("the leader stepped down before it took a write alone")
	}
}

// lostWritesAreCounted stops the followers of a leader. The leader then acknowledges eventual writes that no other
// server gets. When the leader restarts, the cluster has elected another leader. The old leader must count exactly the
// writes that are lost. lostWritesAreCounted returns false if none was lost.
func lostWritesAreCounted(t *testing.T) bool {
	t.Helper()
	nodes, configs := threeWith(t, func(c *node.Config) {
		c.API.RequestTimeout = 10 * time.Second
	})
	at := 0
	for i, c := range configs {
		if status(t, nodes[0]).Groups[0].Leader == c.Cluster.NodeID {
			at = i
		}
	}
	var acknowledged []string
	write := func() bool {
		key := fmt.Sprint("k", len(acknowledged))
		code, _, _ := ask(t, nodes[at], "POST", "/v1.0/state/statestore", `[{"key":"`+key+`","value":1}]`)
		if code == 204 {
			acknowledged = append(acknowledged, key)
		}
		return code == 204
	}
	write()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for i, n := range nodes {
			if i != at {
				closeNode(t, n)
			}
		}
	}()
	for write() { // until the node no longer leads
	}
	<-gone
	closeNode(t, nodes[at])
	var seeds []string
	for i := range configs { // any node can be a seed, because the first seed may be the stopped node
		port := freePort(t)
		configs[i].Cluster.Gossip = node.Port{Number: port, Given: true}
		seeds = append(seeds, fmt.Sprintf("127.0.0.1:%d", port))
	}
	for i := range nodes {
		configs[i].Cluster.Join = seeds
		if i != at {
			nodes[i] = open(t, configs[i])
		}
	}
	other := nodes[(at+1)%3]
	poll(t, func() error {
		if code, body := save(t, other, "after", "v"); code != 204 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	lost := 0
	for _, key := range acknowledged {
		if code, body, _ := ask(t, other, "GET", "/v1.0/state/statestore/"+key+"?consistency=strong",
			""); code == 204 {
			lost++
		} else if code != 200 {
			t.Fatalf("%s: %d %s", key, code, body)
		}
	}
	t.Logf("%d of %d acknowledged writes are lost", lost, len(acknowledged))
	if lost == 0 {
		return false
	}
	nodes[at] = open(t, configs[at])
	poll(t, func() error {
		resp, err := http.Get("http://" + nodes[at].Addresses().Metrics + "/metrics") //nolint:noctx // of this test
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		m := lostMetric.FindSubmatch(text)
		if m == nil {
			return fmt.Errorf("the metric is not there")
		}
		if got, err := strconv.ParseFloat(string(m[1]), 64); err != nil || int(got) != lost {
			return fmt.Errorf("%s are counted, %d are lost", m[1], lost)
		}
		return nil
	})
	return true
}

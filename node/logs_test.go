package node_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
	"github.com/quorate/quorate/raftfsm/group"
)

// alarms returns the records of a text log at level WARN or ERROR. It leaves out the warning about a missing token.
// It also leaves out timeouts, which happen on a busy machine because these clusters have short time limits.
func alarms(log *record) (out []string) {
	for line := range strings.Lines(log.String()) {
		alarm := strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR")
		for _, known := range []string{"neither encrypted nor authenticated", "Refuting a suspect message",
			"i/o timeout", "connection reset by peer", "but UDP probes failed", "heartbeat timeout reached",
			"Election timeout reached", "failed to contact quorum"} {
			alarm = alarm && !strings.Contains(line, known)
		}
		if alarm {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

func TestLog_NormalOperationHasNoWarning(t *testing.T) {
	if testing.Short() {
		t.Skip("forms two clusters and restarts each node")
	}
	for name, c := range map[string]struct {
		expect int
		order  []int // order of the starts; the first node is the seed of all
	}{
		"bootstrap, seed starts last":  {3, []int{1, 2, 0}},
		"two nodes join a single node": {0, []int{0, 1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var log record
			logger := slog.New(slog.NewTextHandler(&log, nil))
			logged := func(words ...string) {
				t.Helper()
				poll(t, func() error {
					if !log.Has(words...) {
						return fmt.Errorf("no record with %q", words)
					}
					return nil
				})
			}

			seed := freePort(t)
			var configs [3]node.Config
			for i := range configs {
				configs[i] = member(t, fmt.Sprint("n", i+1), c.expect, fmt.Sprintf("127.0.0.1:%d", seed))
			}
			configs[0].Cluster.Gossip = node.Port{Number: seed, Given: true}
			if c.expect == 0 {
				configs[0].Cluster.Join = nil
			}
			var nodes [3]*node.Node
			start := func(i int) {
				t.Helper()
				d := deps(t)
				d.Logger = logger.With("self", configs[i].Cluster.NodeID)
				nodes[i] = nodetest.OpenWith(t, configs[i], d)
			}

			for _, i := range c.order {
				if i == 0 && c.order[0] != 0 {
					logged("self=n2", "no seed can be joined")
				}
				start(i)
			}
			for _, n := range nodes {
				ready(t, n)
			}
			voters(t, nodes[0], 3)

			for i := range nodes {
				closeNode(t, nodes[i])
				start(i)
				ready(t, nodes[i])
				voters(t, nodes[i], 3)
			}

			stopped := (leads(t, nodes[:]) + 1) % 3
			closeNode(t, nodes[stopped])
			logged("failed to contact", configs[stopped].Cluster.NodeID+".") // the leader has noticed
			start(stopped)
			ready(t, nodes[stopped])

			poll(t, func() error {
				_, err := nodes[2].Admin().Leave(t.Context()) // begins the removal
				return err
			})
			logged("self=n3", "has left its groups on request") // n3 has noticed its removal without another call
			result, err := nodes[2].Admin().Leave(t.Context())
			if err != nil || !result.Done {
				t.Errorf("leaving again after the removal: %+v, %v", result, err)
			}
			voters(t, nodes[0], 2)
			closeNode(t, nodes[2])

			for _, line := range slices.Compact(alarms(&log)) {
				t.Error(line)
			}
		})
	}
}

// A cluster with a token: servers join, one of them by a snapshot, restart, leave and stop.
func TestLog_SecuredClusterHasNoWarning(t *testing.T) {
	if testing.Short() {
		t.Skip("forms a cluster and restarts each node")
	}
	var log record
	token, seed := trust.NewToken(), freePort(t)
	var configs [4]node.Config
	for i := range configs {
		c := member(t, fmt.Sprint("n", i+1), 3, fmt.Sprintf("127.0.0.1:%d", seed))
		c.Components.Paths = resources(t, map[string]string{"orders.yaml": store("orders", "state.raft", "")})
		c.Cluster.Bounds = group.Bounds{SnapshotEntries: 48, TrailingEntries: 8}
		c.Cluster.Timing.SnapshotPoll = 20 * time.Millisecond
		c.Cluster.Fast = false // its time limits are too short for a busy machine
		c.Security.ClusterTokenFile = tokenFile(t, "", token)
		configs[i] = c
	}
	configs[0].Cluster.Gossip = node.Port{Number: seed, Given: true}
	configs[3].Cluster.BootstrapExpect = 0
	var nodes [4]*node.Node
	start := func(i int) {
		t.Helper()
		d := deps(t)
		d.Logger = slog.New(slog.NewTextHandler(&log, nil)).With("self", configs[i].Cluster.NodeID)
		nodes[i] = nodetest.OpenWith(t, configs[i], d)
	}
	for i := range 3 {
		start(i)
	}
	for i := range 3 {
		ready(t, nodes[i])
	}
	voters(t, nodes[0], 3)
	for i := range 150 { // so many that the log is truncated, and a new server needs a snapshot
		body := fmt.Sprintf(`[{"key":"k%d","value":%d,"options":{"consistency":"strong"}}]`, i, i)
		if code, answer, _ := ask(t, nodes[0], "POST", "/v1.0/state/orders", body); code != 204 {
			t.Fatalf("save: %d %s", code, answer)
		}
	}
	start(3)
	ready(t, nodes[3])
	poll(t, func() error {
		if !log.Has("self=n4", "snapshot") {
			return errors.New("n4 has not joined by a snapshot")
		}
		return nil
	})
	for i := range nodes {
		closeNode(t, nodes[i])
		start(i)
		ready(t, nodes[i])
		voters(t, nodes[i], 3)
	}
	poll(t, func() error {
		result, err := nodes[3].Admin().Leave(t.Context())
		if err == nil && !result.Done {
			err = errors.New("n4 has not left yet")
		}
		return err
	})
	closeNode(t, nodes[3])
	closeNode(t, nodes[2]) // a further stop would lose the majority, which logs a warning
	for _, line := range slices.Compact(alarms(&log)) {
		t.Error(line)
	}
}

package node_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// alarms returns the records of a text log at level WARN or ERROR. Two are left out: the clusters
// of this test have no tokens, and on a busy machine a probe of gossip may time out.
func alarms(log *record) (out []string) {
	for line := range strings.Lines(log.String()) {
		alarm := strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR")
		if alarm && !strings.Contains(line, "neither encrypted nor authenticated") &&
			!strings.Contains(line, "Refuting a suspect message") {
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
				result, err := nodes[2].Admin().Leave(t.Context())
				if err == nil && !result.Done {
					err = errors.New("n3 has not left yet")
				}
				return err
			})
			voters(t, nodes[0], 2)
			closeNode(t, nodes[2])

			for _, line := range slices.Compact(alarms(&log)) {
				t.Error(line)
			}
		})
	}
}

package clusterctl_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node/nodetest"
)

func TestCompareReplicas_AllServersHaveTheSameState(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	nodetest.Poll(t, func() error { // repeated, because another leader may be elected in between
		at := nodetest.Leader(t, nodes)
		if _, err := nodes[(at+1)%3].Admin().CompareReplicas(t.Context(), 0); !fault.Is(err, fault.NotLeader) {
			return fmt.Errorf("on a follower: %w", err)
		}
		c, err := nodes[at].Admin().CompareReplicas(t.Context(), 0)
		if err != nil {
			return err
		}
		if c.Index == 0 || c.Majority == "" || len(c.Replicas) != len(nodes) {
			return fmt.Errorf("%+v", c)
		}
		for _, r := range c.Replicas {
			if r.Digest != c.Majority {
				return fmt.Errorf("%+v", r)
			}
		}
		return nil
	})
	if _, err := nodes[0].Admin().CompareReplicas(t.Context(), 7); !fault.Is(err, fault.NotFound) {
		t.Errorf("an unknown group: %v", err)
	}
}

package node_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/node/nodetest"
)

func TestDoctor_NamesUnreachableNode(t *testing.T) {
	t.Parallel()
	nodes, _ := three(t)
	n, other := nodes[0], status(t, nodes[1]).Node
	n.Isolate(other.ServerID)
	defer n.Rejoin(other.ServerID)
	poll(t, func() error { // on a busy machine a node may answer too late once
		c, err := n.Admin().Checkup(t.Context())
		if err != nil {
			return err
		}
		r := nodetest.Results(c, "peer port to")[other.ID]
		if r.Level != schema.CheckFail || c.Worst() != schema.CheckFail {
			return fmt.Errorf("%+v", r)
		}
		if r := nodetest.Results(c, "gossip port to (udp)")[other.ID]; r.Level != schema.CheckOK {
			return fmt.Errorf("gossip: %+v", r)
		}
		return nil
	})
}

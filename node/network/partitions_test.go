package network_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

func TestPartitions_NewServerAdoptsCount(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	token := nodetest.TokenFile(t, "", trust.NewToken())
	for name, file := range map[string]string{"plain": "", "secured": token} {
		t.Run(name, func(t *testing.T) {
			seed := nodetest.SparePort(t)
			at := fmt.Sprintf("127.0.0.1:%d", seed)
			secured := func(c node.Config) node.Config { c.Security.ClusterTokenFile = file; return c }

			// A server that finds no other node yet makes one partition.
			early := secured(nodetest.Member(t, "n3", 0, at))
			n := nodetest.Open(t, early)
			if got := nodetest.Status(t, n).Node.Partitions; got != 1 {
				t.Fatalf("alone it has %d partitions", got)
			}
			nodetest.Close(t, n)
			// From here on, the timeouts are those of production. On a busy machine, the short ones could pass. The
			// server would then create a directory that the cluster refuses.
			early.Cluster.Fast = false

			first := secured(nodetest.Member(t, "n1", 1, at))
			first.Cluster.Gossip, first.Cluster.Partitions = node.Port{Number: seed, Given: true}, 3
			nodetest.Ready(t, nodetest.Open(t, first))
			second, last := secured(nodetest.Member(t, "n2", 3, at)), secured(nodetest.Member(t, "n4", 0, at))
			second.Cluster.Fast, last.Cluster.Fast = false, false
			for _, c := range []node.Config{second, early} {
				n := nodetest.Open(t, c)
				nodetest.Ready(t, n)
				if got := nodetest.Status(t, n); got.Node.Partitions != 3 || len(got.Groups) != 3 {
					t.Errorf("%s has %d partitions and %d groups", c.Cluster.NodeID, got.Node.Partitions,
						len(got.Groups))
				}
			}
			fourth := nodetest.Open(t, last)
			nodetest.Ready(t, fourth)
			if members := nodetest.Members(t, fourth); members["n2"].State != "alive" ||
				members["n2"].Role != "server" || len(members) != 4 {
				t.Errorf("members: %+v", members)
			}
		})
	}
}

func TestPartitions_DifferentSettingIsRefused(t *testing.T) {
	seed := nodetest.SparePort(t)
	at := fmt.Sprintf("127.0.0.1:%d", seed)
	first := nodetest.Member(t, "n1", 1, at)
	first.Cluster.Gossip = node.Port{Number: seed, Given: true}
	nodetest.Ready(t, nodetest.Open(t, first))
	c := nodetest.Member(t, "n2", 0, at)
	c.Cluster.Partitions = 2
	n := nodetest.Open(t, c)
	nodetest.Poll(t, func() error {
		if issues := nodetest.Status(t, n).Issues; len(issues) == 0 {
			return fmt.Errorf("no issue is known")
		}
		return nil
	})
	if code, body, _ := nodetest.Ask(t, n, "GET", "/v1.0/healthz", ""); code == 204 {
		t.Errorf("it became ready: %s", body)
	}
}

package node_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
)

func TestANewServerTakesTheNumberOfPartitionsOfItsCluster(t *testing.T) {
	token := tokenFile(t, "", trust.NewToken())
	for name, file := range map[string]string{"plain": "", "secured": token} {
		t.Run(name, func(t *testing.T) {
			seed := freePort(t)
			at := fmt.Sprintf("127.0.0.1:%d", seed)
			secured := func(c node.Config) node.Config { c.Security.ClusterTokenFile = file; return c }

			// A server that finds nobody yet makes what it would make alone.
			early := secured(member(t, "n3", 0, at))
			n := open(t, early)
			if got := status(t, n).Node.Partitions; got != 1 {
				t.Fatalf("alone it has %d partitions", got)
			}
			closeNode(t, n)
			// From here on the cluster is asked for as long as in production, however busy the
			// machine: who gives up makes a directory that the cluster refuses.
			early.Cluster.Fast = false

			first := secured(member(t, "n1", 1, at))
			first.Cluster.Gossip, first.Cluster.Partitions = node.Port{Number: seed, Given: true}, 3
			ready(t, open(t, first))
			second, last := secured(member(t, "n2", 3, at)), secured(member(t, "n4", 0, at))
			second.Cluster.Fast, last.Cluster.Fast = false, false
			for _, c := range []node.Config{second, early} {
				n := open(t, c)
				ready(t, n)
				if got := status(t, n); got.Node.Partitions != 3 || len(got.Groups) != 3 {
					t.Errorf("%s has %d partitions and %d groups", c.Cluster.NodeID, got.Node.Partitions, len(got.Groups))
				}
			}
			fourth := open(t, last)
			ready(t, fourth)
			if members := membersOf(t, fourth); members["n2"].State != "alive" || members["n2"].Role != "server" || len(members) != 4 {
				t.Errorf("members: %+v", members)
			}
		})
	}
}

func TestASettingForPartitionsIsStillHeldAgainstTheCluster(t *testing.T) {
	seed := freePort(t)
	at := fmt.Sprintf("127.0.0.1:%d", seed)
	first := member(t, "n1", 1, at)
	first.Cluster.Gossip = node.Port{Number: seed, Given: true}
	ready(t, open(t, first))
	c := member(t, "n2", 0, at)
	c.Cluster.Partitions = 2
	n := open(t, c)
	poll(t, func() error {
		if issues := status(t, n).Issues; len(issues) == 0 {
			return fmt.Errorf("no issue is known")
		}
		return nil
	})
	if code, body, _ := ask(t, n, "GET", "/v1.0/healthz", ""); code == 204 {
		t.Errorf("it became ready: %s", body)
	}
}

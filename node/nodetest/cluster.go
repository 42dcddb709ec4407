package nodetest

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Member returns the configuration of one server of a cluster on this machine. The parameter expect is the number of
// servers that form the cluster. The parameter seeds has the gossip addresses of the nodes to join.
func Member(t testing.TB, id string, expect int, seeds ...string) node.Config {
	t.Helper()
	c := Config(t)
	c.Data.Dir = filepath.Join(t.TempDir(), id)
	c.Cluster.NodeID, c.Cluster.Join, c.Cluster.BootstrapExpect = id, seeds, expect
	c.Cluster.Bind, c.Cluster.Peer, c.Cluster.Gossip = "127.0.0.1", AnyPort(), AnyPort()
	c.Cluster.Fast = true
	c.API.RequestTimeout = 30 * time.Second // a busy machine may take long to elect a leader
	c.Cluster.Limits = placement.Limits{Stable: 100 * time.Millisecond, Settle: time.Second}
	return c
}

// Sidecar returns the configuration of a sidecar in a cluster on this machine.
func Sidecar(t testing.TB, id string, seeds ...string) node.Config {
	t.Helper()
	c := Member(t, id, 0, seeds...)
	c.Cluster.Role = node.RoleSidecar
	return c
}

// Three starts three servers that form a cluster. It returns when all three are healthy, and all three are voters of
// group 0.
func Three(t testing.TB) ([]*node.Node, []node.Config) {
	t.Helper()
	return ThreeWith(t, func(*node.Config) {})
}

// ThreeWith is like Three, but calls change with the configuration of each node before it starts the nodes.
func ThreeWith(t testing.TB, change func(*node.Config)) ([]*node.Node, []node.Config) {
	t.Helper()
	seed := SparePort(t)
	var configs []node.Config
	for _, id := range []string{"n1", "n2", "n3"} {
		c := Member(t, id, 3, fmt.Sprintf("127.0.0.1:%d", seed))
		change(&c)
		configs = append(configs, c)
	}
	configs[0].Cluster.Gossip = node.Port{Number: seed, Given: true}
	var nodes []*node.Node
	for _, c := range configs {
		nodes = append(nodes, Open(t, c))
	}
	for _, n := range nodes {
		Ready(t, n)
	}
	Voters(t, nodes[0], 3)
	return nodes, configs
}

// ThreeSecured starts a cluster like ThreeWith, with the given cluster tokens. Each node has its own file with these
// tokens.
func ThreeSecured(t testing.TB, change func(*node.Config), tokens ...trust.Token) ([]*node.Node, []node.Config) {
	t.Helper()
	return ThreeWith(t, func(c *node.Config) {
		c.Security.ClusterTokenFile = TokenFile(t, "", tokens...)
		c.Security.Look = 20 * time.Millisecond
		change(c)
	})
}

// Ready waits until a node is healthy.
func Ready(t testing.TB, n *node.Node) {
	t.Helper()
	Poll(t, func() error {
		if code, body, _ := Ask(t, n, http.MethodGet, "/v1.0/healthz", ""); code != http.StatusNoContent {
			return errors.New(body)
		}
		return nil
	})
}

// Voters waits until group 0 has the wanted number of voters, as node n reports it.
func Voters(t testing.TB, n *node.Node, want int) {
	t.Helper()
	Poll(t, func() error {
		have := 0
		servers := Status(t, n).Groups[0].Servers
		for _, s := range servers {
			if s.Voter {
				have++
			}
		}
		if have != want {
			return fmt.Errorf("%d voters, want %d: %+v", have, want, servers)
		}
		return nil
	})
}

// Leader waits until one of the nodes leads group 0 and accepts writes. It returns the index of this node. Elements of
// nodes may be nil.
func Leader(t testing.TB, nodes []*node.Node) int {
	t.Helper()
	at := -1
	Poll(t, func() error {
		for i, n := range nodes {
			if n == nil {
				continue
			}
			if g := Status(t, n).Groups[0]; g.State == "leader" && g.Writes {
				at = i
				return nil
			}
		}
		return errors.New("no node leads")
	})
	return at
}

// Term returns the Raft term of group 0.
func Term(t testing.TB, n *node.Node) uint64 {
	t.Helper()
	return Status(t, n).Groups[0].Term
}

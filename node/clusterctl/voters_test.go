package clusterctl_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// settled waits until every node reports want as the wanted number of voters, and want servers that vote.
func settled(t *testing.T, nodes []*node.Node, want int) {
	t.Helper()
	for _, n := range nodes {
		nodetest.Poll(t, func() error {
			s, err := n.Admin().Voters(t.Context())
			if err != nil || s.Voters != want || len(s.Groups) != 1 || len(s.Groups[0].Voters) != want {
				return fmt.Errorf("%+v, %w", s, err)
			}
			return nil
		})
	}
}

func setVoters(t *testing.T, n *node.Node, want int) schema.VotersStatus {
	t.Helper()
	s, err := n.Admin().SetVoters(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// SetVoters overrides the setting --voters of all servers. The number survives a restore and restarts of all servers,
// even if one of them restarts with another --voters.
func TestVoters_ChangeLiveAndSurvive(t *testing.T) {
	if testing.Short() {
		t.Skip("moves votes several times")
	}
	nodes, configs := nodetest.Three(t)
	for _, id := range []string{"n4", "n5"} {
		c := nodetest.Member(t, id, 0, configs[0].Cluster.Join...)
		configs, nodes = append(configs, c), append(nodes, nodetest.Open(t, c))
		nodetest.Ready(t, nodes[len(nodes)-1])
	}
	settled(t, nodes[:3], 3)
	if s := setVoters(t, nodes[4], 5); s.Before != 3 || s.Voters != 5 {
		t.Errorf("%+v", s)
	}
	settled(t, nodes, 5)
	var backup bytes.Buffer
	if err := nodes[0].Admin().SaveBackup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		nodetest.Close(t, nodes[i])
		configs[i].Cluster.Voters = []int{3, 1, 3, 7, 3}[i]
		nodes[i] = nodetest.Open(t, configs[i])
		nodetest.Ready(t, nodes[i])
	}
	settled(t, nodes, 5)
	if s := setVoters(t, nodes[1], 3); s.Before != 5 {
		t.Errorf("%+v", s)
	}
	settled(t, nodes, 3)
	if _, err := nodes[2].Admin().RestoreBackup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	settled(t, nodes, 3)
	if s := setVoters(t, nodes[3], 3); s.Before != 3 {
		t.Errorf("the same again: %+v", s)
	}
}

func TestVoters_RefusesInvalidNumbers(t *testing.T) {
	n := nodetest.Open(t, nodetest.Config(t))
	for _, number := range []int{-1, 0, 4, 98, 100} {
		_, err := n.Admin().SetVoters(t.Context(), number)
		if !fault.Is(err, fault.Invalid) || fault.HintOf(err) == "" {
			t.Errorf("%d: %v", number, err)
		}
	}
	if s, err := n.Admin().Voters(t.Context()); err != nil || s.Voters != 3 {
		t.Errorf("%+v %v", s, err)
	}
	for _, number := range []int{1, 2, 99} {
		if s := setVoters(t, n, number); s.Voters != number {
			t.Errorf("%d: %+v", number, s)
		}
	}
}

// A sidecar can also show and set the number of voters.
func TestVoters_FromASidecar(t *testing.T) {
	nodes, configs := nodetest.Three(t)
	side := nodetest.Open(t, nodetest.Sidecar(t, "side", configs[0].Cluster.Join...))
	nodetest.Ready(t, side)
	if s := setVoters(t, side, 1); s.Voters != 1 || len(s.Groups) != 0 {
		t.Errorf("%+v", s)
	}
	settled(t, nodes, 1)
}

package clusterctl_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node/nodetest"
)

func TestTransfer_ToNamedNode(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	// Everything is repeated if another leader is elected in the meantime, as on a busy machine.
	nodetest.Poll(t, func() error {
		at := nodetest.Leader(t, nodes)
		other := (at + 1) % 3
		to := nodetest.Status(t, nodes[other]).Node.ID
		got, err := nodes[at].Admin().TransferLeader(t.Context(), 0, to)
		if want := (schema.TransferResult{From: nodetest.Status(t, nodes[at]).Node.ID, Leader: to}); err != nil ||
			got != want {
			return fmt.Errorf("%+v, %w, want %+v", got, err, want)
		}
		if now := nodetest.Leader(t, nodes); now != other {
			return fmt.Errorf("%d leads, not %d", now, other)
		}
		if again, err := nodes[other].Admin().TransferLeader(t.Context(), 0, to); err != nil || again.Leader != to {
			return fmt.Errorf("to itself: %+v, %w", again, err)
		}
		if any, err := nodes[other].Admin().TransferLeader(t.Context(), 0, ""); err != nil || any.Leader == to {
			return fmt.Errorf("to any other: %+v, %w", any, err)
		}
		return nil
	})
}

func TestTransfer_ErrorsHaveHints(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	for name, c := range map[string]struct {
		off   int // index of the called node, counted from the leader
		group uint64
		to    string
		code  fault.Code
		text  string
	}{
		"on a follower":    {1, 0, "", fault.NotLeader, "run the command on <leader>"},
		"an unknown group": {0, 1, "", fault.NotFound, "the groups are 0 to 0"},
		"an unknown node":  {0, 0, "n9", fault.NotFound, "its other voters are "},
	} {
		nodetest.Poll(t, func() error { // repeated, because another leader may be elected in between
			at := nodetest.Leader(t, nodes)
			want := strings.ReplaceAll(c.text, "<leader>", nodetest.Status(t, nodes[at]).Node.ID)
			_, err := nodes[(at+c.off)%3].Admin().TransferLeader(t.Context(), c.group, c.to)
			if !fault.Is(err, c.code) || !strings.Contains(fault.Text(err), want) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
}

func TestTransfer_SingleNode(t *testing.T) {
	n := nodetest.Open(t, nodetest.Member(t, "n1", 0))
	nodetest.Ready(t, n)
	nodetest.Poll(t, func() error {
		if s := nodetest.Status(t, n).Groups[0]; !s.Writes {
			return errors.New(s.Reason)
		}
		return nil
	})
	_, err := n.Admin().TransferLeader(t.Context(), 0, "")
	if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Text(err), "no other voter") {
		t.Errorf("%v", err)
	}
}

package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func membersOf(t testing.TB, n *node.Node) map[string]api.MemberStatus {
	t.Helper()
	list, err := n.Members(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]api.MemberStatus{}
	for _, m := range list {
		out[m.Node] = m
	}
	return out
}

func TestEveryNodeListsTheMembersAndMarksItself(t *testing.T) {
	nodes, _ := three(t)
	leader := leads(t, nodes)
	for i, n := range nodes {
		s, m := status(t, n), map[string]api.MemberStatus{}
		poll(t, func() error {
			m = membersOf(t, n)
			if total := m["n1"].Leads + m["n2"].Leads + m["n3"].Leads; len(m) != 3 || total != 1 {
				return fmt.Errorf("at %d: %+v", i, m)
			}
			return nil
		})
		own := m[s.Node.ID]
		if !own.Self || own.ServerID != s.Node.ServerID || own.Peer != s.Node.Peer || own.Gossip != s.Node.Gossip || s.Node.Gossip == "" || s.Node.Peer == "" {
			t.Errorf("own entry %+v, identity %+v", own, s.Node)
		}
		for id, one := range m {
			if one.Self != (id == s.Node.ID) || one.State != "alive" || one.Role != "server" || one.ClusterID != s.Node.ClusterID || one.Since.IsZero() || one.Version != "test" {
				t.Errorf("%s as %s sees it: %+v", id, s.Node.ID, one)
			}
		}
	}
	gone := (leader + 1) % 3
	id, watcher := status(t, nodes[gone]).Node.ID, nodes[leader]
	closeNode(t, nodes[gone])
	poll(t, func() error {
		if m := membersOf(t, watcher)[id]; m.State != "left" {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
}

func TestLeadershipIsHandedToTheNodeThatWasNamed(t *testing.T) {
	nodes, _ := three(t)
	// All of it again if a busy machine elects another leader meanwhile.
	poll(t, func() error {
		at := leads(t, nodes)
		other := (at + 1) % 3
		to := status(t, nodes[other]).Node.ID
		got, err := nodes[at].TransferLeader(t.Context(), 0, to)
		if want := (api.TransferResult{From: status(t, nodes[at]).Node.ID, Leader: to}); err != nil || got != want {
			return fmt.Errorf("%+v, %w, want %+v", got, err, want)
		}
		if now := leads(t, nodes); now != other {
			return fmt.Errorf("%d leads, not %d", now, other)
		}
		if again, err := nodes[other].TransferLeader(t.Context(), 0, to); err != nil || again.Leader != to {
			return fmt.Errorf("to itself: %+v, %w", again, err)
		}
		if any, err := nodes[other].TransferLeader(t.Context(), 0, ""); err != nil || any.Leader == to {
			return fmt.Errorf("to any other: %+v, %w", any, err)
		}
		return nil
	})
}

func TestATransferThatCannotBeSaysWhatToDo(t *testing.T) {
	nodes, _ := three(t)
	for name, c := range map[string]struct {
		off   int // so many after the leader
		group uint64
		to    string
		code  fault.Code
		text  string
	}{
		"on a follower":    {1, 0, "", fault.NotLeader, "run the command on <leader>"},
		"an unknown group": {0, 1, "", fault.NotFound, "the groups are 0 to 0"},
		"an unknown node":  {0, 0, "n9", fault.NotFound, "its other voters are "},
	} {
		poll(t, func() error { // another leader may be elected between the two questions
			at := leads(t, nodes)
			want := strings.ReplaceAll(c.text, "<leader>", status(t, nodes[at]).Node.ID)
			_, err := nodes[(at+c.off)%3].TransferLeader(t.Context(), c.group, c.to)
			if !fault.Is(err, c.code) || !strings.Contains(fault.Text(err), want) {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
}

func TestALoneNodeCannotHandLeadershipOver(t *testing.T) {
	n := open(t, member(t, "n1", 0))
	ready(t, n)
	poll(t, func() error {
		if s := status(t, n).Groups[0]; !s.Writes {
			return errors.New(s.Reason)
		}
		return nil
	})
	_, err := n.TransferLeader(t.Context(), 0, "")
	if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Text(err), "no other voter") {
		t.Errorf("%v", err)
	}
}

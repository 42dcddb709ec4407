package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// newLeaderWait bounds the wait for news of the leader to whom leadership was handed.
const newLeaderWait = 3 * time.Second

// Members lists the nodes that this one knows by gossip, itself included, by their ids.
func (n *Node) Members(context.Context) ([]api.MemberStatus, error) {
	out := []api.MemberStatus{}
	g := n.gossip.Load()
	if g == nil {
		return out, nil
	}
	roster := g.Roster()
	self := roster.Self().NodeID
	for _, m := range roster.Members() {
		out = append(out, api.MemberStatus{
			Node: m.NodeID, ServerID: m.ServerID, Role: m.Role.String(), State: m.State.String(), Since: m.Since.UTC(),
			Peer: m.PeerAddr, Gossip: m.Gossip.String(), ClusterID: m.ClusterID, Version: m.Version, Leads: m.Leads, Self: m.NodeID == self,
		})
	}
	return out, nil
}

// TransferLeader hands leadership of a group, which this node must lead, to the node with
// the id to, or, where to is empty, to the voter that is furthest ahead. It returns once a
// leader is known again, or after newLeaderWait without one.
func (n *Node) TransferLeader(ctx context.Context, id uint64, to string) (api.TransferResult, error) {
	self := n.host.Identity()
	out := api.TransferResult{Group: id, From: self.Node}
	if err := n.host.Removed(); err != nil {
		return out, err
	}
	groups := n.host.Groups()
	if n.sidecar() && id < uint64(n.host.Partitions()) {
		return out, elsewhere(id, n.host.Leader(uint32(id)))
	}
	if id >= uint64(len(groups)) {
		return out, &fault.Error{Code: fault.NotFound, Op: opTransfer, Msg: fmt.Sprintf("there is no group %d", id), Hint: fmt.Sprintf("the groups are 0 to %d", len(groups)-1)}
	}
	g := groups[id]
	if leader := string(g.Leader()); leader != self.Server {
		return out, elsewhere(id, leader)
	}
	if to == self.Node {
		n.reconciler.hold(int(id)) //nolint:gosec // bounded above
		if leader := string(g.Leader()); leader != self.Server {
			return out, elsewhere(id, leader) // it was being spread
		}
		out.Leader = self.Node
		return out, nil
	}
	servers, _ := g.Servers()
	target, err := successor(id, servers, self.Server, to)
	if err != nil {
		return out, err
	}
	n.announceHold(ctx, id, servers, target)
	if err := g.Transfer(ctx, target); err != nil {
		return out, err
	}
	out.Leader = placement.NodeOf(string(newLeader(ctx, g, raft.ServerID(self.Server))))
	n.log.Info("leadership handed over as an operator asked", "group", id, "to", out.Leader)
	return out, nil
}

const opTransfer = "node.TransferLeader"

// elsewhere says where leadership can be handed over.
func elsewhere(id uint64, leader string) error {
	if leader == "" {
		return &fault.Error{Code: fault.Unavailable, Op: opTransfer, Msg: fmt.Sprintf("group %d has no leader that this node knows of", id),
			Hint: "see quorate status; when a majority of its voters runs they elect one"}
	}
	node := placement.NodeOf(leader)
	return &fault.Error{Code: fault.NotLeader, Op: opTransfer, Msg: fmt.Sprintf("group %d is led by %s, not by this node", id, node), Hint: "run the command on " + node}
}

// successor finds the server of the node to, which must be a voter; empty leaves the choice
// to the group, which must have another voter.
func successor(id uint64, servers []raft.Server, self, to string) (raft.ServerID, error) {
	var others []string
	for _, s := range servers {
		node := placement.NodeOf(string(s.ID))
		switch voter := s.Suffrage == raft.Voter; {
		case string(s.ID) == self:
		case voter && node == to:
			return s.ID, nil
		case voter:
			others = append(others, node)
		case node == to:
			return "", &fault.Error{Code: fault.Conflict, Op: opTransfer, Msg: fmt.Sprintf("%s is a replica of group %d, and only a voter can lead", to, id),
				Hint: "quorate status on this node says why it does not vote"}
		}
	}
	slices.Sort(others)
	switch {
	case len(others) == 0:
		return "", &fault.Error{Code: fault.Conflict, Op: opTransfer, Msg: fmt.Sprintf("group %d has no other voter", id), Hint: "let more servers join, and wait until they vote"}
	case to != "":
		return "", &fault.Error{Code: fault.NotFound, Op: opTransfer, Msg: fmt.Sprintf("%s is no server of group %d", to, id), Hint: "its other voters are " + strings.Join(others, ", ")}
	}
	return "", nil
}

// newLeader waits until another server than old is known to lead; empty if that takes
// longer than it should.
func newLeader(ctx context.Context, g *group.Group, old raft.ServerID) raft.ServerID {
	ctx, cancel := context.WithTimeout(ctx, newLeaderWait)
	defer cancel()
	for {
		if leader := g.Leader(); leader != "" && leader != old {
			return leader
		}
		if ctx.Err() != nil {
			return ""
		}
		g.WaitChange(ctx, 20*time.Millisecond)
	}
}

package clusterctl

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// newLeaderWait is the maximum wait for the new leader after a transfer.
const newLeaderWait = 3 * time.Second

// TransferLeader transfers leadership of a group to a server of the given node. If nodeID is empty, it chooses a voter
// whose log is nearly up to date, preferably one with a good disk. It then waits for the new leader, but no longer than
// newLeaderWait. Besides the errors of group.Group.Transfer, it returns:
//
//	not_leader   another node leads the group
//	unavailable  no leader is known
//	not_found    the group does not exist, or the node has no server in it
//	conflict     the server of the node is a non-voter, or its disk is nearly full
//	conflict     there is no other voter, or none is up to date
func (ctl *Controller) TransferLeader(ctx context.Context, id uint64, nodeID string) (schema.TransferResult, error) {
	self := ctl.host.Identity()
	out := schema.TransferResult{Group: id, From: self.Node}
	if err := ctl.host.Removed(); err != nil {
		return out, err
	}
	groups := ctl.host.Groups()
	if ctl.opts.Sidecar && id < uint64(ctl.host.Partitions()) {
		return out, ctl.elsewhere(opTransfer, id, ctl.host.Leader(uint32(id)))
	}
	if id >= uint64(len(groups)) {
		return out, &fault.Error{Code: fault.NotFound, Op: opTransfer, Msg: fmt.Sprintf("there is no group %d", id),
			Hint: fmt.Sprintf("the groups are 0 to %d", len(groups)-1)}
	}
	g := groups[id]
	if leader := string(g.Leader()); leader != self.Server {
		return out, ctl.elsewhere(opTransfer, id, leader)
	}
	if nodeID == self.Node {
		ctl.reconciler.choose(int(id)) //nolint:gosec // bounded above
		if leader := string(g.Leader()); leader != self.Server {
			return out, ctl.elsewhere(opTransfer, id, leader) // spread has just transferred it
		}
		out.Leader = self.Node
		return out, nil
	}
	servers, _ := g.Servers()
	target, err := successor(id, servers, self.Server, nodeID)
	if err != nil {
		return out, err
	}
	if target == "" {
		target = ctl.reconciler.heir(uint32(id)) //nolint:gosec // bounded above
	}
	if ctl.diskLow(string(target)) {
		return out, &fault.Error{Code: fault.Conflict, Op: opTransfer,
			Msg:  fmt.Sprintf("%s does not lead: its disk is nearly full", placement.NodeOf(string(target))),
			Hint: "free space there, or name another node"}
	}
	ctl.announceChoice(ctx, id, servers, target)
	if err := g.Transfer(ctx, target); err != nil {
		return out, err
	}
	out.Leader = placement.NodeOf(string(newLeader(ctx, g, raft.ServerID(self.Server))))
	ctl.log.Info("leadership transferred on request", "group", id, "to", out.Leader)
	return out, nil
}

// diskLow reports whether the disk of a server is nearly full.
func (ctl *Controller) diskLow(server string) bool {
	for _, m := range ctl.net.Gossip().Roster().Alive() {
		if m.ServerID == server {
			return m.DiskLow
		}
	}
	return false
}

const opTransfer = "node.TransferLeader"

// elsewhere returns the error for a request that only the leader of a group can serve: fault.NotLeader with the node id
// of the leader. The leader is given by its server id.
//
// If leader is empty, no leader is known. The error is then that of Host.Ready, or fault.Unavailable if Ready returns
// none.
func (ctl *Controller) elsewhere(op string, id uint64, leader string) error {
	if leader == "" {
		if why := ctl.host.Ready(uint32(id)); why != nil { //nolint:gosec // bounded by the caller
			return why
		}
		return &fault.Error{Code: fault.Unavailable, Op: op,
			Msg:  fmt.Sprintf("group %d has no leader that this node knows of", id),
			Hint: "see quorate status; a leader is elected as soon as a majority of the voters runs"}
	}
	node := placement.NodeOf(leader)
	return &fault.Error{Code: fault.NotLeader, Op: op, Key: node,
		Msg: fmt.Sprintf("group %d is led by %s, not by this node", id, node), Hint: "run the command on " + node}
}

// successor returns the voter on the given node, to which leadership of the group is transferred. The parameter self is
// the present leader. If nodeID is empty, successor returns "", and the caller chooses a voter. It returns an error if
// the node has no voter other than self, or if self is the only voter of the group.
func successor(id uint64, servers []raft.Server, self, nodeID string) (raft.ServerID, error) {
	var others []string
	for _, s := range servers {
		node := placement.NodeOf(string(s.ID))
		switch voter := s.Suffrage == raft.Voter; {
		case string(s.ID) == self:
		case voter && node == nodeID:
			return s.ID, nil
		case voter:
			others = append(others, node)
		case node == nodeID:
			return "", &fault.Error{Code: fault.Conflict, Op: opTransfer,
				Msg:  fmt.Sprintf("%s is a non-voter of group %d, and only a voter can lead", nodeID, id),
				Hint: "quorate status on this node shows why it does not vote"}
		}
	}
	slices.Sort(others)
	switch {
	case len(others) == 0:
		return "", &fault.Error{Code: fault.Conflict, Op: opTransfer,
			Msg:  fmt.Sprintf("group %d has no other voter", id),
			Hint: "let more servers join, and wait until they vote"}
	case nodeID != "":
		return "", &fault.Error{Code: fault.NotFound, Op: opTransfer,
			Msg: fmt.Sprintf("%s is not a server of group %d", nodeID, id), Hint: "its other voters are " +
				strings.Join(others, ", ")}
	}
	return "", nil
}

// newLeader waits until the group has a known leader other than old, and returns the id of this leader. It returns ""
// if newLeaderWait passes or ctx ends first.
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

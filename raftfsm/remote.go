package raftfsm

import (
	"context"
	"slices"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/peercalls"
)

func errNoLeader(op string, id uint32) error {
	return fault.New(fault.NotLeader, op, "no server is known to lead group "+utoa(id))
}

// Progress returns how far the replica of another server is in the group with the given id, as that server reports it.
// It returns the errors of Peers.Call.
func (h *Host) Progress(ctx context.Context, server string, id uint32) (peercalls.Progress, error) {
	return peercalls.AskProgress(ctx, h.opts.Peers, server, id)
}

// FindLeader requests the id of the leader of a group from the given servers, and returns the answer. It skips this
// server if it is among them. It returns "" if no server reports a leader within a second.
//
// FindLeader is for a node that is no longer a member, because the replica of such a node does not learn of new
// leaders.
func (h *Host) FindLeader(ctx context.Context, gid uint32, servers []string) string {
	isSelf := func(server string) bool { return server == h.Identity().Server }
	return peercalls.FindLeader(ctx, h.opts.Peers, gid, slices.DeleteFunc(slices.Clone(servers), isSelf))
}

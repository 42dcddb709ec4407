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

// Progress asks another server about its replica of the group with the given id. It returns the errors of
// Peers.Call.
func (h *Host) Progress(ctx context.Context, server string, id uint32) (peercalls.Progress, error) {
	return peercalls.AskProgress(ctx, h.opts.Peers, server, id)
}

// FindLeader asks the given servers, but not this one, which server leads a group, and returns the id of the leader.
// It returns "" if no server reports a leader within a second. Use it on a node that is no longer a member, because
// the replica of such a node does not learn of leaders.
func (h *Host) FindLeader(ctx context.Context, gid uint32, servers []string) string {
	isSelf := func(server string) bool { return server == h.Identity().Server }
	return peercalls.FindLeader(ctx, h.opts.Peers, gid, slices.DeleteFunc(slices.Clone(servers), isSelf))
}

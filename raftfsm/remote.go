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

// Progress returns the progress of another server's replica of a group, as that server reports it. The parameter id is
// the id of the group. The errors are those of Peers.Call.
func (h *Host) Progress(ctx context.Context, server string, id uint32) (peercalls.Progress, error) {
	return peercalls.AskProgress(ctx, h.opts.Peers, server, id)
}

// FindLeader queries the given servers, except this one, for the leader of a group, and returns the leader's id. It
// returns "" if no server reports a leader within a second.
//
// FindLeader is for a node that is no longer a member and whose replica therefore does not learn of new leaders.
func (h *Host) FindLeader(ctx context.Context, gid uint32, servers []string) string {
	isSelf := func(server string) bool { return server == h.Identity().Server }
	return peercalls.FindLeader(ctx, h.opts.Peers, gid, slices.DeleteFunc(slices.Clone(servers), isSelf))
}

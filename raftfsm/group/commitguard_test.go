package group

import (
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/transport"
)

// early returns a cluster whose isolated server c has three entries of a deposed leader in its log. It has sent c an
// append whose commit index is above the last entry that the leader has compared. A leader may send such an append,
// because it reads the end of its log first and the commit index later. early also returns the group of c, and the
// index of the last entry that c and the leader share.
func early(t *testing.T, without func(*Group, *raft.Config)) (*cluster, *Group, uint64) {
	t.Helper()
	var shared raft.Log
	c, old, lead := deposed(t, func(o *Options) { o.without = without })
	last, err := old.disk.logs.LastIndex()
	must(t, err)
	must(t, old.disk.logs.GetLog(last, &shared))
	lose(t, old, last+3)
	for lead.raft.CommitIndex() < last+3 {
		put(t, lead, "k", "v2")
	}
	req := &raft.AppendEntriesRequest{
		RPCHeader: header(lead.opts.ServerID), Term: lead.Term(),
		PrevLogEntry: last, PrevLogTerm: shared.Term, LeaderCommitIndex: lead.raft.CommitIndex(),
	}
	var resp raft.AppendEntriesResponse
	must(t, stranger(c).AppendEntries("c", "c", req, &resp))
	if !resp.Success {
		t.Fatalf("refused: %+v", resp)
	}
	return c, old, last
}

// A follower must not consider entries of a deposed leader at the end of its log committed.
func TestCommitGuard_IgnoresEntriesOfDeposedLeader(t *testing.T) {
	t.Parallel()
	c, follower, last := early(t, nil)
	if got := follower.raft.CommitIndex(); got > last {
		t.Errorf("the follower considers entries up to %d committed; the leader sent entries only up to %d", got, last)
	}
	c.heal()
	c.put("k", "v3")
	c.converge()
	for id, g := range c.running() {
		if got := peekValue(t, g, "k"); got != "v3" {
			t.Errorf("%s: k = %q", id, got)
		}
	}
}

func TestHazard_FollowerCommitsEntriesOfDeposedLeader(t *testing.T) {
	_, follower, last := early(t, func(g *Group, _ *raft.Config) {
		g.guard.SwitchOff(transport.Off{CommitIndex: true})
	})
	if got := follower.raft.CommitIndex(); got != last+3 {
		t.Errorf("commit index %d: the hazard does not show", got)
	}
	until(t, "the deposed leader's entries are not applied", func() bool {
		return peekValue(t, follower, "k") == "of a deposed leader"
	})
}

package group

import (
	"testing"

	"github.com/hashicorp/raft"
)

// early is a cluster whose server c, cut off, has three entries of a deposed leader in its
// log, and is then sent what the new leader may send: a commit index above the entries it
// comes with, for the leader read the end of its log before and the commit index after
// others had confirmed more. It returns the last entry that c and the leader share.
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

// A follower whose log goes on with entries of a deposed leader must not take those for
// committed.
func TestOnlyEntriesThatTheLeaderVouchesForAreCommitted(t *testing.T) {
	c, follower, last := early(t, nil)
	if got := follower.raft.CommitIndex(); got > last {
		t.Errorf("the follower takes entries up to %d for committed, its leader has vouched for %d", got, last)
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

func TestWithoutTheGuardAFollowerCommitsWhatItsLeaderNeverHad(t *testing.T) {
	_, follower, last := early(t, func(g *Group, _ *raft.Config) {
		g.guard.vouch = func(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest { return r }
	})
	if got := follower.raft.CommitIndex(); got != last+3 {
		t.Errorf("commit index %d: the test of the guard shows nothing", got)
	}
	until(t, "the deposed leader's entries are not applied", func() bool { return peekValue(t, follower, "k") == "of a deposed leader" })
}

package group

import (
	"errors"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/raftlog"
)

// compacted writes until no server has the entry at index in its log.
func (c *cluster) compacted(index uint64) {
	c.t.Helper()
	for range 10 {
		c.put("k", "more")
	}
	c.converge()
	for id, g := range c.running() {
		must(c.t, g.Snapshot())
		until(c.t, string(id)+" keeps the entry", func() bool {
			return errors.Is(g.disk.logs.GetLog(index, &raft.Log{}), raft.ErrLogNotFound)
		})
	}
}

// A session token may be much older than the log, and be many terms old.
func TestHolds_AnswersForCompactedTerms(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		c, old, lead := deposed(t, func(o *Options) { manual(o); o.Engine = e })
		kept, err := lead.ProposeRequest(limited(t), setRequest("kept", "v"), Durable)
		must(t, err)
		lost, err := old.ProposeRequest(limited(t), setRequest("lost", "v"), Durable)
		must(t, err)
		c.heal()
		c.converge()
		for _, to := range []raft.ServerID{"a", "b", "c", "a"} { // more terms
			c.transfer(to)
			c.put("k", "v", to)
		}
		c.compacted(max(kept.Index, lost.Index))
		check := func(when string) {
			t.Helper()
			for id, g := range c.running() {
				if g.disk.snaps.Position().Term <= kept.Term {
					t.Fatal("no later term: the test shows nothing")
				}
				if got := g.Holds(kept.Position); got != Held {
					t.Errorf("%s, %s: Holds of a surviving write: %d", when, id, got)
				}
				if got := g.Holds(lost.Position); got != Lost {
					t.Errorf("%s, %s: Holds of a lost write: %d", when, id, got)
				}
			}
		}
		check("compacted")
		for _, id := range testIDs {
			c.stop(id)
			c.start(id)
		}
		c.leader(testIDs...)
		check("opened again")
	})
}

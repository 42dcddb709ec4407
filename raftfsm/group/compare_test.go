package group

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/integrity"
)

// compareNow compares at the leader, and returns the reports by server.
func (d *doubting) compareNow(t *testing.T) (c integrity.Comparison, reports map[raft.ServerID]integrity.Answer) {
	t.Helper()
	eventually(t, func() error {
		_, lead := d.leader(testIDs...)
		var err error
		c, err = lead.Compare(limited(t))
		return err
	})
	reports = map[raft.ServerID]integrity.Answer{}
	for _, a := range c.Answers {
		reports[a.Server.ID] = a
	}
	return c, reports
}

func TestCompare_ShowsWhetherServersHaveTheSameState(t *testing.T) {
	t.Parallel()
	d := newDoubting(t, nil)
	d.supply.Store(false) // a wrong state is not replaced
	d.put("a", "1")
	id, _ := d.leader(testIDs...)
	_, err := d.group(others(id)[0]).Compare(limited(t))
	wantCode(t, err, fault.NotLeader)

	c, reports := d.compareNow(t)
	right, found := c.Majority()
	if !found || len(reports) != len(testIDs) {
		t.Fatalf("%d servers, majority %t", len(reports), found)
	}
	for server, a := range reports {
		if a.Err != nil || !a.Report.Marked || a.Report.Digest != right {
			t.Errorf("%s: %+v", server, a)
		}
	}
	if again, _ := d.compareNow(t); again.Index < c.Index {
		t.Errorf("compared at %d, and then at %d", c.Index, again.Index)
	}

	id, _ = d.leader(testIDs...)
	bad, away := others(id)[0], others(id)[1]
	d.spoil(bad, "k")
	c, reports = d.compareNow(t)
	if right, found = c.Majority(); !found {
		t.Fatal("no majority")
	}
	if a := reports[bad]; !a.Report.Doubted && (!a.Report.Marked || a.Report.Digest == right) {
		t.Errorf("the wrong state is not shown: %+v", a)
	}
	if a := reports[away]; !a.Report.Marked || a.Report.Digest != right {
		t.Errorf("a right state: %+v", a)
	}
	d.supply.Store(true)
	soon(t, "the state was not replaced", func() bool { return d.group(bad).Doubt() == nil })

	d.stop(away)
	if _, reports = d.compareNow(t); reports[away].Err == nil {
		t.Errorf("a server that does not run: %+v", reports[away])
	}
}

func TestLeaders_AreRememberedByEveryServer(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	c := newCluster(t, nil)
	first, lead := c.leader(testIDs...)
	c.put("a", "1")
	for range keepLeaders + 2 {
		_, lead = c.leader(testIDs...)
		_ = lead.Transfer(limited(t), "") // another transfer may be under way
		c.put("a", "1")
	}
	for id, g := range c.running() {
		until(t, "the server has heard of the leader", func() bool {
			_, lead = c.leader(testIDs...)
			list := g.Leaders()
			return len(list) > 0 && list[len(list)-1].Leader == lead.opts.ServerID
		})
		list := g.Leaders()
		if len(list) < 2 || len(list) > keepLeaders {
			t.Errorf("%s remembers %d leaders, the first was %s", id, len(list), first)
		}
		for i, l := range list {
			if l.At.Before(begun) || l.Leader == "" || i > 0 && l.Term <= list[i-1].Term {
				t.Errorf("%s: %+v", id, list)
			}
		}
	}
}

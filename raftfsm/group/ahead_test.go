package group

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/testutil"
)

// Rule 1 of raftlog.unsynced: no leader commits an entry before its own disk has it. The leader's disk hangs while it
// writes an entry. The other servers store and acknowledge the entry. Without the guard, the entry is then committed.
func TestLeader_CommitsNothingMissingOnItsOwnDisk(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	for name, off := range map[string]bool{"with the guard": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, simBreak{early: off}, func(t *testing.T, s *sim, id raft.ServerID, lead *Group) {
				s.hanging(t, id, lead, off)
			})
		})
	}
}

func (s *sim) hanging(t *testing.T, id raft.ServerID, lead *Group, off bool) {
	before := lead.LastIndex()
	s.hangs(id, true)
	answered := make(chan error, 1)
	go func() {
		_, err := lead.ProposeRequest(context.Background(), setRequest("k", "v"), Committed)
		answered <- err
	}()
	after(100 * time.Millisecond) // virtual time, far below Timing.Stall; all messages have arrived by then
	for _, l := range s.alive() {
		if l.group.LastIndex() <= before {
			t.Errorf("%s did not receive the entry while the leader's disk was writing it", l.wire.id)
		}
	}
	if committed := lead.raft.CommitIndex() > before; committed != off {
		t.Errorf("committed before the leader's disk held it: %t", committed)
	}
	s.hangs(id, false)
	must(t, <-answered)
}

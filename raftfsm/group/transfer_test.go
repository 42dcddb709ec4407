package group

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// inCluster runs f in virtual time with a cluster of three voters. No message is late unless f arranges it.
func inCluster(t *testing.T, b simBreak, f func(t *testing.T, s *sim, id raft.ServerID, lead *Group)) {
	t.Helper()
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	inSim(t, newSim(1, b), f)
}

func inSim(t *testing.T, s *sim, f func(t *testing.T, s *sim, id raft.ServerID, lead *Group)) {
	t.Helper()
	s.net.calm = true
	synctest.Test(t, func(t *testing.T) {
		s.begun = time.Now()
		defer func() { s.work.Wait(); s.net.work.Wait(); after(time.Minute) }()
		for range 3 {
			s.start(s.add())
		}
		defer func() {
			for _, id := range s.ids() {
				s.hangs(id, false)
				s.stop(id)
			}
		}()
		if s.within(simBound, "forming the cluster", s.admit) {
			after(time.Second)
			id, lead := s.leader()
			f(t, s, id, lead)
		}
	})
	must(t, s.failed())
}

// others returns all servers except id.
func (s *sim) others(id raft.ServerID) []raft.ServerID {
	return slices.DeleteFunc(s.ids(), func(o raft.ServerID) bool { return o == id })
}

// Raft's own transfer to a voter that does not answer leaves a request behind each time. Sooner or later the
// leader then refuses all writes.
func TestTransfer_FailureLeavesWorkingLeader(t *testing.T) {
	inCluster(t, simBreak{}, func(t *testing.T, s *sim, id raft.ServerID, lead *Group) {
		other := s.others(id)[0]
		s.cut(func(from, to raft.ServerID) bool { return from == other || to == other })
		put(t, lead, "k", "what the other one has not got")
		for range 3 {
			wantCode(t, lead.Transfer(context.Background(), other), fault.Conflict)
			put(t, lead, "k", "goes on")
		}
		if lead.raft.State() != raft.Leader {
			t.Error("the leader stepped down")
		}
		s.net.heal()
		s.within(simBound, "a later transfer", func() error { return lead.Transfer(context.Background(), other) })
		l, _ := s.life(other)
		s.within(simBound, "the chosen voter leads", func() error {
			_, err := l.group.ProposeRequest(context.Background(), setRequest("k", "led"), Committed)
			return err
		})
	})
}

// Raft's own transfer would choose a non-voter as well.
func TestTransfer_ChoosesOnlyVoters(t *testing.T) {
	inCluster(t, simBreak{}, func(t *testing.T, s *sim, id raft.ServerID, lead *Group) {
		other := s.others(id)[0]
		_, index := lead.Servers()
		must(t, lead.Demote(limited(t), other, index))
		for _, to := range []raft.ServerID{other, id, "nobody"} {
			wantCode(t, lead.Transfer(limited(t), to), fault.Conflict)
		}
		put(t, lead, "k", "goes on")
	})
}

// Transfer chooses only a voter that has every entry.
func TestTransfer_ChoosesVoterWithEveryEntry(t *testing.T) {
	inCluster(t, simBreak{}, func(t *testing.T, s *sim, id raft.ServerID, lead *Group) {
		others := s.others(id)
		s.cut(func(from, to raft.ServerID) bool { return from == others[0] || to == others[0] })
		put(t, lead, "k", "v")
		must(t, lead.Transfer(context.Background(), ""))
		s.within(simBound, "a leader", func() error {
			l, _ := s.life(others[1])
			_, err := l.group.ProposeRequest(context.Background(), setRequest("k", "led"), Committed)
			return err
		})
	})
}

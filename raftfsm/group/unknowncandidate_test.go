package group

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/testutil"
)

// One server of three is cut off while a new server joins and becomes the leader, and the other two are removed. The
// new configuration needs the vote of the server that was cut off. That server does not know the new server, so raft
// alone would never give its vote.
func TestElection_UnknownCandidateGetsVote(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	for name, off := range map[string]bool{"with the guard": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, simBreak{unknown: off}, func(t *testing.T, s *sim, id raft.ServerID, lead *Group) {
				behind, third := s.others(id)[0], s.others(id)[1]
				newcomer := s.add()
				s.start(newcomer)
				s.cut(func(from, to raft.ServerID) bool { return from == behind || to == behind })
				must(t, lead.AddNonvoter(limited(t), newcomer, 0))
				must(t, lead.Promote(limited(t), newcomer, 0))
				must(t, lead.Transfer(limited(t), newcomer))
				l, _ := s.life(newcomer)
				s.within(simBound, "the new server leads", func() error {
					if !l.group.Leading() {
						return errors.New("not yet")
					}
					return nil
				})
				must(t, l.group.Remove(limited(t), id, 0))
				short, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer cancel()
				_ = l.group.Remove(short, third, 0) // only the new server has this change in its log

				for _, one := range []raft.ServerID{newcomer, behind, id, third} {
					s.crash(one)
				}
				s.net.heal()
				for _, one := range []raft.ServerID{newcomer, behind} {
					s.start(one)
				}
				elected := func() bool {
					_, g := s.leader()
					return g != nil
				}
				for limit := time.Now().Add(20 * time.Second); !elected() && time.Now().Before(limit); {
					after(50 * time.Millisecond)
				}
				if elected() == off {
					t.Errorf("a server leads: %t", elected())
				}
			})
		})
	}
}

package group

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// Under load, installing a state takes longer than it takes until the leader truncates the entries after that state.
// Without the guard, the follower receives one state after the other.
func TestRetain_SendsStateOnceUnderLoad(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	t.Parallel()
	for name, off := range map[string]bool{"with the guard": false, "without": true} {
		t.Run(name, func(t *testing.T) {
			s := newSim(1, simBreak{})
			s.forget = off
			inSim(t, s, func(t *testing.T, s *sim, id raft.ServerID, lead *Group) {
				other := s.others(id)[0]
				s.install = 3 * time.Second // time for 150 entries; only 10 are kept after a snapshot
				stop, done := make(chan struct{}), make(chan struct{})
				go func() {
					defer close(done)
					for {
						select {
						case <-stop:
							return
						case <-time.After(20 * time.Millisecond):
							put(t, lead, "k", "v")
						}
					}
				}()
				s.cut(func(from, to raft.ServerID) bool { return from == other || to == other })
				after(4 * time.Second)
				s.net.heal()
				l, _ := s.life(other)
				caught := func() bool { return l.group.raft.AppliedIndex()+10 > lead.raft.AppliedIndex() }
				for limit := time.Now().Add(30 * time.Second); !caught() && time.Now().Before(limit); {
					after(50 * time.Millisecond)
				}
				if caught() == off {
					t.Errorf("caught up within 30 s: %t, after %d states", caught(), s.totals.Installs)
				}
				if !off && s.totals.Installs > 2 {
					t.Errorf("%d states were sent", s.totals.Installs)
				}
				if !off {
					s.within(simBound, "trimming the log again", func() error {
						if lead.disk.logs.Retained().Oldest() != 0 {
							return errors.New("entries are kept for a follower that has caught up")
						}
						return nil
					})
				}
				close(stop)
				<-done
			})
		})
	}
}

// A change based on an older configuration is refused.
func TestChange_RefusesOlderConfiguration(t *testing.T) {
	inCluster(t, simBreak{}, func(t *testing.T, s *sim, id raft.ServerID, lead *Group) {
		others := s.others(id)
		_, before := lead.Servers()
		must(t, lead.Demote(limited(t), others[0], before))
		_, now := lead.Servers()
		if before == 0 || now <= before {
			t.Fatalf("the configuration's index was %d and is %d", before, now)
		}
		if err := lead.Demote(limited(t), others[1], before); !fault.Is(err, fault.Conflict) {
			t.Errorf("on the older configuration: %v", err)
		}
		must(t, lead.Promote(limited(t), others[0], now))
		_, now = lead.Servers()
		must(t, lead.Snapshot())
		s.stop(id) // the index must be the same after a restart
		s.start(id)
		l, _ := s.life(id)
		if _, index := l.group.Servers(); index != now {
			t.Errorf("after a restart on a snapshot the configuration's index is %d, not %d", index, now)
		}
	})
}

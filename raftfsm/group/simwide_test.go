package group

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/placement"
)

// wide has many partitions on the same servers, with one simulated cluster per partition.
type wide struct {
	parts []*sim
	size  int
}

const (
	wideParts   = 64
	wideServers = 5
)

// each runs f for all partitions concurrently.
func (w *wide) each(f func(i int, s *sim)) {
	var wg sync.WaitGroup
	for i, s := range w.parts {
		wg.Go(func() { f(i, s) })
	}
	wg.Wait()
}

func (w *wide) failed() error {
	for i, s := range w.parts {
		if err := s.failed(); err != nil {
			return fmt.Errorf("partition %d: %w", i, err)
		}
	}
	return nil
}

// within polls until check succeeds, for at most simBound of virtual time, and returns how long this took.
func (w *wide) within(what string, check func() error) time.Duration {
	begun := time.Now()
	w.parts[0].within(simBound, what, func() error {
		if err := w.failed(); err != nil {
			w.parts[0].fail("%w", err)
			return err
		}
		return check()
	})
	return time.Since(begun)
}

// leaders counts how many partitions each server leads.
func (w *wide) leaders() map[raft.ServerID]int {
	out := map[raft.ServerID]int{}
	for _, s := range w.parts {
		if id, g := s.leader(); g != nil {
			out[id]++
		}
	}
	return out
}

// spread runs one round of the product's placement policy, as the leaders of a cluster do. It returns an error until
// the leaders are spread as evenly as possible.
func (w *wide) spread() error {
	now, inputs := time.Now(), []placement.Input{}
	for i, s := range w.parts {
		lead, _ := s.leader()
		in := placement.Input{Group: uint32(i), //nolint:gosec // at most 64
			Voters: wideServers, Leader: string(lead), Now: now, Watching: now.Add(-time.Hour)}
		alive := s.alive()
		for _, id := range s.ids() {
			_, up := alive[id]
			state := placement.Failed
			if up {
				state = placement.Alive
			}
			in.Servers = append(in.Servers, placement.Server{ID: string(id), Voter: true, LagKnown: up,
				SteadySince: now.Add(-time.Minute)})
			in.Members = append(in.Members, placement.Member{Node: string(id), Server: string(id), State: state,
				Since: now})
		}
		inputs = append(inputs, in)
	}
	moves := placement.Leaders(inputs...)
	var wg sync.WaitGroup
	for _, m := range moves {
		wg.Go(func() {
			if l, ok := w.parts[m.Group].life(raft.ServerID(m.From)); ok {
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				defer cancel()
				_ = l.group.Transfer(ctx, raft.ServerID(m.To)) // on an error the next round retries
			}
		})
	}
	wg.Wait()
	if len(moves) > 0 {
		return fmt.Errorf("leaders are still moving: %v", w.leaders())
	}
	return w.led()
}

// led returns an error if a partition has no leader that is ready to serve requests.
func (w *wide) led() error {
	for i, s := range w.parts {
		if _, g := s.leader(); g == nil {
			return fmt.Errorf("partition %d has no leader", i)
		}
	}
	return nil
}

// save writes a key in every partition, and reads it linearizably.
func (w *wide) save(what, value string) {
	w.each(func(_ int, s *sim) {
		s.within(simBound, what, func() error {
			_, g := s.leader()
			if g == nil {
				return raft.ErrNotLeader
			}
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			a, err := g.ProposeRequest(ctx, setRequest("k", value), Committed)
			if err != nil {
				return err
			}
			if a.Result.Outcome != kv.Applied {
				return fmt.Errorf("%s", a.Result.Outcome)
			}
			got, err := read(ctx, g, "k")
			if err == nil && got != value {
				s.fail("%s: read %q after %q was written", what, got, value)
			}
			return err
		})
	})
}

func (w *wide) even(t *testing.T, servers int) {
	t.Helper()
	leaders, most, least := w.leaders(), 0, wideParts
	for _, n := range leaders {
		most, least = max(most, n), min(least, n)
	}
	t.Logf("%d partitions are led by %v", wideParts, leaders)
	if len(leaders) != servers || most > least+1 {
		w.parts[0].fail("leaders are not spread over %d servers: %v", servers, leaders)
	}
}

// Raft, Pebble and the placement policy are the product's. Package node, which decides when the policy runs on
// which server, is not part of this test.
func TestSimulation_SixtyFourPartitionsSurviveServerLoss(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	if testing.Short() {
		t.Skip("simulates whole clusters")
	}
	cache := pebble.NewCache(32 << 20)
	defer cache.Unref()
	w := &wide{size: wideServers}
	seed, start := uint64(1), time.Now()
	for i := range wideParts {
		s := newSim(seed+uint64(i), simBreak{})
		s.cache = cache
		s.timing = Timing{Heartbeat: 3 * time.Second, Election: 3 * time.Second, Commit: 200 * time.Millisecond,
			SnapshotPoll: 5 * time.Second, ExpiryEvery: 5 * time.Second}
		w.parts = append(w.parts, s)
	}
	var virtual time.Duration
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		w.play(t)
		virtual = time.Since(begun)
	})
	if err := w.failed(); err != nil {
		t.Error(err)
	}
	t.Logf("%s of virtual time in %s", virtual.Round(time.Second), time.Since(start).Round(time.Millisecond))
}

func (w *wide) play(t *testing.T) {
	t.Helper()
	w.each(func(_ int, s *sim) {
		s.begun = time.Now()
		for range w.size {
			s.start(s.add())
		}
		s.within(simBound, "forming", s.admit)
	})
	if w.failed() == nil {
		w.save("a write after forming", "formed")
		took := w.within("leaders are spread", w.spread)
		w.even(t, w.size)
		t.Logf("spread within %s; %d goroutines for %d replicas", took.Round(time.Millisecond), runtime.NumGoroutine(),
			w.size*wideParts)

		const lost = "s2"
		w.each(func(_ int, s *sim) { s.crash(lost) })
		begun := time.Now()
		w.save("a write after the loss of a server", "lost")
		t.Logf("all partitions write %s after a server was lost", time.Since(begun).Round(time.Millisecond))
		w.within("leaders are spread over those that are left", w.spread)
		w.even(t, w.size-1)

		w.each(func(_ int, s *sim) { s.start(lost) })
		w.within("leaders are spread over all again", w.spread)
		w.even(t, w.size)
		w.save("a write in the end", "whole")
		w.within("equal states", func() error {
			for _, s := range w.parts {
				if err := s.equal(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	w.each(func(_ int, s *sim) {
		for _, id := range s.ids() {
			s.stop(id)
		}
		s.work.Wait()
		s.net.work.Wait()
	})
	after(time.Minute)
}

package raftfsm_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/locks"
)

// grantSeen is a lock that a client was granted. Times are since the start of the schedule.
type grantSeen struct {
	name     string
	token    uint64
	sent     time.Duration // when it was requested
	answered time.Duration
	until    time.Duration // the lock must not expire before this time
	given    time.Duration // when its release was requested; 0 = never
}

// lockSim plays clients of locks and watches on the hosts of the product, in virtual time, while the network is cut
// and restored. It checks these invariants:
//
//  1. No lock is granted before the earlier grant was released or has expired. The expiry of a grant counts from the
//     moment of its request.
//  2. Every grant of a lock has a greater token than those that were answered before it was requested.
//  3. A watch at each server has every acknowledged strong write of its prefix once and in order.
type lockSim struct {
	t     *testing.T
	hosts []*raftfsm.Host
	begun time.Time

	mu      sync.Mutex // guards the fields below
	granted []*grantSeen
	written []string // acknowledged, in order
}

func (s *lockSim) now() time.Duration { return time.Since(s.begun) }

// own acquires locks, renews and releases them, or forgets them.
func (s *lockSim) own(ctx context.Context, id int, rnd *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		locks := s.hosts[rnd.IntN(3)].Store("", "s").Locks("lockstore", false)
		c := claimOf(fmt.Sprint("r", rnd.IntN(2)), fmt.Sprintf("owner-%d-%d", id, n),
			time.Duration(1+rnd.IntN(3))*time.Second)
		c.Wait = time.Duration(rnd.IntN(5)) * time.Second
		limit, cancel := context.WithTimeout(ctx, 20*time.Second)
		sent := s.now()
		g, err := locks.TryLock(limit, c)
		if err == nil && g.Granted {
			one := &grantSeen{name: c.Key.Resource, token: g.Token, sent: sent, answered: s.now(),
				until: sent + c.Expiry}
			if c.Wait > 0 {
				one.until = 0 // it may have been granted long before the answer
			}
			s.hold(limit, rnd, locks, c, one)
		}
		cancel()
		pauseFor(ctx, time.Duration(rnd.IntN(500))*time.Millisecond)
	}
}

func (s *lockSim) hold(ctx context.Context, rnd *rand.Rand, locks *locks.Store, c lock.Claim, one *grantSeen) {
	s.mu.Lock()
	s.granted = append(s.granted, one)
	s.mu.Unlock()
	for range rnd.IntN(3) {
		pauseFor(ctx, time.Duration(rnd.IntN(700))*time.Millisecond)
		sent := s.now()
		if g, err := locks.Renew(ctx, c); err == nil && g.Granted && g.Token == one.token {
			s.mu.Lock()
			one.until = max(one.until, sent+c.Expiry)
			s.mu.Unlock()
		}
	}
	if rnd.IntN(3) > 0 {
		s.mu.Lock()
		one.given = s.now()
		s.mu.Unlock()
		_, _ = locks.Unlock(ctx, lock.Release{Key: c.Key, Owner: c.Owner}) // if it fails, the lock expires
	}
}

func pauseFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// write makes changes of one key, each repeated until it is acknowledged.
func (s *lockSim) write(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		value := fmt.Sprint(n)
		r := state.SetRequest{Consistency: state.Strong, RequestID: "w" + value,
			Items: []state.Write{{Key: "app||k", Value: []byte(value)}}}
		for i := 0; ; i++ {
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			_, err := s.hosts[(n+i)%3].Store("", "s").Set(limit, r)
			cancel()
			if err == nil {
				break
			}
		}
		s.mu.Lock()
		s.written = append(s.written, "k="+value)
		s.mu.Unlock()
		pauseFor(ctx, 20*time.Millisecond)
	}
}

// disturb cuts servers off and restores all links. Sometimes it only cuts off the replica of a server, which then
// falls behind, while the server still makes calls.
func disturb(t *testing.T, c *cluster, hosts []*raftfsm.Host, rnd *rand.Rand) {
	for range 8 {
		pauseFor(t.Context(), time.Duration(500+rnd.IntN(2500))*time.Millisecond)
		id := hosts[rnd.IntN(3)].Identity().Server
		if rnd.IntN(3) > 0 {
			for _, h := range hosts {
				if h.Groups()[0].Leading() {
					id = h.Identity().Server
				}
			}
		}
		if rnd.IntN(4) == 0 {
			c.lag(id)
		} else {
			c.isolate(id)
		}
		pauseFor(t.Context(), time.Duration(500+rnd.IntN(4000))*time.Millisecond)
		c.heal()
	}
}

// lag cuts the links of the replicas of a server, in both directions; heal restores them. Calls still work.
func (c *cluster) lag(server string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lagLocked(server)
}

func (c *cluster) lagLocked(server string) {
	for other, wires := range c.wires {
		if other == server {
			continue
		}
		for id, w := range wires {
			w.Disconnect(raft.ServerAddress(server))
			c.wires[server][id].Disconnect(raft.ServerAddress(other))
		}
	}
}

// check compares the grants of each lock, in the order of their tokens.
func (s *lockSim) check() {
	slices.SortFunc(s.granted, func(a, b *grantSeen) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.token, b.token))
	})
	for i, next := range s.granted[min(1, len(s.granted)):] {
		old := s.granted[i]
		switch {
		case old.name != next.name:
		case old.token == next.token:
			s.t.Errorf("token %d of lock %s was granted twice", old.token, old.name)
		case next.answered < old.sent:
			s.t.Errorf("token %d of lock %s was granted before token %d was requested", next.token, next.name,
				old.token)
		case old.given != 0 && old.given <= next.answered:
		case next.answered < old.until:
			s.t.Errorf("lock %s was granted with token %d at %s, and token %d is valid until %s", next.name, next.token,
				next.answered, old.token, old.until)
		}
	}
}

func TestSimulation_LocksAndWatchesSurviveCuts(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	if testing.Short() {
		t.Skip("simulates whole clusters")
	}
	first, n := testutil.Seeds(t, 3)
	for seed := first; seed < first+n; seed++ {
		grants, writes, start := 0, 0, time.Now()
		synctest.Test(t, func(t *testing.T) {
			c := startCluster(t, 3, nil)
			c.leader()
			s := &lockSim{t: t, hosts: c.running(), begun: time.Now()}
			slices.SortFunc(s.hosts, func(a, b *raftfsm.Host) int {
				return cmp.Compare(a.Identity().Node, b.Identity().Node)
			})
			var watches []state.Watch
			for _, h := range s.hosts {
				w := watching(t, h.Store("", "s"), state.WatchRequest{Prefix: "app||"})
				defer w.Close()
				watches = append(watches, w)
			}
			ctx, stop := context.WithCancel(t.Context())
			var work sync.WaitGroup
			for id := range 4 {
				work.Go(func() { s.own(ctx, id, rand.New(rand.NewPCG(seed, uint64(id+2)))) })
			}
			work.Go(func() { s.write(ctx) })
			disturb(t, c, s.hosts, rand.New(rand.NewPCG(seed, 1)))
			stop()
			work.Wait()
			s.check()
			for i, w := range watches {
				got, err := collect(t, w, len(s.written))
				if !slices.Equal(got, s.written) {
					t.Errorf("the watch at server %d has %d of %d changes, or others (%v)", i+1, len(got),
						len(s.written), err)
				}
			}
			grants, writes = len(s.granted), len(s.written)
		})
		t.Logf("seed %d: %d grants, %d writes, in %s", seed, grants, writes, time.Since(start).Round(time.Millisecond))
		if grants < 10 || writes < 100 {
			t.Errorf("seed %d: the schedule has hardly any operations", seed)
		}
	}
}

package raftfsm_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/actors"
)

const simActors = 3 // number of actors for which hosts compete

// actorSim plays hosts of actors on the servers of the product, in virtual time, while the network is cut and
// restored, and while hosts are paused. Hosts are models of those in package api/actors: they renew their session each
// actors.RenewEvery, and start turns for actors.Lease from the moment at which they have sent a renewal that was
// answered. Each turn reads a counter and writes the next number. Between turns, hosts transfer actors to others: as
// the leader advises, and at random. It checks these invariants:
//
//  1. When a host starts a turn, no other host has a valid lease and owns the actor.
//  2. A write is not applied if it was sent after a turn with a later epoch had begun.
//  3. A turn reads every write that was acknowledged before it began. The last value of a counter is at least the
//     number of acknowledged writes. It is greater by at most the number of writes with an unknown outcome.
type actorSim struct {
	t     *testing.T
	c     *cluster
	nodes []*raftfsm.Host
	hosts []*simHost
	begun time.Time

	mu     sync.Mutex
	newest [simActors]uint64 // the greatest epoch with a turn; guarded by mu, as are the fields below
	acked  [simActors]int
	value  [simActors]int // greatest acknowledged
	unsure [simActors]int
	turns  int
	fenced int
	moved  int // activations
	given  int // transfers that were answered
}

// simHost is one host of actors. actorSim.mu guards its fields from session on.
type simHost struct {
	s    *actorSim
	at   int
	node *raftfsm.Host
	dir  *actors.Directory
	rnd  *rand.Rand // of its session
	next int        // number of its session

	session  string // empty = it has none
	revision uint64
	valid    time.Time // end of the lease
	paused   time.Time // until when it does nothing
	owned    [simActors]actors.Activated
	give     string // session of the host that gets the next actor whose turn has ended; empty = none
}

// run registers a session, renews it, and registers another one when it has ended.
func (h *simHost) run(ctx context.Context) {
	var renewals sync.WaitGroup
	defer renewals.Wait()
	for ; ctx.Err() == nil; pauseFor(ctx, actors.RenewEvery) {
		if h.rnd.IntN(100) == 0 {
			h.pause(time.Duration(500+h.rnd.IntN(3000)) * time.Millisecond)
		}
		h.awake(ctx)
		h.s.mu.Lock()
		session := h.session
		h.s.mu.Unlock()
		if session == "" {
			h.register(ctx)
			continue
		}
		renewals.Go(func() { h.renew(ctx, session) })
	}
}

func (h *simHost) pause(d time.Duration) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.paused = time.Now().Add(d)
}

// awake waits until the host is not paused.
func (h *simHost) awake(ctx context.Context) {
	h.s.mu.Lock()
	left := time.Until(h.paused)
	h.s.mu.Unlock()
	if left > 0 {
		pauseFor(ctx, left)
	}
}

func (h *simHost) register(ctx context.Context) {
	h.next++
	id := fmt.Sprintf("h%d-%d", h.at, h.next)
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	revision, err := h.dir.Register(limit, actors.Host{ID: id, Node: fmt.Sprint("n", h.at), Server: "s",
		Types: []string{"T"}})
	if err != nil {
		return
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.session, h.revision, h.valid = id, revision, time.Time{}
}

func (h *simHost) renew(ctx context.Context, session string) {
	limit, cancel := context.WithTimeout(ctx, actors.Lease)
	defer cancel()
	sent := time.Now()
	h.s.mu.Lock()
	count := 0
	for _, a := range h.owned {
		if a.Epoch != 0 {
			count++
		}
	}
	h.s.mu.Unlock()
	advice, err := h.dir.Renew(limit, session, count, true)
	h.awake(ctx)
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if err == nil && advice.Give > 0 && h.session == session {
		h.give = advice.To.ID
	}
	switch {
	case h.session != session:
	case err == nil && sent.Add(actors.Lease).After(h.valid):
		h.valid = sent.Add(actors.Lease)
	case fault.Is(err, fault.NotFound):
		h.session, h.valid, h.owned = "", time.Time{}, [simActors]actors.Activated{}
	}
}

// serve makes turns of one actor, one after the other.
func (h *simHost) serve(ctx context.Context, actor int, rnd *rand.Rand) {
	for ; ctx.Err() == nil; pauseFor(ctx, time.Duration(rnd.IntN(300))*time.Millisecond) {
		h.awake(ctx)
		a, session, revision := h.begin(actor)
		switch {
		case session == "":
		case a.Epoch == 0:
			h.activate(ctx, actor, session)
		case !h.turn(ctx, actor, a, revision, rnd) || rnd.IntN(10) == 0:
			h.release(ctx, actor, a.Epoch, "")
		default:
			if to := h.target(rnd); to != "" {
				h.release(ctx, actor, a.Epoch, to)
			}
		}
	}
}

// target returns the session of the host that gets an actor whose turn has ended. It is empty if the actor stays.
func (h *simHost) target(rnd *rand.Rand) string {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	to := h.give
	if h.give = ""; to == "" && rnd.IntN(10) == 0 {
		to = h.s.hosts[rnd.IntN(len(h.s.hosts))].session
	}
	if to == h.session {
		return ""
	}
	return to
}

// begin begins a turn if the host owns the actor. The session is empty if the host has no valid lease, so that it must
// not start turns.
func (h *simHost) begin(actor int) (a actors.Activated, session string, revision uint64) {
	s := h.s
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if a = h.owned[actor]; !now.Before(h.valid) {
		return a, "", 0
	}
	if a.Epoch == 0 {
		return a, h.session, h.revision
	}
	for _, o := range s.hosts {
		if o != h && o.owned[actor].Epoch != 0 && now.Before(o.valid) {
			s.t.Errorf("%s: hosts %d and %d serve actor %d with epochs %d and %d", now.Sub(s.begun), o.at, h.at, actor,
				o.owned[actor].Epoch, a.Epoch)
		}
	}
	s.newest[actor] = max(s.newest[actor], a.Epoch)
	s.turns++
	return a, h.session, h.revision
}

func (h *simHost) activate(ctx context.Context, actor int, session string) {
	limit, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	a, err := h.dir.Activate(limit, session, "T", fmt.Sprint(actor))
	h.awake(ctx)
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	if err == nil && a.Owner.ID == session && h.session == session {
		h.owned[actor] = a
		h.s.moved++
	}
}

// turn reads and writes the counter. It returns false if the outcome is unknown: a write that is under way may be
// applied at any time until the actor has another epoch.
func (h *simHost) turn(ctx context.Context, actor int, a actors.Activated, revision uint64, rnd *rand.Rand) bool {
	s, key := h.s, state.ActorKey("app", "T", fmt.Sprint(actor), "n")
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	s.mu.Lock()
	seen := s.value[actor]
	s.mu.Unlock()
	item, err := h.node.Store("", "s").Get(limit, state.GetRequest{Key: key,
		ReadOptions: state.ReadOptions{Session: a.Session}})
	if err != nil || item.Level == state.Stale { // package api repeats a stale read as a strong read
		return true
	}
	n, _ := strconv.Atoi(string(item.Value)) // empty = 0
	if n < seen {
		s.t.Errorf("a turn of actor %d read %d after %d was acknowledged", actor, n, seen)
	}
	if rnd.IntN(10) == 0 { // the turn is paused, and its host may be paused, too
		d := time.Duration(rnd.IntN(3000)) * time.Millisecond
		if rnd.IntN(2) == 0 {
			h.pause(d)
		}
		pauseFor(ctx, d)
	}
	s.mu.Lock()
	stale := s.newest[actor] > a.Epoch
	s.mu.Unlock()
	limit, end := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer end()
	written, err := h.node.Store("", "s").Transact(limit, state.TransactRequest{
		Operations: []state.Operation{{Write: state.Write{Key: key, Value: fmt.Append(nil, n+1)}}},
		Actor: &state.ActorEpoch{App: "app", Type: "T", ID: fmt.Sprint(actor), Epoch: a.Epoch, Host: a.Owner.ID,
			Revision: revision}, Session: a.Session})
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case fault.Is(err, fault.ActorMoved):
		s.fenced++
		return true
	case err != nil:
		s.unsure[actor]++
		return false
	case stale:
		s.t.Errorf("a write of actor %d with epoch %d is applied, although a turn with epoch %d had begun", actor,
			a.Epoch, s.newest[actor])
	}
	if h.owned[actor].Epoch == a.Epoch {
		h.owned[actor].Session = written.Session
	}
	s.acked[actor]++
	s.value[actor] = max(s.value[actor], n+1)
	return true
}

// release gives the actor up, or transfers it to the host with the session to. The host does not activate it again
// before the directory has answered, unless its session has ended.
func (h *simHost) release(ctx context.Context, actor int, epoch uint64, to string) {
	h.s.mu.Lock()
	session := h.session
	if h.owned[actor].Epoch != epoch {
		h.s.mu.Unlock()
		return
	}
	h.owned[actor] = actors.Activated{}
	h.s.mu.Unlock()
	for given := []actors.Released{{Type: "T", ID: fmt.Sprint(actor), Epoch: epoch}}; ctx.Err() == nil; {
		limit, cancel := context.WithTimeout(ctx, 5*time.Second)
		var err error
		if to != "" {
			err = h.dir.Transfer(limit, given, to, false)
		}
		if to == "" || fault.Is(err, fault.NotFound) {
			to, err = "", h.dir.Release(limit, given)
		}
		cancel()
		h.s.mu.Lock()
		if err == nil && to != "" {
			h.s.given++
		}
		ended := h.session != session
		h.s.mu.Unlock()
		if err == nil || ended {
			return
		}
		pauseFor(ctx, 100*time.Millisecond)
	}
}

// check compares the counters with the writes.
func (s *actorSim) check() {
	for actor := range simActors {
		item, err := s.nodes[0].Store("", "s").Get(within(s.t, time.Minute), state.GetRequest{
			Key:         state.ActorKey("app", "T", fmt.Sprint(actor), "n"),
			ReadOptions: state.ReadOptions{Consistency: state.Strong}})
		must(s.t, err)
		n, _ := strconv.Atoi(string(item.Value)) // empty = 0
		if n < s.acked[actor] || n > s.acked[actor]+s.unsure[actor] {
			s.t.Errorf("actor %d counted to %d: %d writes were acknowledged, and %d have an unknown outcome", actor, n,
				s.acked[actor], s.unsure[actor])
		}
	}
}

func TestSimulation_ActorsHaveOneOwner(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	if testing.Short() {
		t.Skip("simulates whole clusters")
	}
	first, n := testutil.Seeds(t, 3)
	var turns, writes, fenced, moved, given int
	defer func() {
		t.Logf("all: %d turns, %d writes, %d refused, %d activations, %d transfers", turns, writes, fenced, moved,
			given)
		if given == 0 {
			t.Error("no actor was transferred")
		}
	}()
	for seed := first; seed < first+n; seed++ {
		var s *actorSim
		start := time.Now()
		synctest.Test(t, func(t *testing.T) {
			c := startCluster(t, 3, nil)
			c.leader()
			s = &actorSim{t: t, c: c, nodes: c.running(), begun: time.Now()}
			slices.SortFunc(s.nodes, func(a, b *raftfsm.Host) int {
				return cmp.Compare(a.Identity().Node, b.Identity().Node)
			})
			for i, node := range s.nodes {
				s.hosts = append(s.hosts, &simHost{s: s, at: i, node: node, dir: node.Actors("", "s", "app"),
					rnd: rand.New(rand.NewPCG(seed, uint64(i+100)))})
			}
			ctx, stop := context.WithCancel(t.Context())
			var work sync.WaitGroup
			for i, h := range s.hosts {
				work.Go(func() { h.run(ctx) })
				for actor := range simActors {
					rnd := rand.New(rand.NewPCG(seed, uint64(10*i+actor+200)))
					work.Go(func() { h.serve(ctx, actor, rnd) })
				}
			}
			disturb(t, c, s.nodes, rand.New(rand.NewPCG(seed, 1)))
			stop()
			work.Wait()
			s.check()
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		acked := s.acked[0] + s.acked[1] + s.acked[2]
		t.Logf("seed %d: %d turns, %d writes, %d refused, %d activations, in %s", seed, s.turns, acked, s.fenced,
			s.moved, time.Since(start).Round(time.Millisecond))
		turns, writes, fenced, moved = turns+s.turns, writes+acked, fenced+s.fenced, moved+s.moved
		given += s.given
		if acked < 20 || s.moved < 5 {
			t.Errorf("seed %d: the schedule has hardly any writes or activations", seed)
		}
	}
}

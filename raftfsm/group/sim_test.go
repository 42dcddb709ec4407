package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/history"
	"github.com/quorate/quorate/internal/testutil"
)

// These tests run whole clusters in virtual time: groups, raft and Pebble as in the product, with networks and
// disks in memory. A seed fixes the faults, their order and times, message delays, and what a crash leaves on a
// disk. It does not fix the scheduling of goroutines, nor raft's time-outs, which use the system's random
// numbers. So a seed that failed is likely, but not certain, to fail again. docs/reliability.md explains how to run
// more schedules.

// simBound is the maximum virtual time that a cluster may need for one goal, for example to form or to catch up.
const simBound = 2 * time.Minute

// simulate runs the schedule of a seed and returns the first broken guarantee, if any.
func simulate(t *testing.T, seed uint64, b simBreak) (simTotals, error) {
	t.Helper()
	s, h := newSim(seed, b), newSimHistory()
	s.logTo(t)
	synctest.Test(t, func(*testing.T) {
		s.play(keyLoad{s, h})
	})
	s.totals.Schedules, s.totals.Operations, s.totals.Unknown = 1, h.Size(), h.Unknown()
	if s.broken != nil {
		return s.totals, fmt.Errorf("%w\n%s", s.broken, strings.Join(s.events, "\n"))
	}
	// Check runs outside of the bubble, because its time limit would never pass in virtual time.
	var n *history.NotLinearizable
	if err := h.Check(time.Minute, os.TempDir()); err != nil && !(errors.As(err, &n) && n.Undecided) {
		return s.totals, fmt.Errorf("%w\n%s", err, strings.Join(s.events, "\n"))
	}
	return s.totals, nil
}

// logTo logs to the output of the test if the environment variable QUORATE_SIM_LOG is set.
func (s *sim) logTo(t *testing.T) {
	if os.Getenv("QUORATE_SIM_LOG") != "" {
		s.logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
}

var errLost = errors.New("an acknowledged write is lost")

// simLoad is what clients do in a simulation.
type simLoad interface {
	// adapt may change the faults.
	adapt(blows []blow)
	// start starts the clients, which run until stop is closed. It counts their goroutines in work.
	start(stop <-chan struct{}, work *sync.WaitGroup)
	// audit checks the guarantees. It is called when the faults are undone and the clients have stopped.
	audit()
	// end ends the nodes and goroutines of the load that still run. It is called before the servers stop.
	end()
}

// keyLoad reads and writes keys.
type keyLoad struct {
	s *sim
	h *simHistory
}

func (keyLoad) adapt([]blow) {}

func (l keyLoad) start(stop <-chan struct{}, work *sync.WaitGroup) { l.s.clients(l.h, stop, work) }

func (l keyLoad) audit() { l.s.audit(l.h) }

func (keyLoad) end() {}

// play runs the schedule inside the bubble.
func (s *sim) play(l simLoad) {
	s.begun = time.Now()
	defer func() { // time stands still after this function has returned
		s.work.Wait()
		s.net.work.Wait()
		s.totals.Virtual = time.Since(s.begun)
		after(time.Minute) // time for goroutines that raft leaves behind to end
	}()
	size, blows := schedule(rand.New(rand.NewPCG(s.seed, 0)))
	if s.broke.slow {
		isolate(blows)
	}
	if s.broke.stranded {
		strand(blows)
	}
	if s.broke.harsh {
		renew(blows)
	}
	l.adapt(blows)
	for range size {
		s.start(s.add())
	}
	stop := make(chan struct{})
	var work sync.WaitGroup
	if s.broke.harsh { // new servers join while the leader compacts its log
		l.start(stop, &work)
	}
	if s.within(simBound, "forming the cluster", s.admit) {
		if !s.broke.harsh {
			l.start(stop, &work)
		}
		for _, b := range blows {
			if s.failed() == nil {
				after(b.wait)
				s.strike(b)
			}
		}
		s.recover()
	}
	close(stop)
	work.Wait()
	if s.failed() == nil {
		l.audit()
	}
	l.end()
	for _, id := range s.ids() {
		s.hangs(id, false)
		s.stop(id)
	}
}

// clients starts three clients, which run until stop is closed.
func (s *sim) clients(h *simHistory, stop <-chan struct{}, work *sync.WaitGroup) {
	for i := range 3 {
		c := &simClient{s: s, id: i, origin: s.enrol(fmt.Sprint("client ", i)),
			rnd: rand.New(rand.NewPCG(s.seed, uint64(i+3))), seen: map[string]seenValue{}, h: h}
		work.Go(func() { c.live(stop) })
	}
}

// blow is one fault or change. All blows are drawn before the cluster starts, so that the behaviour of the
// cluster does not change the schedule.
type blow struct {
	kind          int
	wait          time.Duration // before the blow
	victim, other int           // indexes into the ordered list of servers
	leader        bool          // the victim is the leader, if there is one
	heal, restart bool          // afterwards restore all links, start all servers that are down
	long          time.Duration // duration of faults that end by themselves
	fuse          int           // number of steps of disk work before a crash
}

// The kinds of blows that only some loads use.
const (
	blowFull = 14 + iota // the disk of a server is full, so its process ends
	blowLow              // values are refused for a while
	blowKill             // a node without a replica is killed, and starts again
)

func schedule(rnd *rand.Rand) (size int, blows []blow) {
	size = 3 + 2*rnd.IntN(2)
	blows = make([]blow, 6+rnd.IntN(6))
	for i := range blows {
		blows[i] = blow{
			kind: rnd.IntN(14), wait: time.Duration(50+rnd.IntN(850)) * time.Millisecond, victim: rnd.IntN(size),
			other:  rnd.IntN(size),
			leader: rnd.IntN(3) > 0, heal: rnd.IntN(3) == 0, restart: rnd.IntN(3) == 0,
			long: time.Duration(200+rnd.IntN(4000)) * time.Millisecond, fuse: 1 + rnd.IntN(40),
		}
	}
	return size, blows
}

// isolate changes the blows so that they cut a leader off long enough for another one to be elected.
func isolate(blows []blow) {
	for i := range blows {
		blows[i].kind, blows[i].leader, blows[i].heal = 9, true, false
		blows[i].wait += 2 * time.Second
		if i%2 == 1 {
			blows[i].kind, blows[i].heal = 3, true
		}
	}
}

// strand changes the blows so that they repeatedly crash a leader while its disk hangs and another server is cut off.
func strand(blows []blow) {
	for i := range blows {
		b := &blows[i]
		b.heal, b.restart = false, false
		switch i % 4 {
		case 0:
			b.kind, b.leader = 9, false
		case 1:
			b.kind, b.leader, b.long = 11, true, time.Minute
		case 2:
			b.kind, b.leader, b.wait = 0, true, 200*time.Millisecond
		case 3:
			b.kind, b.heal = 3, true
		}
	}
}

// renew changes every second blow so that it replaces a server by a new one.
func renew(blows []blow) {
	for i := range blows {
		if i%2 == 0 {
			blows[i].kind, blows[i].leader, blows[i].fuse = 13, false, 1
		}
	}
}

// strike carries out a blow. Its effect lasts until another blow undoes it or the schedule ends.
func (s *sim) strike(b blow) {
	ids := s.ids()
	victim, other := ids[b.victim%len(ids)], ids[b.other%len(ids)]
	if id, g := s.leader(); g != nil && b.leader {
		victim = id
	}
	switch b.kind {
	case 0, 1:
		s.note("%s crashes", victim)
		s.crash(victim)
	case 2:
		s.note("all crash")
		for _, id := range ids {
			s.crash(id)
		}
	case 3, 4:
		s.note("what is down starts")
		s.restartAll()
	case 5:
		s.note("%s dies at step %d of its disk's work", victim, b.fuse)
		s.light(victim, b.fuse)
	case 6:
		s.note("%s is deaf", victim)
		s.cut(func(_, to raft.ServerID) bool { return to == victim })
	case 7:
		s.note("%s is mute", victim)
		s.cut(func(from, _ raft.ServerID) bool { return from == victim })
	case 8:
		s.note("only %s sees everybody", victim)
		s.cut(func(from, to raft.ServerID) bool { return from != victim && to != victim })
	case 9:
		s.note("%s is cut off, or paused", victim)
		s.cut(func(from, to raft.ServerID) bool { return from == victim || to == victim })
	case 10:
		s.note("%s and %s are cut off together", victim, other)
		side := map[raft.ServerID]bool{victim: true, other: true}
		s.cut(func(from, to raft.ServerID) bool { return side[from] != side[to] })
	case 11:
		s.note("the log of %s hangs for %s", victim, b.long)
		s.hangs(victim, true)
		s.work.Go(func() {
			after(b.long)
			s.hangs(victim, false)
		})
	case 12:
		s.note("%s hands leadership over", victim)
		s.net.heal()
		s.handOver(victim)
	case blowFull:
		s.note("the disk of %s is full", victim)
		s.fill(victim)
	case blowLow:
		s.note("the group is read-only for %s, because a disk is nearly full", b.long)
		s.low.Store(time.Now().Add(b.long).UnixNano())
	case blowKill:
		s.note("the application of node %d and the node are killed", b.other)
		s.kill(b.other)
	default:
		s.note("%s loses its vote, or its place", other)
		s.reform(other, b.fuse%2 == 0)
	}
	if b.heal {
		s.note("all links are restored")
		s.net.heal()
	}
	if b.restart {
		s.restartAll()
	}
}

func (s *sim) handOver(id raft.ServerID) {
	if l, ok := s.life(id); ok {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = l.group.Transfer(ctx, "")
		s.count(func(t *simTotals) { t.Transfers++ })
	}
}

func (s *sim) count(f func(*simTotals)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.totals)
}

func (s *sim) cut(apart func(from, to raft.ServerID) bool) {
	s.count(func(t *simTotals) { t.Cuts++ })
	ids := s.ids()
	for _, from := range ids {
		for _, to := range ids {
			if from != to && apart(from, to) {
				s.net.set(link{from, to}, true)
			}
		}
	}
}

func (s *sim) light(id raft.ServerID, fuse int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[id].fuse = fuse
}

// hangs makes the log writes of a server wait, or continue.
func (s *sim) hangs(id raft.ServerID, yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[id]
	switch {
	case n == nil:
	case yes && n.hang == nil:
		n.hang = make(chan struct{})
		s.totals.Hangs++
	case !yes && n.hang != nil:
		close(n.hang)
		n.hang = nil
	}
}

// fill makes the disk of a server full, so that the server crashes at its next log write.
func (s *sim) fill(id raft.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[id]; n != nil && n.group != nil {
		n.disk.full.Store(true)
	}
}

// restartAll starts every server that is down.
func (s *sim) restartAll() {
	alive := s.alive()
	for _, id := range s.ids() {
		if _, ok := alive[id]; !ok && s.failed() == nil {
			s.count(func(t *simTotals) { t.Restarts++ })
			s.start(id)
		}
	}
}

// reform changes the configuration: a server loses its vote, or is replaced by an empty one.
func (s *sim) reform(id raft.ServerID, demote bool) {
	lead, g := s.leader()
	if g == nil || lead == id {
		return
	}
	servers, index := g.Servers()
	if len(servers) < len(s.ids()) {
		return // one change at a time, because the group must not shrink
	}
	s.count(func(t *simTotals) { t.Changes++ })
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if demote {
		_ = g.Demote(ctx, id, index)
		return
	}
	if err := g.Remove(ctx, id, index); err != nil {
		return // the removal may have succeeded nevertheless; then the server is added again
	}
	s.crash(id)
	s.mu.Lock()
	delete(s.nodes, id)
	s.mu.Unlock()
	s.start(s.add())
	_ = s.admit()
}

// recover undoes all faults, and requires that the cluster becomes whole again within simBound of virtual time.
func (s *sim) recover() {
	for _, id := range s.ids() {
		s.hangs(id, false)
		s.mu.Lock()
		s.nodes[id].fuse = 0
		s.nodes[id].disk.full.Store(false)
		s.mu.Unlock()
	}
	s.low.Store(0)
	s.net.heal()
	s.note("all faults are undone")
	s.within(simBound, "after healing, all servers are voters and have caught up", func() error {
		if err := s.whole(); err != nil {
			return err
		}
		for id, l := range s.alive() {
			if !l.group.CaughtUp() {
				return fmt.Errorf("%s has not caught up", id)
			}
		}
		return nil
	})
}

// whole makes every server a running voter and returns an error until that is done. Call it repeatedly: a
// removal of unknown outcome may take effect late, when the log of its leader continues.
func (s *sim) whole() error {
	s.revive()
	return s.admit()
}

// revive starts servers that are down. Servers that ended because they were removed from the group start with
// an empty disk.
func (s *sim) revive() {
	for id, l := range s.alive() {
		if l.group.raft.State() == raft.Shutdown {
			s.crash(id)
		}
	}
	s.restartAll()
}

// audit writes, reads all acknowledged values, and compares all servers. The clients have stopped before the call.
func (s *sim) audit(h *simHistory) {
	c := &simClient{s: s, id: 99, origin: s.enrol("last"), rnd: rand.New(rand.NewPCG(s.seed, 99)),
		seen: map[string]seenValue{}, h: h}
	tried := func(ok bool) error {
		if !ok {
			return errors.New("no answer")
		}
		return nil
	}
	for _, key := range []string{"k0", "k1"} {
		s.within(simBound, "after healing, a read", func() error {
			_, ok := c.get(key, 3*time.Second)
			return tried(ok)
		})
		s.within(simBound, "after healing, a write", func() error {
			return tried(c.write(key, history.Change{Value: fmt.Sprint("last", c.seq)}))
		})
	}
	equal := func() error {
		if err := s.whole(); err != nil {
			return err
		}
		return s.equal()
	}
	if !s.within(simBound, "after healing, equal states", equal) {
		return
	}
	for id, l := range s.alive() {
		s.count(func(t *simTotals) { t.Terms = max(t.Terms, l.group.Term()) })
		for key, want := range h.ledger {
			v, err := l.group.Machine().Get(store, key, 0)
			if got := string(v.Value); err != nil || got != want {
				s.fail("%w: %s is %q on %s, not %q (%v)", errLost, key, got, id, want, err)
			}
		}
	}
}

func TestSimulation_KeepsGuarantees(t *testing.T) { playSeeds(t, 150, simBreak{}) }

// Many messages are late or arrive twice, and servers are often replaced by new ones, which need a snapshot.
func TestSimulation_LateMessagesKeepGuarantees(t *testing.T) { playSeeds(t, 30, simBreak{harsh: true}) }

// playSeeds plays n schedules, or the number that the environment sets (see testutil.Seeds).
func playSeeds(t *testing.T, n uint64, b simBreak) {
	t.Helper()
	playSeedsOf(t, n, func(seed uint64) (simTotals, error) { return simulate(t, seed, b) })
}

func playSeedsOf(t *testing.T, n uint64, play func(seed uint64) (simTotals, error)) {
	t.Helper()
	if testing.Short() {
		t.Skip("simulates whole clusters")
	}
	playEverySeed(t, n, play)
}

// playEverySeed plays n schedules like playSeedsOf, but also in short tests.
func playEverySeed(t *testing.T, n uint64, play func(seed uint64) (simTotals, error)) {
	t.Helper()
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	first, n := testutil.Seeds(t, n)
	var totals simTotals
	start := time.Now()
	for seed := first; seed < first+n; seed++ {
		got, err := play(seed)
		if err != nil {
			t.Fatalf("seed %d: %v; play it again with QUORATE_SIM_SEED=%d QUORATE_SIM_SEEDS=50", seed, err, seed)
		}
		totals.add(got)
	}
	took := time.Since(start)
	t.Logf("seeds %d to %d: %.0f schedules a minute, %.0f virtual seconds a second, %+v",
		first, first+uint64(totals.Schedules)-1, float64(totals.Schedules)/took.Minutes(),
		totals.Virtual.Seconds()/took.Seconds(), totals)
}

// Each guard is switched off in turn. The checks must find the fault.
func TestSimulation_FindsDisabledGuard(t *testing.T) {
	const enough = 200 // seeds; one to three are usually enough
	for name, b := range map[string]simBreak{
		"a leader confirms its term before a read":    {slow: true, reads: true},
		"synced log entries survive a crash":          {disk: "log"},
		"a leader commits only what its own disk has": {stranded: true, early: true},
		"entries follow the log or its snapshot":      {harsh: true, gaps: true},
	} {
		t.Run(name, func(t *testing.T) {
			findsFault(t, enough, func(seed uint64) (simTotals, error) { return simulate(t, seed, b) })
		})
	}
}

// Without the guard, a few of these schedules are enough to find a violation (see TestSimulation_FindsDisabledGuard).
func TestSimulation_SlowLeaderKeepsGuarantees(t *testing.T) { clean(t, simBreak{slow: true}) }

func TestSimulation_LeaderCrashAheadOfDiskLosesNothing(t *testing.T) {
	clean(t, simBreak{stranded: true})
}

func clean(t *testing.T, b simBreak) {
	t.Helper()
	testutil.SkipUnderRace(t, testutil.ManyBubbles)
	if testing.Short() {
		t.Skip("simulates whole clusters")
	}
	for seed := range uint64(4) {
		if _, err := simulate(t, seed, b); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

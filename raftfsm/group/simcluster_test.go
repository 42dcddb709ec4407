package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
)

// sim is a cluster of one group in a bubble of virtual time. Everything of it is the
// product but the wires and the disks.
type sim struct {
	seed  uint64
	broke simBreak
	net   *simNet
	work  sync.WaitGroup // whatever must end before the bubble may

	begun   time.Time
	timing  Timing
	install time.Duration // how long a disk takes for a snapshot that it was sent, beside chance
	forget  bool          // a guard that is off: the log is trimmed while somebody needs it
	logger  *slog.Logger
	cache   *pebble.Cache // nil = one for each server

	mu     sync.Mutex
	rnd    *rand.Rand // guarded by mu; of disks
	events []string   // what was done
	nodes  map[raft.ServerID]*simNode
	next   int // number of the next server
	broken error
	totals simTotals
}

// simBreak is a guard that is switched off, to show that the checks can fail.
type simBreak struct {
	disk     string // see simDisk.lies
	slow     bool   // not a guard: s0 believes for long that it leads, as a process that was paused
	reads    bool   // a read asks nobody whether its leader still leads
	stranded bool   // not a guard: leaders crash while their disks hang and one server is cut off
	early    bool   // a follower's answer counts before the leader's own disk holds the entry
}

// simTotals are what schedules have done.
type simTotals struct {
	Schedules, Operations, Unknown, Crashes, StepCrashes, Restarts, Cuts, Transfers, Changes, Hangs, Installs int
	Terms                                                                                                     uint64
	Virtual                                                                                                   time.Duration
}

func (t *simTotals) add(o simTotals) {
	t.Schedules += o.Schedules
	t.Operations += o.Operations
	t.Unknown += o.Unknown
	t.Crashes += o.Crashes
	t.StepCrashes += o.StepCrashes
	t.Restarts += o.Restarts
	t.Cuts += o.Cuts
	t.Transfers += o.Transfers
	t.Changes += o.Changes
	t.Hangs += o.Hangs
	t.Installs += o.Installs
	t.Terms += o.Terms
	t.Virtual += o.Virtual
}

// simNode is a server: its disk, and its life if it has one.
type simNode struct {
	id    raft.ServerID
	disk  *simDisk
	wire  *simWire // nil = down
	group *Group   // nil = down, or being opened
	fuse  int      // dies at the step of its disk work that this counts down to; 0 = never
	hang  chan struct{}
}

func newSim(seed uint64, b simBreak) *sim {
	rnd := rand.New(rand.NewPCG(seed, 1))
	return &sim{
		seed: seed, broke: b, timing: simTiming(), logger: slog.New(slog.DiscardHandler), rnd: rnd, nodes: map[raft.ServerID]*simNode{},
		net: &simNet{rnd: rand.New(rand.NewPCG(seed, 2)), cut: map[link]bool{}, wires: map[raft.ServerID]*simWire{}},
	}
}

// fail notes the first promise that was broken.
func (s *sim) fail(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = fmt.Errorf(format, a...)
	}
}

func (s *sim) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// note writes down what was done, and when.
func (s *sim) note(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf("%10s  ", time.Since(s.begun).Round(time.Millisecond))+fmt.Sprintf(format, a...))
}

func (s *sim) between(low, high time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return low + time.Duration(s.rnd.IntN(int(high-low)))
}

// ids are the servers there are, in order.
func (s *sim) ids() []raft.ServerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []raft.ServerID
	for id := range s.nodes {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// add makes a server with an empty disk.
func (s *sim) add() raft.ServerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := raft.ServerID(fmt.Sprintf("s%d", s.next))
	s.next++
	s.nodes[id] = &simNode{id: id, disk: newSimDisk(s.broke.disk)}
	return id
}

// life is what runs of a server now.
type life struct {
	wire  *simWire
	group *Group
}

// alive returns the servers that run.
func (s *sim) alive() map[raft.ServerID]life {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[raft.ServerID]life{}
	for id, n := range s.nodes {
		if n.group != nil {
			out[id] = life{n.wire, n.group}
		}
	}
	return out
}

func (s *sim) life(id raft.ServerID) (life, bool) {
	l, ok := s.alive()[id]
	return l, ok
}

// simTiming is that of tests, with a slower idle leader: each message costs real time.
func simTiming() Timing {
	t := quick(Timing{})
	t.Commit, t.SnapshotPoll, t.Compare, t.ExpiryEvery = 40*time.Millisecond, 200*time.Millisecond, 2*time.Second, time.Second
	return t
}

// start opens a server on what its disk holds.
func (s *sim) start(id raft.ServerID) {
	w := s.net.join(id)
	s.mu.Lock()
	n := s.nodes[id]
	disk := n.disk
	n.wire, n.hang, n.fuse = w, nil, 0
	s.mu.Unlock()
	o := Options{
		Dir: "/sim/groups/0", ServerID: id, Transport: w, Confirmer: w, Replicas: w, Bootstrap: id == "s0", MemTable: 256 << 10,
		Logger: s.logger.With("server", string(id)), Metrics: NewMetrics(prometheus.NewRegistry()), Timing: s.timing, Cache: s.cache,
		Bounds: Bounds{SnapshotEntries: 40, TrailingEntries: 10},
		Fatal: func(err error) {
			if !w.dead() {
				s.fail("%s gives up: %w", id, err)
			}
		},
		Step:   func(step string) { s.step(n, w, disk, step) },
		volume: disk,
	}
	if s.broke.slow {
		slowLeader(map[bool]raft.ServerID{true: "a"}[id == "s0"], &o)
	}
	if s.broke.reads {
		o.Confirmer = believer{}
	}
	if s.forget {
		o.without = func(g *Group, _ *raft.Config) { g.guard.retained = &retained{} }
	}
	if s.broke.early {
		o.without = func(g *Group, _ *raft.Config) { g.guard.durable = func(uint64) error { return nil } }
	}
	g, err := Open(context.Background(), o)
	if err != nil {
		s.fail("%s does not open what a crash has left: %w", id, err)
		s.net.leave(w)
		s.mu.Lock()
		n.wire = nil
		s.mu.Unlock()
		return
	}
	w.opened(g)
	s.mu.Lock()
	n.group = g
	s.mu.Unlock()
}

// believer confirms whatever it is asked.
type believer struct{}

func (believer) ConfirmTerm(context.Context, raft.Server, uint64) error { return nil }

// step lets time pass while a disk works, and ends a server whose fuse has burnt down. What
// was written is synced only after both.
func (s *sim) step(n *simNode, w *simWire, disk *simDisk, step string) {
	s.mu.Lock()
	hang := n.hang
	if n.fuse > 0 && n.wire == w && n.group != nil {
		if n.fuse--; n.fuse == 0 {
			s.totals.StepCrashes++
			s.crashLocked(n)
		}
	}
	s.mu.Unlock()
	switch step {
	case "log-append":
		if hang != nil {
			select {
			case <-hang:
			case <-w.down:
			}
		}
	case "log-appended", "log-truncated", "voted":
		after(s.between(300*time.Microsecond, 4*time.Millisecond))
		disk.sync()
	case "snapshot-flushed", "snapshot-received":
		if step == "snapshot-received" {
			s.count(func(t *simTotals) { t.Installs++ })
			after(s.install)
		}
		after(s.between(time.Millisecond, 30*time.Millisecond))
	} // the others come while a lock is held: nobody may wait there
}

// crash ends a server at once; only what its disk had synced is sure to be there later.
func (s *sim) crash(id raft.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[id]; n != nil && n.group != nil {
		s.totals.Crashes++
		s.crashLocked(n)
	}
}

func (s *sim) crashLocked(n *simNode) {
	g := n.group
	s.net.leave(n.wire)
	n.disk = n.disk.crash(s.rnd)
	n.wire, n.group = nil, nil
	s.work.Go(func() { _ = g.Close() }) // of a process that is gone: nobody hears of it
}

// stop ends a server in order.
func (s *sim) stop(id raft.ServerID) {
	s.mu.Lock()
	n := s.nodes[id]
	g, w := n.group, n.wire
	n.group = nil
	s.mu.Unlock()
	if g == nil {
		return
	}
	if err := g.Close(); err != nil {
		s.fail("closing %s: %w", id, err)
	}
	s.net.leave(w)
	s.mu.Lock()
	n.wire = nil
	s.mu.Unlock()
}

// leader is a server that says it leads; nil for none.
func (s *sim) leader() (raft.ServerID, *Group) {
	for id, l := range s.alive() {
		if l.group.Leading() {
			return id, l.group
		}
	}
	return "", nil
}

var errLate = errors.New("not within the virtual bound")

// within polls until check passes, for at most limit of virtual time.
func (s *sim) within(limit time.Duration, what string, check func() error) bool {
	end := time.Now().Add(limit)
	for {
		err := check()
		if err == nil || s.failed() != nil {
			return err == nil
		}
		if time.Now().After(end) {
			s.fail("%s: %w (%s): %w", what, errLate, limit, err)
			return false
		}
		after(10 * time.Millisecond)
	}
}

// admit makes all servers there are voters, trying again until they are.
func (s *sim) admit() error {
	_, g := s.leader()
	if g == nil {
		return errors.New("nobody leads")
	}
	have := map[raft.ServerID]raft.ServerSuffrage{}
	servers, index := g.Servers()
	for _, srv := range servers {
		have[srv.ID] = srv.Suffrage
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	for _, id := range s.ids() {
		suffrage, in := have[id]
		switch {
		case !in:
			if err := g.AddNonvoter(ctx, id, index); err != nil {
				return err
			}
			return errors.New("a server was added just now")
		case suffrage != raft.Voter:
			if err := g.Promote(ctx, id, index); err != nil {
				return err
			}
			return errors.New("a server was promoted just now")
		}
	}
	return nil
}

// equal reports whether all servers hold the same, at one index.
func (s *sim) equal() error {
	var index, hash uint64
	var first raft.ServerID
	for id, l := range s.alive() {
		if d := l.group.Doubt(); d != nil {
			return fmt.Errorf("%s doubts its state: %+v", id, d)
		}
		i, h := l.group.Machine().Hash()
		switch {
		case first == "":
			first, index, hash = id, i, h
		case i != index:
			return fmt.Errorf("%s (%s) has applied %d, %s %d", id, l.group.raft.State(), i, first, index)
		case h != hash:
			s.fail("at index %d %s and %s hold different states", i, id, first)
			return nil
		}
	}
	return nil
}

package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/transport"
)

// sim is a cluster of one group in a bubble of virtual time. Only its network and its disks differ from the
// product.
type sim struct {
	seed  uint64
	broke simBreak
	net   *simNet
	work  sync.WaitGroup // goroutines that must end before the bubble can end

	begun   time.Time
	timing  Timing
	install time.Duration // additional time to write a received snapshot
	forget  bool          // disables a guard: the log is truncated while a follower needs it
	logger  *slog.Logger
	cache   *pebble.Cache  // nil = one for each server
	service *simService    // nil = only keys
	kill    func(node int) // ends a node without a replica, and starts it again
	low     atomic.Int64   // until when the group is read-only, in Unix nanoseconds

	accesses atomic.Uint64 // number of accesses that were made (see accessOf)

	mu     sync.Mutex
	rnd    *rand.Rand // guarded by mu; used for disks
	events []string   // faults and changes, with their times
	nodes  map[raft.ServerID]*simNode
	next   int // number of the next new server
	broken error
	totals simTotals
}

// simBreak selects guards to switch off, to show that the checks can fail. The fields slow, stranded and harsh switch
// no guard off. They select schedules with special faults.
type simBreak struct {
	disk     string // see simDisk.lies
	slow     bool   // s0 considers itself the leader long after it was deposed, like a paused process
	reads    bool   // a leader serves strong reads without asking whether it still leads
	stranded bool   // leaders crash while their disks hang and one server is cut off
	harsh    bool   // many messages are late or arrive twice, and servers are often replaced
	gaps     bool   // the log stores entries that leave a gap after the log or after the snapshot
	unknown  bool   // a candidate gets no vote from a server whose configuration does not contain the candidate
	early    bool   // a follower's answer counts before the leader's own disk holds the entry
}

// simTotals counts what the schedules have done.
type simTotals struct {
	Schedules, Operations, Unknown, Crashes, StepCrashes, Restarts, Cuts, Transfers int
	Changes, Hangs, Installs, FullDisks, Kills, Instances                           int
	Terms                                                                           uint64
	Virtual                                                                         time.Duration
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
	t.FullDisks += o.FullDisks
	t.Kills += o.Kills
	t.Instances += o.Instances
	t.Terms += o.Terms
	t.Virtual += o.Virtual
}

// simNode is a server: its disk, and its running incarnation, if any.
type simNode struct {
	id     raft.ServerID
	disk   *simDisk
	wire   *simWire  // nil = down
	group  *Group    // nil = down, or still opening
	keeper simKeeper // keeper of the group; nil = none
	fuse   int       // crashes at the step of its disk work at which this countdown ends; 0 = never
	hang   chan struct{}
}

func newSim(seed uint64, b simBreak) *sim {
	rnd := rand.New(rand.NewPCG(seed, 1))
	return &sim{
		seed: seed, broke: b, timing: simTiming(), logger: slog.New(slog.DiscardHandler), rnd: rnd,
		nodes: map[raft.ServerID]*simNode{},
		net: &simNet{harsh: b.harsh, rnd: rand.New(rand.NewPCG(seed, 2)), cut: map[link]bool{},
			wires: map[raft.ServerID]*simWire{}},
	}
}

// fail records the first broken guarantee.
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

// note records an event with its time.
func (s *sim) note(format string, a ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf("%10s  ", time.Since(s.begun).Round(time.Millisecond))+fmt.Sprintf(format,
		a...))
}

func (s *sim) between(low, high time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return low + time.Duration(s.rnd.IntN(int(high-low)))
}

// ids returns the ids of all servers, sorted.
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

// add creates a server with an empty disk.
func (s *sim) add() raft.ServerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := raft.ServerID(fmt.Sprintf("s%d", s.next))
	s.next++
	s.nodes[id] = &simNode{id: id, disk: newSimDisk(s.broke.disk)}
	return id
}

// life is a running incarnation of a server.
type life struct {
	wire   *simWire
	group  *Group
	keeper simKeeper
}

// alive returns the running servers, by id.
func (s *sim) alive() map[raft.ServerID]life {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[raft.ServerID]life{}
	for id, n := range s.nodes {
		if n.group != nil {
			out[id] = life{n.wire, n.group, n.keeper}
		}
	}
	return out
}

func (s *sim) life(id raft.ServerID) (life, bool) {
	l, ok := s.alive()[id]
	return l, ok
}

// simTiming returns the time limits of quick, but with other intervals of messages and checks. Messages are rarer,
// because each message costs real time.
func simTiming() Timing {
	t := quick(Timing{})
	t.Commit, t.SnapshotPoll, t.Compare, t.ExpiryEvery = 40*time.Millisecond, 200*time.Millisecond, 2*time.Second,
		time.Second
	return t
}

// start opens a server with the data on its disk.
func (s *sim) start(id raft.ServerID) {
	w := s.net.join(id)
	s.mu.Lock()
	n := s.nodes[id]
	disk := n.disk
	n.wire, n.hang, n.fuse = w, nil, 0
	s.mu.Unlock()
	o := Options{
		Dir: "/sim/groups/0", ServerID: id, Transport: w, Confirmer: w, Replicas: w, Bootstrap: id == "s0",
		MemTable: 256 << 10,
		Logger:   s.logger.With("server", string(id)), Metrics: NewMetrics(prometheus.NewRegistry()), Timing: s.timing,
		Cache:  s.cache,
		Bounds: Bounds{SnapshotEntries: 40, TrailingEntries: 10},
		Fatal: func(err error) {
			if !w.dead() {
				s.fail("%s ended with a fatal error: %w", id, err)
			}
		},
		Step:   func(step string) { s.step(n, w, disk, step) },
		volume: disk,
	}
	var keeper simKeeper
	if s.service != nil {
		keeper = s.service.open(&o, s.serverAccess(w))
	}
	if s.broke.harsh { // servers often need a snapshot
		o.Bounds = Bounds{SnapshotEntries: 8 + s.seed%32, TrailingEntries: 1 + s.seed%10}
		o.Timing.SnapshotPoll = 50 * time.Millisecond
	}
	if s.broke.slow {
		slowLeader(map[bool]raft.ServerID{true: "a"}[id == "s0"], &o)
	}
	if s.broke.reads {
		o.Confirmer = believer{}
	}
	if s.forget {
		o.without = func(g *Group, _ *raft.Config) {
			g.guard.ReplaceLog(func(l transport.Log) transport.Log { return &forgetful{Log: l} })
		}
	}
	if s.broke.early {
		o.without = func(g *Group, _ *raft.Config) {
			g.guard.ReplaceLog(func(l transport.Log) transport.Log { return hasty{l} })
		}
	}
	if s.broke.unknown {
		o.without = func(g *Group, _ *raft.Config) { g.guard.SwitchOff(transport.Off{Candidates: true}) }
	}
	if s.broke.gaps {
		o.without = func(g *Group, _ *raft.Config) { g.disk.logs.AllowGaps() }
	}
	g, err := Open(context.Background(), o)
	if err != nil {
		s.fail("%s cannot open its data after a crash: %w", id, err)
		s.net.leave(w)
		s.mu.Lock()
		n.wire = nil
		s.mu.Unlock()
		return
	}
	w.opened(g)
	if keeper != nil {
		keeper.Attach(simRecordGroup{g})
	}
	s.mu.Lock()
	n.group, n.keeper = g, keeper
	s.mu.Unlock()
}

// forgetful is a log that keeps no entries for followers that are receiving a snapshot.
type forgetful struct {
	transport.Log
	other raftlog.Retained
}

func (f *forgetful) Retained() *raftlog.Retained { return &f.other }

// hasty is a log that reports an entry as durable before it is.
type hasty struct{ transport.Log }

func (hasty) WaitDurable(uint64) error { return nil }

// believer is a Confirmer that confirms every term without a query.
type believer struct{}

func (believer) ConfirmTerm(context.Context, raft.Server, uint64) error { return nil }

// step lets time pass while a disk works, and crashes a server whose countdown ends or whose disk is full. Only
// afterwards, step syncs what was written.
func (s *sim) step(n *simNode, w *simWire, disk *simDisk, step string) {
	s.mu.Lock()
	hang := n.hang
	if n.fuse > 0 && n.wire == w && n.group != nil {
		if n.fuse--; n.fuse == 0 {
			s.totals.StepCrashes++
			s.crashLocked(n)
		}
	}
	if step == "log-append" && disk.full.Load() && n.wire == w && n.group != nil {
		s.totals.FullDisks++
		s.crashLocked(n)
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
			if s.broke.harsh { // messages arrive meanwhile
				after(s.between(0, 2*time.Second))
			}
		}
		after(s.between(time.Millisecond, 30*time.Millisecond))
	} // other steps are called with a lock held, and must not wait
}

// crash ends a server at once. Afterwards its disk has everything that was synced, and possibly some later writes.
func (s *sim) crash(id raft.ServerID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[id]; n != nil && n.group != nil {
		s.totals.Crashes++
		s.crashLocked(n)
	}
}

func (s *sim) crashLocked(n *simNode) {
	g, k := n.group, n.keeper
	s.net.leave(n.wire)
	n.disk = n.disk.crash(s.rnd)
	n.wire, n.group, n.keeper = nil, nil, nil
	s.work.Go(func() { _ = closeAll(k, g) }) // the process is gone, so its answers reach no client
}

// closeAll closes the keeper and the group of a server. k may be nil.
func closeAll(k simKeeper, g *Group) error {
	if k != nil {
		k.Close()
	}
	return g.Close()
}

// stop closes a server.
func (s *sim) stop(id raft.ServerID) {
	s.mu.Lock()
	n := s.nodes[id]
	g, w, k := n.group, n.wire, n.keeper
	n.group, n.keeper = nil, nil
	s.mu.Unlock()
	if g == nil {
		return
	}
	if err := closeAll(k, g); err != nil {
		s.fail("closing %s: %w", id, err)
	}
	s.net.leave(w)
	s.mu.Lock()
	n.wire = nil
	s.mu.Unlock()
}

// leader returns a server that considers itself the leader, or nil if there is none.
func (s *sim) leader() (raft.ServerID, *Group) {
	for id, l := range s.alive() {
		if l.group.Leading() {
			return id, l.group
		}
	}
	return "", nil
}

var errLate = errors.New("not within the virtual bound")

// within polls until check succeeds, for at most limit of virtual time. If check does not succeed in time, within
// records a broken guarantee and returns false.
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

// admit adds one server, or makes one non-voter a voter. It returns nil if all servers are voters. Otherwise it
// returns an error, and the caller must call it again.
func (s *sim) admit() error {
	_, g := s.leader()
	if g == nil {
		return errors.New("no server leads")
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

// equal returns an error until all running servers have applied the same index. It records a broken guarantee if two
// servers have different states at the same index.
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

// Package group runs one Raft group: a log, its leader's group commit, linearizable
// reads, snapshots that copy nothing, and the state machine over Pebble (kv).
//
// It owns one directory per group and everything that touches hashicorp/raft. It must
// never know stores, applications, partitions' keys or the network: transport and
// confirmation of terms are given to it.
//
// Goroutines of an open Group, all ended by Close: raft's own three, the transport guard,
// the proposer's three, the reader's one, the leadership watcher, the keeper (snapshots by
// log size, expiry), the disk's guard, the watch over the state, and the sender of states. All methods are safe for concurrent use.
package group

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// drainLimit bounds how long Close waits for writes under way.
const drainLimit = 2 * time.Second

// Group is one open Raft group.
type Group struct {
	opts     Options
	disk     *disk
	guard    *guard
	raft     *raft.Raft
	clock    *clock
	proposer *proposer
	reader   *reader
	obs      *groupMetrics

	readyTerm atomic.Uint64            // term of which an entry was applied here as leader
	heard     atomic.Pointer[Position] // newest commit index a leader announced since Open, with that leader's term
	alone     atomic.Bool              // as leader, saw itself as the only voter when its term began or the configuration changed last
	caughtUp  atomic.Bool              // has applied the commit index of a leader heard since Open
	changed   *signal                  // readiness or leadership may have changed
	refresh   chan struct{}            // one slot: a follower has a newer snapshot than this leader
	levels    chan struct{}            // one slot: held while the level is raised, or a server added

	comparing    comparing         // of watchState
	relieved     time.Time         // of watchState: when leadership was last to be handed over for the disk
	verifying    atomic.Bool       // a check of all records is under way
	damaged      atomic.Bool       // the last one found records that are not what was applied
	reinstalling atomic.Bool       // the state of another server is being taken over
	expected     expected          // from whom
	supply       chan StateRequest // one slot: who needs the state of this server

	closing context.Context // ends with Close
	cease   context.CancelFunc

	stop   chan struct{}
	wg     sync.WaitGroup
	closed sync.Once
	err    error
}

// Open opens the group in o.Dir, creating it if o.Bootstrap is set. ctx bounds opening,
// not the life of the group. A group of one server leads when Open returns.
func Open(ctx context.Context, o Options) (*Group, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	g := &Group{opts: o, obs: o.Metrics.group(o.ID), clock: newClock(o.Now), changed: newSignal(), refresh: make(chan struct{}, 1), levels: make(chan struct{}, 1), stop: make(chan struct{})}
	g.supply = make(chan StateRequest, 1)
	g.closing, g.cease = context.WithCancel(context.Background())
	var err error
	if g.disk, err = openDisk(o, g.obs, g.clock); err != nil {
		g.cease()
		return nil, err
	}
	g.disk.fsm.reconfigured = func() { g.alone.Store(g.lone()) }
	if err := g.startRaft(); err != nil {
		g.guard.close()
		g.cease()
		return nil, errors.Join(err, g.disk.close())
	}
	g.start()
	if g.lone() {
		g.guard.campaign()
		if err := g.WaitReady(ctx); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g, nil
}

func (g *Group) startRaft() error {
	o := g.opts
	g.guard = newGuard(o.Transport, g.disk.logs.stalled, o.Timing.Stall)
	g.guard.announce, g.guard.known, g.guard.judge, g.guard.stale = g.hear, g.known, g.judge, g.wantSnapshot
	g.guard.rebase, g.guard.durable = g.disk.logs.void.rebase, g.disk.logs.unsynced.wait
	g.guard.retained, g.guard.lastLog = &g.disk.logs.retained, g.disk.logs.last.Load
	g.guard.transfer, g.guard.wrong = g.expected.take, func() bool { return g.Doubt().replaceable() }
	g.disk.logs.base, g.disk.logs.self, g.disk.logs.lost = g.base, serverTag(o.ServerID), g.lostWrites
	conf := raft.DefaultConfig()
	conf.LocalID = o.ServerID
	conf.HeartbeatTimeout, conf.ElectionTimeout = o.Timing.Heartbeat, o.Timing.Election
	conf.LeaderLeaseTimeout, conf.CommitTimeout = o.Timing.Lease, o.Timing.Commit
	conf.MaxAppendEntries = 16 // raft counts entries, ours are up to 1 MiB
	conf.NoSnapshotRestoreOnStart = true
	conf.NoLegacyTelemetry = true
	conf.SnapshotInterval, conf.SnapshotThreshold = 24*time.Hour, 1<<62 // the keeper decides, by bytes
	conf.TrailingLogs = o.Bounds.TrailingEntries
	conf.Logger = logadapt.Raft(o.Logger.With("group", o.ID))
	if o.Bootstrap {
		if err := g.disk.bootstrap(o, conf, g.guard); err != nil {
			return fault.Wrap(err, "group.Open", "cannot make the group")
		}
	}
	if o.without != nil {
		o.without(g, conf)
	}
	r, err := raft.NewRaft(conf, g.disk.fsm, g.disk.logs, g.disk.stable, g.disk.snaps, g.guard)
	if err != nil {
		return &fault.Error{Code: fault.Internal, Op: "group.Open", Msg: fmt.Sprintf("cannot start group %d", o.ID), Err: err}
	}
	g.raft = r
	early := func() bool { return r.State() == raft.Leader && !g.lone() }
	g.disk.logs.early.Store(&early)
	g.watchElections()
	g.guard.start() // only now: what comes in ends up in callbacks that need g.raft
	return nil
}

func (g *Group) start() {
	o := g.opts
	g.proposer = newProposer(g.raft, g.disk.logs, g.clock, o.Bounds, g.obs)
	g.reader = &reader{
		raft: g.raft, self: o.ServerID, confirm: o.Confirmer, clock: g.clock, timeout: o.Timing.ReadRound, obs: g.obs,
		ready: func(term uint64) bool { return g.readyTerm.Load() == term },
	}
	g.reader.start()
	g.wg.Add(5)
	go g.watchLeadership()
	go g.keep()
	go g.guardDisk()
	go g.watchState()
	go g.supplyStates()
}

// lone reports whether this server is the only voter.
func (g *Group) lone() bool {
	others, self := (&reader{raft: g.raft, self: g.opts.ServerID}).voters()
	return self && len(others) == 0
}

// Propose puts an encoded request into the log. See proposer.propose for errors. The
// caller must not modify data until the call returns, nor, after an error, ever.
func (g *Group) Propose(ctx context.Context, data Encoded, ack Ack) (Answer, error) {
	if err := g.Trusted(); err != nil {
		return Answer{}, err // the machine here decides what the caller is told
	}
	if err := g.allow(ctx, command.Needs(data)); err != nil {
		return Answer{}, err
	}
	return g.proposer.propose(ctx, data, ack)
}

// ProposeRequest encodes and proposes r.
func (g *Group) ProposeRequest(ctx context.Context, r *command.Request, ack Ack) (Answer, error) {
	data, err := command.AppendRequest(nil, r)
	if err != nil {
		return Answer{}, err
	}
	return g.Propose(ctx, data, ack)
}

// proposeOwn proposes what the group itself needs, also while the state here is in doubt.
func (g *Group) proposeOwn(ctx context.Context, r *command.Request, ack Ack) (Answer, error) {
	data, err := command.AppendRequest(nil, r)
	if err != nil {
		return Answer{}, err
	}
	return g.proposer.propose(ctx, data, ack)
}

// ReadIndex gives a read index, on the leader only. Errors: not_leader, unavailable, timeout.
func (g *Group) ReadIndex(ctx context.Context) (ReadIndex, error) { return g.reader.get(ctx) }

// settlePoll is how often a follower looks whether its log is final up to an index that
// it was told of: nothing announces a commit that brings the machine no command.
const settlePoll = 2 * time.Millisecond

// WaitApplied waits until the local machine reflects every command up to index, which
// must be at or below the leader's commit index. Entries that never reach the machine
// need no wait; which they are is known once this server knows them to be committed.
func (g *Group) WaitApplied(ctx context.Context, index uint64) error {
	for {
		m, final := g.Machine(), g.final(index)
		target := index
		if final {
			target = g.disk.logs.tail.lastVisible(index, g.disk.fsm.floor.Load())
		}
		if m.Applied() >= target {
			return nil
		}
		err := waitMachine(ctx, m, target, final)
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case m != g.Machine(): // a received snapshot has replaced it
		case !final && fault.Is(err, fault.Timeout): // there may be more to know now
		default:
			return err
		}
	}
}

// final reports whether no entry up to index can be replaced in this server's log.
func (g *Group) final(index uint64) bool {
	return index <= max(g.raft.CommitIndex(), g.disk.fsm.floor.Load())
}

func waitMachine(ctx context.Context, m *kv.Machine, target uint64, final bool) error {
	if !final {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, settlePoll)
		defer cancel()
	}
	return m.Wait(ctx, target)
}

// Machine is the live state machine. A reader that finds it closed asks again: a received
// snapshot has replaced it.
func (g *Group) Machine() *kv.Machine { return g.disk.fsm.machine() }

// Now is the best lower bound of cluster time this node has, in milliseconds: the
// leader's time on the leader, what was heard of it elsewhere.
func (g *Group) Now() uint64 {
	if g.Leading() {
		return g.clock.leader()
	}
	return g.clock.replica()
}

// Leading reports whether this server leads and has applied an entry of its term. It may
// be out of date by the time it returns: only ReadIndex proves leadership.
func (g *Group) Leading() bool {
	return g.raft.State() == raft.Leader && g.readyTerm.Load() == g.raft.CurrentTerm()
}

// Term is the current term of this server.
func (g *Group) Term() uint64 { return g.raft.CurrentTerm() }

// Leader is the server that this one takes for the leader; empty if it knows none.
func (g *Group) Leader() raft.ServerID {
	_, id := g.raft.LeaderWithID()
	return id
}

// CaughtUp reports whether the machine is trusted and has applied the commit index of a leader that was
// heard since Open. Until then it may be as old as the moment the node stopped.
func (g *Group) CaughtUp() bool {
	if g.Doubt() != nil {
		return false
	}
	if g.caughtUp.Load() {
		return true
	}
	h := g.heard.Load()
	// A new leader's commit index covers its predecessors' only from its own first entry on.
	if h == nil || g.Holds(*h) != Held || g.Machine().Applied() < g.disk.logs.tail.lastVisible(h.Index, g.disk.fsm.floor.Load()) {
		return false
	}
	g.caughtUp.Store(true)
	return true
}

// LastIndex is the index of the newest entry this server has, in its log or in the
// snapshot below it.
func (g *Group) LastIndex() uint64 { return max(g.disk.logs.last.Load(), g.disk.snaps.index()) }

// Age is an upper bound of how old the local machine's state is: the time since a
// majority confirmed an index that the machine has applied since. A server that leads
// alone is never behind. Not known before the first confirmation.
func (g *Group) Age() (age time.Duration, known bool) {
	if g.Leading() && g.alone.Load() {
		return 0, true
	}
	c := g.reader.confirmed.Load()
	if c == nil || g.Machine().Applied() < g.disk.logs.tail.lastVisible(c.index, g.disk.fsm.floor.Load()) {
		return 0, false
	}
	return time.Since(c.at), true
}

// Holds reports whether the local log holds, or held, the entry that was written at pos.
// Lost means that another leader replaced it; Unknown that this server has not got so far,
// or that pos is older than the machine remembers (see kv.Machine.Wrote). For a part of the
// log that was dropped the answer is about commands: pos is that of a write.
func (g *Group) Holds(pos Position) Holding {
	if term, known := g.disk.logs.termAt(pos.Index); known {
		if term < pos.Term {
			return Unknown // this server has not heard of the newer leader
		}
		return held(term == pos.Term)
	}
	// Not raft's own last index: it moves only after the durable signal was given.
	snap := g.disk.snaps.position()
	if pos.Index > snap.Index {
		return Unknown // not here
	}
	if pos.Term < snap.Term { // here no longer, but the machine remembers what it applied
		if wrote, known := g.Machine().Wrote(pos.Term, pos.Index); known {
			return held(wrote)
		}
		return Unknown
	}
	// Terms never fall along a log, and a leader only appends: an entry of the snapshot's
	// own term that is not above it belongs to the same log.
	return held(pos.Term == snap.Term)
}

func held(is bool) Holding {
	if is {
		return Held
	}
	return Lost
}

// Holding is what a server can tell about a position.
type Holding uint8

// The answers of Holds.
const (
	Held Holding = iota
	Lost
	Unknown
)

// AnswerConfirm answers another leader's question: nil if this live instance knows no
// term above term.
func (g *Group) AnswerConfirm(term uint64) error {
	select {
	case <-g.stop:
		return errClosing()
	default:
	}
	if g.raft.State() == raft.Shutdown {
		return errClosing()
	}
	if have := g.raft.CurrentTerm(); have > term {
		return fault.New(fault.NotLeader, "group.ConfirmTerm", fmt.Sprintf("term %d is over, this server has seen term %d", term, have))
	}
	return nil
}

// WaitChange waits until leadership may have changed, or limit has passed, or ctx ends. It
// returns at once when the group is closing.
func (g *Group) WaitChange(ctx context.Context, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-g.changed.wait():
	case <-t.C:
	case <-g.stop:
	case <-ctx.Done():
	}
}

// WaitReady waits until this server leads and may serve, or ctx ends.
func (g *Group) WaitReady(ctx context.Context) error {
	for {
		changed := g.changed.wait()
		if g.Leading() {
			return nil
		}
		select {
		case <-changed:
		case <-g.stop:
			return errClosing()
		case <-ctx.Done():
			return &fault.Error{Code: fault.Timeout, Op: "group.WaitReady", Msg: fmt.Sprintf("group %d has no leader yet", g.opts.ID), Err: ctx.Err()}
		}
	}
}

// Snapshot takes a snapshot now.
func (g *Group) Snapshot() error {
	err := g.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
}

// settle waits, while somebody waits for a write, until the machine has what is committed:
// raft forgets, unanswered, what it has not handed to the machine when it is shut down. A
// machine that can go on does so; for one that hangs raft's own shutdown would wait too.
func (g *Group) settle() {
	select {
	case <-g.proposer.done:
		return
	default:
	}
	if g.raft.State() == raft.Shutdown {
		return // raft ended by itself, for it was removed: it hands out nothing more
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	_ = g.WaitApplied(ctx, g.raft.CommitIndex()) // an error: the machine cannot go on, callers are told below
}

// Close hands nothing over and stops the group: it waits for writes under way (briefly),
// for every goroutine, and closes the files. Idempotent.
func (g *Group) Close() error {
	g.closed.Do(func() {
		close(g.stop)
		g.cease()
		g.proposer.drain(drainLimit)
		g.settle()
		g.reader.close()
		err := g.raft.Shutdown().Error()
		g.proposer.wait(drainLimit)
		g.proposer.abandon()
		g.wg.Wait()
		g.guard.close()
		g.err = errors.Join(err, g.disk.close())
	})
	return g.err
}

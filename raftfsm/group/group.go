// Package group runs one Raft group: its log, group commit on the leader, linearizable reads, snapshots that consist
// of hard links, and the state machine over Pebble (package kv).
//
// It owns the directory of the group, and no other package starts hashicorp/raft. It knows nothing of stores,
// applications, or which keys belong to which partition. It uses the network only through the transport and the
// Confirmer that the caller supplies.
//
// An open Group has the following goroutines, which Close ends: three of raft, the transport guard, three of the
// proposer, one of the reader, and one each for leadership changes, housekeeping (snapshots, expiry), slow-disk
// detection, state comparison and sending state. All methods are safe for concurrent use.
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
	"github.com/quorate/quorate/internal/signal"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/integrity"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/transport"
)

// drainLimit bounds how long Close waits for proposals in flight.
const drainLimit = 2 * time.Second

// Group is one open Raft group.
type Group struct {
	opts     Options
	disk     *disk
	guard    *transport.Guard
	raft     *raft.Raft
	clock    *clock
	proposer *proposer
	reader   *reader
	witness  *transport.Witness
	obs      *groupMetrics
	leaders  leaderHistory

	integrity *integrity.Watch

	readyTerm atomic.Uint64 // newest term in which this server, as leader, applied an entry
	// newest commit index announced by a leader since Open, with the term of that leader
	heard atomic.Pointer[raftlog.Position]
	// true once the machine has applied a commit index announced since Open
	caughtUp atomic.Bool
	changed  *signal.Signal // readiness or leadership may have changed
	refresh  chan struct{}  // capacity 1: a follower has a newer snapshot than this leader
	levels   chan struct{}  // capacity 1: held while the level is raised or a server is added

	relieved  time.Time   // when watchState last tried to transfer leadership because of a slow disk
	verifying atomic.Bool // a verification of all records is running

	started chan struct{}   // closed once Raft and the goroutines of the group run
	closing context.Context // ends with Close
	cease   context.CancelFunc

	stop   chan struct{}
	wg     sync.WaitGroup
	closed sync.Once
	err    error
}

// Open opens the group in o.Dir, and creates it if o.Bootstrap is set. ctx limits only how long Open takes. If this
// server is the only one of the group, it leads when Open returns.
func Open(ctx context.Context, o Options) (*Group, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	g := &Group{opts: o, obs: o.Metrics.group(o.ID), clock: newClock(o.Now), changed: signal.New(),
		refresh: make(chan struct{}, 1), levels: make(chan struct{}, 1), stop: make(chan struct{}),
		started: make(chan struct{})}
	g.closing, g.cease = context.WithCancel(context.Background())
	o.databaseFailed = g.databaseFailed
	var err error
	if g.disk, err = openDisk(o, g.obs, g.clock); err != nil {
		g.cease()
		return nil, err
	}
	if err := g.startRaft(); err != nil {
		g.guard.Close()
		g.cease()
		return nil, errors.Join(err, g.disk.close())
	}
	g.start()
	if g.lone() {
		if err := g.checkTables(); err != nil {
			return nil, errors.Join(err, g.Close())
		}
		g.guard.Campaign()
		if err := g.WaitReady(ctx); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g, nil
}

func (g *Group) startRaft() error {
	o := g.opts
	g.witness = transport.NewWitness(transport.WitnessConfig{
		Ask: o.Witnesses, Self: o.ServerID, Opened: g.disk.opened, Timeout: min(o.Timing.ReadRound, o.Timing.Heartbeat),
		Every: o.Timing.WitnessEvery,
		Dir:   o.Dir, Members: follower{g}, Process: process{o},
	}, &g.disk.seen)
	g.integrity = integrity.New(integrity.Config{
		Group: o.ID, Self: o.ServerID, Every: o.Timing.Compare, ReadRound: o.Timing.ReadRound, Closing: g.closing,
		Logger: o.Logger, Replicas: o.Replicas,
		Volume: o.volume, Log: g.disk.logs, Disk: g.disk.pace, Snapshots: g.disk.snaps, FSM: g.disk.fsm,
		Raft: follower{g}, Events: stateEvents{g}, Sender: transport.Sender{Transport: o.Transport},
	})
	g.guard = transport.New(o.Transport, o.Timing.Stall, g.disk.logs, follower{g}, g.integrity, g.witness)
	conf := raft.DefaultConfig()
	conf.LocalID = o.ServerID
	conf.HeartbeatTimeout, conf.ElectionTimeout = o.Timing.Heartbeat, o.Timing.Election
	conf.LeaderLeaseTimeout, conf.CommitTimeout = o.Timing.Lease, o.Timing.Commit
	conf.MaxAppendEntries = 16 // raft counts entries, and an entry here has up to 1 MiB
	conf.NoSnapshotRestoreOnStart = true
	conf.NoLegacyTelemetry = true
	// snapshots are taken by keep, which measures bytes
	conf.SnapshotInterval, conf.SnapshotThreshold = 24*time.Hour, 1<<62
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
	r, err := raft.NewRaft(conf, g.disk.machine(o), g.disk.logs, g.disk.stable, g.disk.snaps, g.guard)
	if err != nil {
		return &fault.Error{Code: fault.Internal, Op: "group.Open", Msg: fmt.Sprintf("cannot start group %d", o.ID),
			Err: err}
	}
	g.raft = r
	g.disk.role.raft.Store(r)
	g.watchElections()
	g.guard.Start() // only now: handlers of incoming messages use g.raft
	return nil
}

func (g *Group) start() {
	o := g.opts
	g.proposer = newProposer(g.raft, g.disk.logs, g.clock, o.Bounds, g.obs, g.disk.role.alone.Load)
	g.reader = &reader{
		raft: g.raft, self: o.ServerID, confirm: o.Confirmer, clock: g.clock, timeout: o.Timing.ReadRound, obs: g.obs,
		ready: func(term uint64) bool { return g.readyTerm.Load() == term },
	}
	g.reader.start()
	g.wg.Go(func() { g.witness.Run(g.closing, g.stop) })
	g.wg.Go(g.integrity.SupplyStates)
	if o.Contacts != nil {
		g.wg.Go(g.watchLeader)
	}
	g.wg.Add(4)
	go g.watchLeadership()
	go g.keep()
	go g.guardDisk()
	go g.watchState()
	close(g.started)
}

// lone reports whether this server is the only voter.
func (g *Group) lone() bool { return lone(g.raft, g.opts.ServerID) }

func lone(r *raft.Raft, self raft.ServerID) bool {
	others, voter := (&reader{raft: r, self: self}).voters()
	return voter && len(others) == 0
}

// Propose appends an encoded request to the log and waits for its outcome. The caller may reuse the memory of data
// only if Propose returns nil, because after an error the request may still be in use.
//
// Propose returns fault.Unavailable if this server does not trust its state, or does not know the version of every
// other server. It returns fault.Invalid if a server is too old to read the request. It also returns the errors of
// proposer.propose.
func (g *Group) Propose(ctx context.Context, data Encoded, ack Ack) (Answer, error) {
	if err := g.Trusted(); err != nil {
		return Answer{}, err // the result comes from the machine of this server, so it must be trusted
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

// proposeOwn proposes a request that the group itself has created. Unlike Propose, it also works while this server
// does not trust its state.
func (g *Group) proposeOwn(ctx context.Context, r *command.Request, ack Ack) (Answer, error) {
	data, err := command.AppendRequest(nil, r)
	if err != nil {
		return Answer{}, err
	}
	return g.proposer.propose(ctx, data, ack)
}

// ReadIndex returns an index for a linearizable read. It returns fault.NotLeader if this server does not lead. It
// returns fault.Unavailable if no majority of voters confirms the leadership, or if the group is closing, and
// fault.Timeout if ctx ends first.
func (g *Group) ReadIndex(ctx context.Context) (ReadIndex, error) { return g.reader.get(ctx) }

// settlePoll is the interval at which a follower checks the commit index while it waits for an entry to be
// committed. Raft sends no notification when it commits an entry without a command.
const settlePoll = 2 * time.Millisecond

// WaitApplied waits until the local machine has applied every command up to the given index, which must be at most the
// commit index of the leader. WaitApplied ignores entries without a command, because raft does not pass them to the
// machine.
func (g *Group) WaitApplied(ctx context.Context, index uint64) error {
	for {
		m, final := g.Machine(), g.final(index)
		target := index
		if final {
			target = g.disk.logs.LastVisible(index, g.disk.fsm.Floor())
		}
		if m.Applied() >= target {
			return nil
		}
		err := waitMachine(ctx, m, target, final)
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case m != g.Machine(): // a received snapshot has replaced m
		case !final && fault.Is(err, fault.Timeout): // more entries may be known as committed by now
		default:
			return err
		}
	}
}

// final reports whether the entries up to the given index are committed or applied, so that no leader can replace
// them.
func (g *Group) final(index uint64) bool {
	return index <= max(g.raft.CommitIndex(), g.disk.fsm.Floor())
}

func waitMachine(ctx context.Context, m *kv.Machine, target uint64, final bool) error {
	if !final {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, settlePoll)
		defer cancel()
	}
	return m.Wait(ctx, target)
}

// Machine returns the live state machine. When a received snapshot replaces the machine, the previous one is closed.
// If a read fails because its machine was closed, the caller must call Machine again and repeat the read.
func (g *Group) Machine() *kv.Machine { return g.disk.fsm.Machine() }

// Now returns a lower bound of cluster time, in milliseconds. On the leader this is the current cluster time. On other
// servers it is computed from the timestamps of the entries that they have applied.
func (g *Group) Now() uint64 {
	if g.Leading() {
		return g.clock.leader()
	}
	return g.clock.replica()
}

// ID returns the number of the group.
func (g *Group) ID() uint32 { return g.opts.ID }

// Leading reports whether this server is the leader and has applied an entry of its term. The leader may have changed
// when Leading returns; only ReadIndex proves leadership.
func (g *Group) Leading() bool {
	return g.raft.State() == raft.Leader && g.readyTerm.Load() == g.raft.CurrentTerm()
}

// Term returns the current term of this server.
func (g *Group) Term() uint64 { return g.raft.CurrentTerm() }

// Leader returns the leader that this server knows; empty if it knows none.
func (g *Group) Leader() raft.ServerID {
	_, id := g.raft.LeaderWithID()
	return id
}

// CaughtUp reports whether the local state is trusted and recent enough to serve reads. The state is recent enough
// once the machine has applied up to a commit index that a leader has announced since Open. Before that, it may be as
// old as the last stop of the node.
func (g *Group) CaughtUp() bool {
	if g.Doubt() != nil {
		return false
	}
	if g.caughtUp.Load() {
		return true
	}
	h := g.heard.Load()
	// The commit index of a new leader covers earlier terms only from its own first entry on.
	if h == nil || g.Holds(*h) != Held || g.Machine().Applied() < g.disk.logs.LastVisible(h.Index, g.disk.fsm.Floor()) {
		return false
	}
	g.caughtUp.Store(true)
	return true
}

// LastIndex returns the index of the newest entry that this server has in its log or its snapshot.
func (g *Group) LastIndex() uint64 { return max(g.disk.logs.Last(), g.disk.snaps.Index()) }

// Age returns an upper bound of the age of the local state: the time since a majority last confirmed the leader. known
// is false if there was no confirmation, or if the machine has not yet applied the commit index of that moment. On a
// leader without other voters the age is always 0.
func (g *Group) Age() (age time.Duration, known bool) {
	if g.Leading() && g.disk.role.alone.Load() {
		return 0, true
	}
	c := g.reader.confirmed.Load()
	if c == nil || g.Machine().Applied() < g.disk.logs.LastVisible(c.index, g.disk.fsm.Floor()) {
		return 0, false
	}
	return time.Since(c.at), true
}

// Holds reports whether the local log contains the entry written at pos, or contained it before compaction. It returns
// Lost if another leader has replaced the entry, and Unknown if this server does not have enough information. If the
// log is compacted beyond pos, the entry at pos must be a command.
func (g *Group) Holds(pos raftlog.Position) Holding {
	if term, known := g.disk.logs.TermAt(pos.Index); known {
		if term < pos.Term {
			return Unknown // this server does not know the newer term yet
		}
		return held(term == pos.Term)
	}
	// Do not use raft's own last index: it changes only after the durable signal.
	snap := g.disk.snaps.Position()
	if pos.Index > snap.Index {
		return Unknown // not received yet
	}
	if pos.Term < snap.Term { // compacted, but the machine remembers the terms it applied
		if wrote, known := g.Machine().Wrote(pos.Term, pos.Index); known {
			return held(wrote)
		}
		return Unknown
	}
	// Terms never decrease along a log, and a leader only appends. So an entry with the snapshot's term at or
	// below the snapshot index is in the same log.
	return held(pos.Term == snap.Term)
}

func held(is bool) Holding {
	if is {
		return Held
	}
	return Lost
}

// Holding is the answer of Holds.
type Holding uint8

// Answers of Holds.
const (
	Held Holding = iota
	Lost
	Unknown
)

// AnswerConfirm answers Confirmer.ConfirmTerm, by which another server asks whether it may still lead in the given
// term. It returns nil if this server knows no higher term, fault.NotLeader if it knows one, and fault.Unavailable if
// Raft no longer runs here.
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
		return fault.New(fault.NotLeader, "group.ConfirmTerm",
			fmt.Sprintf("term %d is over, this server has seen term %d", term, have))
	}
	return nil
}

// WaitChange waits until leadership may have changed, the time in limit has passed, or ctx has ended. If the group is
// closing, it returns at once.
func (g *Group) WaitChange(ctx context.Context, limit time.Duration) {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-g.changed.Wait():
	case <-t.C:
	case <-g.stop:
	case <-ctx.Done():
	}
}

// WaitReady waits until this server leads and can serve requests, or ctx ends.
func (g *Group) WaitReady(ctx context.Context) error {
	for {
		changed := g.changed.Wait()
		if g.Leading() {
			return nil
		}
		select {
		case <-changed:
		case <-g.stop:
			return errClosing()
		case <-ctx.Done():
			return &fault.Error{Code: fault.Timeout, Op: "group.WaitReady",
				Msg: fmt.Sprintf("group %d has no leader yet", g.opts.ID), Err: ctx.Err()}
		}
	}
}

// Snapshot takes a snapshot and returns when it is complete.
func (g *Group) Snapshot() error {
	err := g.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
}

// settle waits up to drainLimit until the machine has applied every committed entry. It does so only if proposals are
// in flight. Without the wait, their callers would get no answer, because raft's shutdown drops committed entries that
// it has not yet passed to the machine.
func (g *Group) settle() {
	select {
	case <-g.proposer.done:
		return
	default:
	}
	if g.raft.State() == raft.Shutdown {
		return // raft has already shut down, because this server was removed
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	// on an error the machine cannot continue; abandon answers the callers
	_ = g.WaitApplied(ctx, g.raft.CommitIndex())
}

// Close stops the group and closes its files. It waits up to drainLimit for proposals in flight, and then without a
// time limit for all goroutines. It does not transfer leadership. Close is idempotent.
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
		g.guard.Close()
		err = errors.Join(err, g.disk.logs.Drain(), g.disk.floors.Write())
		g.err = errors.Join(err, g.disk.close())
	})
	return g.err
}

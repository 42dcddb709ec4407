// Package group runs one Raft group: its log, group commit on the leader, linearizable reads, snapshots and the state
// machine over Pebble (package kv).
//
// The package owns the directory of the group. No other package starts hashicorp/raft. The package does not know
// stores, applications, or the assignment of keys to partitions. It uses the network only through Options: Transport,
// Confirmer, Contacts, Replicas and Witnesses.
//
// All methods are safe for concurrent use. Close ends the goroutines of an open Group:
//
//   - three of raft, and four of the proposer
//   - one each for the transport guard, the witness (see package transport), reads and leadership changes
//   - one each for announcements of the commit index, housekeeping (snapshots, expiry, disk space), and sending state
//   - one that detects a hanging disk, and one that compares states and detects a slow disk
//   - one that detects a lost leader, if Options.Contacts is set
//   - others that run only while they have work, for example while a snapshot is taken
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

// drainLimit is the maximum duration of one wait for proposals in flight. Close waits up to three times.
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
	// last commit index that a leader has announced since Open, with the term of that leader
	heard atomic.Pointer[raftlog.Position]
	// true once the machine has applied a commit index that a leader has announced since Open, or once this server
	// has led
	caughtUp atomic.Bool
	changed  *signal.Signal // fires when leadership, readiness or the trust in the state may have changed
	refresh  chan struct{}  // capacity 1; gets a value when a follower has a newer snapshot than this leader
	levels   chan struct{}  // capacity 1; used as a lock while the level is raised or a server is added

	relieved  time.Time   // when watchState last tried to transfer leadership because of a slow disk
	verifying atomic.Bool // a verification of all records is running

	reclaiming atomic.Bool // Group.reclaim is running
	reclaimed  reclaim     // used only by Group.reclaim

	started chan struct{}   // closed once Raft and the goroutines of the group run
	closing context.Context // ends when Close begins
	cease   context.CancelFunc

	stop   chan struct{}
	wg     sync.WaitGroup
	closed sync.Once
	err    error
}

// Open opens the group in o.Dir, and creates its files if there are none. If o.Bootstrap is set, Open also makes this
// server the only voter of a new group.
//
// If this server is the only voter, Open waits until it leads. ctx limits this wait, and has no effect after Open has
// returned.
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
		err := g.WaitReady(ctx)
		if err == nil && o.Bootstrap {
			err = g.begin(ctx)
		}
		if err != nil {
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
	conf.MaxAppendEntries = 16 // raft limits only the number of entries, and an entry here may have 1 MiB or more
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
	g.proposer = newProposer(g.disk.logs, g.clock, o.Bounds, g.obs, g.disk.role.alone.Load)
	r, err := raft.NewRaft(conf, g.disk.machine(o), writePath{g.disk.logs, g.proposer}, g.disk.stable, g.disk.snaps,
		g.guard)
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
	g.proposer.start(g.raft)
	g.reader = &reader{
		raft: g.raft, self: o.ServerID, confirm: o.Confirmer, clock: g.clock, timeout: o.Timing.ReadRound, obs: g.obs,
		ready: func(term uint64) bool { return g.readyTerm.Load() == term },
	}
	g.reader.start()
	g.wg.Go(func() { g.witness.Run(g.closing, g.stop) })
	g.wg.Go(g.integrity.SupplyStates)
	g.wg.Go(g.announce)
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

// Propose appends an encoded request to the log and waits for its outcome. After an error, data may still be in use,
// so the caller must not reuse its memory. Error codes:
//
//	too_large       not applied: the request has more than MaxRequest bytes
//	not_leader      not applied: this server does not lead
//	overloaded      not applied: too many requests are waiting
//	format_blocked  not applied: a server is too old to read the request, or its version is unknown
//	unavailable     not applied: the group is closing, or this server does not trust its state
//	timeout         not applied: ctx has ended before the request was put into an entry
//	indeterminate   may have been applied
func (g *Group) Propose(ctx context.Context, data Encoded, ack Ack) (Answer, error) {
	if err := g.Trusted(); err != nil {
		return Answer{}, err // the result comes from the machine of this server, so it must be trusted
	}
	if err := g.allow(ctx, command.Needs(data)); err != nil {
		return Answer{}, err
	}
	return g.proposer.propose(ctx, data, ack)
}

// ProposeRequest encodes and proposes r. It returns the errors of command.AppendRequest and Propose.
func (g *Group) ProposeRequest(ctx context.Context, r *command.Request, ack Ack) (Answer, error) {
	data, err := command.AppendRequest(nil, r)
	if err != nil {
		return Answer{}, err
	}
	return g.Propose(ctx, data, ack)
}

// proposeOwn proposes a request that the group itself has created. Unlike Propose, it does not require that this
// server trusts its state.
func (g *Group) proposeOwn(ctx context.Context, r *command.Request, ack Ack) (Answer, error) {
	data, err := command.AppendRequest(nil, r)
	if err != nil {
		return Answer{}, err
	}
	return g.proposer.propose(ctx, data, ack)
}

// ReadIndex returns an index for a linearizable read. It returns fault.NotLeader if this server does not lead, and
// fault.Timeout if ctx ends first. It returns fault.Unavailable if the group is closing, or if no majority of voters
// confirms that this server leads.
func (g *Group) ReadIndex(ctx context.Context) (ReadIndex, error) { return g.reader.get(ctx) }

// settlePoll is the interval at which a waiting follower checks the commit index. The follower must poll, because
// Raft does not report the commit of an entry without a command.
const settlePoll = 2 * time.Millisecond

// WaitApplied waits until the local machine has applied all commands up to the given index. It does not wait for no-ops
// and barriers, because raft does not pass them to the machine. The index must not exceed the commit index of the
// leader. WaitApplied returns fault.Timeout if ctx ends first, and fault.Unavailable if the machine is closed or cannot
// continue.
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

// final reports whether this server knows that the entries up to the given index are committed. No leader can replace
// such entries.
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

// Machine returns the current state machine. A received snapshot replaces the machine and closes the previous one.
// If a read fails because its machine was closed, the caller must call Machine again and repeat the read.
func (g *Group) Machine() *kv.Machine { return g.disk.fsm.Machine() }

// Now returns the cluster time in Unix milliseconds. On the leader, the result is exact. Other servers compute a lower
// bound from the timestamps of the entries that they have applied.
func (g *Group) Now() uint64 {
	if g.Leading() {
		return g.clock.leader()
	}
	return g.clock.replica()
}

// ID returns the number of the group.
func (g *Group) ID() uint32 { return g.opts.ID }

// Leading reports whether this server is the leader and has applied an entry of its term. The result may be out of
// date when Leading returns. Only ReadIndex proves leadership.
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

// CaughtUp reports whether the local state is trusted and recent enough to serve reads. After Open, the state can be as
// old as the last stop of the node. It is recent enough in two cases:
//
//   - This server has led since Open.
//   - A leader has announced a commit index since Open, and the machine has applied it.
func (g *Group) CaughtUp() bool {
	if g.Doubt() != nil {
		return false
	}
	if g.caughtUp.Load() {
		return true
	}
	h := g.heard.Load()
	// A new leader may know too low a commit index until an entry of its own term is committed. So the entry at the
	// announced index must be of the term of that leader.
	if h == nil || g.Holds(*h) != Held || g.Machine().Applied() < g.disk.logs.LastVisible(h.Index, g.disk.fsm.Floor()) {
		return false
	}
	g.caughtUp.Store(true)
	return true
}

// LastIndex returns the index of the newest entry that this server has in its log or its snapshot.
func (g *Group) LastIndex() uint64 { return max(g.disk.logs.Last(), g.disk.snaps.Index()) }

// Age returns an upper bound of the age of the local state. This is the time since a majority last confirmed that this
// server leads. On a leader without other voters, the age is always 0. The result known is false if there was no such
// confirmation, or if the machine has not applied all entries that were committed by then.
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

// Holds reports whether the local log has the entry that was written at the given position:
//
//   - Held: the log contains the entry, or contained it before compaction.
//   - Lost: another leader has replaced the entry.
//   - Unknown: this server does not have the information.
//
// After compaction, the result is correct only for commands, because the state machine records no other entries.
func (g *Group) Holds(pos raftlog.Position) Holding {
	if term, known := g.disk.logs.TermAt(pos.Index); known {
		if term < pos.Term {
			return Unknown // this server does not know the newer term yet
		}
		return held(term == pos.Term)
	}
	// Do not use raft's own last index: raft updates it only after StoreLogs has returned, so it may be too low.
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
	// Terms never decrease along a log, and a leader only appends to its log. So the snapshot covers every entry of
	// its own term up to its index. It covers no entry of a later term.
	return held(pos.Term == snap.Term)
}

func held(is bool) Holding {
	if is {
		return Held
	}
	return Lost
}

// Holding is the result of Group.Holds.
type Holding uint8

// Results of Group.Holds.
const (
	Held Holding = iota
	Lost
	Unknown
)

// AnswerConfirm answers the ConfirmTerm query of the leader of the given term (see Confirmer). It returns nil if
// this server knows no higher term, and fault.NotLeader otherwise. It returns fault.Unavailable if Raft no longer
// runs here.
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

// WaitChange waits until leadership may have changed, limit has passed, or ctx has ended. It returns at once if the
// group is closing.
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

// WaitReady waits until this server leads and can serve requests. It returns fault.Timeout if ctx ends first, and
// fault.Unavailable if the group is closing.
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

// Snapshot takes a snapshot and returns when it is complete. If raft has passed no entry to the machine since the
// group was opened, Snapshot does nothing and returns nil.
func (g *Group) Snapshot() error {
	err := g.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
}

// settle waits until the machine has applied every committed entry, for at most drainLimit. It returns at once if no
// proposals are in flight.
//
// Call settle before the shutdown of raft. The shutdown drops committed entries that are not yet applied, and their
// proposals end with fault.Indeterminate.
func (g *Group) settle() {
	select {
	case <-g.proposer.done:
		return
	default:
	}
	if g.raft.State() == raft.Shutdown {
		return // raft has already shut down, because this server was removed or Retire was called
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	// After a timeout, or if the machine cannot continue, abandon answers the callers.
	_ = g.WaitApplied(ctx, g.raft.CommitIndex())
}

// Close stops the group and closes its files. It first waits for proposals in flight, up to three times drainLimit. It
// then waits for all goroutines, without a time limit. It does not transfer leadership. It is idempotent.
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

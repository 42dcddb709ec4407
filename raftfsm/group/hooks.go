package group

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"
	"github.com/quorate/quorate/raftfsm/transport"
)

// The log, the snapshots and the transport are created before Raft runs. This file implements the interfaces
// through which they use the group.

// process receives calls from the log, the snapshots and the witness. It passes them to Options.Fatal, Options.Step and
// Server.Raise.
type process struct{ o Options }

// Fatal reports an error after which this replica cannot be trusted.
func (p process) Fatal(err error) { p.o.Fatal(err) }

// Step reports a step of disk work, for crash tests.
func (p process) Step(name string) { p.o.Step(name) }

// Raise records durably that entries of the given version may be written to the log.
func (p process) Raise(version uint8) error {
	return p.o.Server.Raise(version)
}

// role implements raftlog.Role. It reports which role this server has in the group.
type role struct {
	self raft.ServerID
	disk *disk
	raft atomic.Pointer[raft.Raft] // nil until Raft runs

	advanced chan struct{} // capacity 1; gets a value when the machine applies entries while this server leads others

	// alone is set on a leader without other voters. It is updated at the start of a term and when the configuration
	// changes
	alone atomic.Bool
}

// Running reports whether Raft runs.
func (r *role) Running() bool { return r.raft.Load() != nil }

// Base returns the position of the newest snapshot. The result follows is true if this server is not the leader. Before
// Raft runs, both results are zero.
func (r *role) Base() (end raftlog.Position, follows bool) {
	running := r.raft.Load()
	if running == nil {
		return raftlog.Position{}, false
	}
	return r.disk.snaps.Position(), running.State() != raft.Leader
}

// LeadsOthers reports whether this server leads a group with other voters.
func (r *role) LeadsOthers() bool {
	running := r.raft.Load()
	return running != nil && running.State() == raft.Leader && !lone(running, r.self)
}

// logEvents implements raftlog.Events. It counts the writes of the log, and the acknowledged writes that were lost.
type logEvents struct {
	o    Options
	obs  *groupMetrics
	pace *raftlog.DiskSpeed
}

// Appended records one log write: its duration, and the number of entries and bytes.
func (e *logEvents) Appended(took time.Duration, entries, bytes int) {
	e.obs.appended(took, entries, bytes)
	e.pace.Add(took)
	e.o.Server.Wrote(bytes)
}

// Lost counts and logs acknowledged writes that a new leader has overwritten.
func (e *logEvents) Lost(writes int) {
	e.obs.eventualLost.Add(float64(writes))
	e.o.Logger.Warn("eventual writes are lost: this server acknowledged them as leader, and another took over "+
		"before a quorum had them",
		"group", e.o.ID, "writes", writes)
}

// floorSources implements raftlog.FloorSources. It supplies the parts of the floor that are not in the log or in the
// file of terms and votes.
type floorSources struct {
	o    Options
	disk *disk
}

// Owner returns the cluster to which the group belongs.
func (s floorSources) Owner() raftlog.Owner { return s.o.Server.Owner() }

// SnapshotExtent returns two indexes from the manifest: the index of the snapshot, and the index of the newest
// command that the database has on disk. Both are 0 if there is no snapshot, or if the snapshots are not open yet.
func (s floorSources) SnapshotExtent() (index, applied uint64) {
	if s.disk.snaps == nil {
		return 0, 0
	}
	return s.disk.snaps.Extent()
}

// SeenOfOthers returns what this server has seen of other servers, by server id.
func (s floorSources) SeenOfOthers() map[string]raftlog.Seen { return s.disk.seen.All() }

// machineEvents implements snapshot.Events. It counts the events of the state machine. It also notifies the parts of
// the group that need the events, for example the watcher of locks.
type machineEvents struct {
	clock  *clock
	obs    *groupMetrics
	role   *role
	locks  RecordWatcher
	due    RecordWatcher
	topics RecordWatcher
	flows  RecordWatcher
}

// ClockSeen records the cluster time of the state machine, in milliseconds.
func (e *machineEvents) ClockSeen(ms uint64) { e.clock.observe(ms) }

// EntriesApplied records how long it took to apply a batch of entries. On a leader with other voters, it also wakes
// Group.announce.
func (e *machineEvents) EntriesApplied(took time.Duration) {
	e.obs.applySeconds.Observe(took.Seconds())
	if running := e.role.raft.Load(); running == nil || running.State() != raft.Leader || e.role.alone.Load() {
		return
	}
	select {
	case e.role.advanced <- struct{}{}:
	default:
	}
}

// LocksChanged notifies the watcher of locks.
func (e *machineEvents) LocksChanged() { e.locks.Update() }

// DueChanged notifies the watcher of due work.
func (e *machineEvents) DueChanged() { e.due.Update() }

// TopicsChanged notifies the watcher of topics.
func (e *machineEvents) TopicsChanged() { e.topics.Update() }

// WorkflowsReplaced notifies the watcher of workflows.
func (e *machineEvents) WorkflowsReplaced() { e.flows.Update() }

// Reconfigured updates role.alone after a change of the members.
func (e *machineEvents) Reconfigured() {
	if running := e.role.raft.Load(); running != nil {
		e.role.alone.Store(lone(running, e.role.self))
	}
}

// SnapshotTaken counts a snapshot.
func (e *machineEvents) SnapshotTaken(took time.Duration) { e.obs.snapshots.Observe(took.Seconds()) }

// SnapshotInstalled counts a received snapshot.
func (e *machineEvents) SnapshotInstalled() { e.obs.installed.Inc() }

// machine returns the state machine to which Raft applies entries.
func (d *disk) machine(o Options) raft.FSM {
	if o.tamper == nil {
		return d.fsm
	}
	return &tampered{d.fsm, o.tamper}
}

// tampered is a state machine that applies altered entries, for tests of state comparison.
type tampered struct {
	*snapshot.FSM
	tamper func([]kv.Entry)
}

// ApplyBatch applies a batch after tamper has altered it.
func (t *tampered) ApplyBatch(batch []*raft.Log) []any {
	entries, changed := make([]kv.Entry, len(batch)), make([]*raft.Log, len(batch))
	for i, l := range batch {
		entries[i] = kv.Entry{Index: l.Index, Term: l.Term, Data: l.Data}
	}
	t.tamper(entries)
	for i, l := range batch {
		c := *l
		c.Data = entries[i].Data
		changed[i] = &c
	}
	return t.FSM.ApplyBatch(changed)
}

// follower gives the transport, its witness and the state comparison access to the group. Despite its name, a follower
// is also used on a leader. It is used only while Raft runs.
type follower struct{ g *Group }

// Term returns the current term of this server.
func (f follower) Term() uint64 { return f.g.raft.CurrentTerm() }

// Known returns the last index of this server's log. The transport adds it to the answer to a heartbeat. Known returns
// false if this server does not follow the given leader in the given term. It never blocks.
func (f follower) Known(term uint64, leader raft.ServerID) (uint64, bool) {
	if f.g.raft.State() != raft.Follower || f.g.raft.CurrentTerm() != term {
		return 0, false
	}
	_, id := f.g.raft.LeaderWithID()
	return f.g.raft.LastIndex(), id == leader
}

// Announced records the term and the commit index that a leader has sent. It ignores leaders of earlier terms, and does
// nothing once this server has caught up. Only the goroutine of transport.Guard.forward may call it.
func (f follower) Announced(term, commit uint64) {
	if commit == 0 || f.g.caughtUp.Load() || term < f.g.raft.CurrentTerm() {
		return
	}
	f.g.heard.Store(&raftlog.Position{Term: term, Index: commit})
}

// abstainElections is a number of election timeouts. For that time, a server that has lost the leader may leave
// elections to other servers. After that, the server must start an election itself, because it may be the only server
// with every committed entry.
const abstainElections = 5

// Abstains reports whether this server should leave elections to other servers, according to Server.Abstain. It returns
// false if this server has never heard from a leader, or if the leader was lost more than abstainElections election
// timeouts ago.
func (f follower) Abstains() bool {
	o := &f.g.opts
	last := f.g.raft.LastContact()
	if last.IsZero() || time.Since(last) > o.Timing.Heartbeat+abstainElections*o.Timing.Election {
		return false
	}
	return o.Server.Abstain()
}

// FollowerIsAhead records that a follower has a newer snapshot than this leader. Group.keep then takes a new snapshot.
func (f follower) FollowerIsAhead() {
	select {
	case f.g.refresh <- struct{}{}:
	default:
	}
}

// Judge decides whether to pass a leader's snapshot to raft. It does not pass a snapshot whose last entry is already in
// the log, or a snapshot that is not newer than this server's own.
//
// Without this check, raft would install every snapshot and keep the last index of its old log. If that index is equal
// to or greater than the last index of the snapshot, raft fails, or requests the same snapshot repeatedly.
func (f follower) Judge(r *raft.InstallSnapshotRequest) transport.Verdict {
	var l raft.Log
	switch err := f.g.disk.logs.GetLog(r.LastLogIndex, &l); {
	case r.Term < f.g.raft.CurrentTerm():
		return transport.Install // raft refuses it
	case err == nil && l.Term == r.LastLogTerm && f.g.disk.logs.WaitDurable(r.LastLogIndex) == nil:
		// The entry is on disk as well, and raft finds it when the leader continues from there.
		return transport.AlreadyHeld
	case r.LastLogIndex > f.g.disk.snaps.Index():
		return transport.Install
	default:
		return transport.Outdated
	}
}

// Servers returns the servers of the newest configuration.
func (f follower) Servers() []raft.Server { return f.g.raft.GetConfiguration().Configuration().Servers }

// KnownVoter returns one voter of the newest configuration that this server has, or "" if there is none.
func (f follower) KnownVoter() raft.ServerID {
	for _, s := range f.Servers() {
		if s.Suffrage == raft.Voter {
			return s.ID
		}
	}
	return ""
}

// Shown returns the term, the term of the newest vote, and the commit index of this server. Other servers record them.
func (f follower) Shown() raftlog.Seen {
	term, vote := f.g.disk.floors.Promises()
	return raftlog.Seen{Term: term, Vote: vote, Committed: f.g.raft.CommitIndex()}
}

// IsVoter reports whether this server is a voter.
func (f follower) IsVoter() bool {
	_, voter := f.g.reader.voters()
	return voter
}

// IsLeader reports whether raft is in the leader state here.
func (f follower) IsLeader() bool { return f.g.raft.State() == raft.Leader }

// Leading reports whether this server leads and has applied an entry of its term.
func (f follower) Leading() bool { return f.g.Leading() }

// Time returns the leader's cluster time, in milliseconds.
func (f follower) Time() uint64 { return f.g.clock.leader() }

// CommitIndex returns the newest index known to be committed.
func (f follower) CommitIndex() uint64 { return f.g.raft.CommitIndex() }

// Tick commits an entry that only advances cluster time.
func (f follower) Tick(ctx context.Context) error {
	_, err := f.g.proposeOwn(ctx, &command.Request{Kind: command.KindTick}, Committed)
	return err
}

// HandOver transfers leadership to the given voter.
func (f follower) HandOver(to raft.ServerID) error {
	ctx, cancel := context.WithTimeout(f.g.closing, f.g.opts.Timing.StallFatal)
	defer cancel()
	return f.g.Transfer(ctx, to)
}

// stateEvents implements integrity.Events. It counts the results of state comparisons.
type stateEvents struct{ g *Group }

// Doubted counts a doubt about the local state.
func (e stateEvents) Doubted(cause snapshot.Cause) { e.g.obs.doubts(cause).Inc() }

// Compared counts a comparison. same is true if a majority of the voters has the state of this server.
func (e stateEvents) Compared(same bool) {
	if same {
		e.g.obs.comparedSame.Inc()
		return
	}
	e.g.obs.comparedNot.Inc()
}

// Verified counts a verification of all records.
func (e stateEvents) Verified(outcome string) { e.g.obs.verified(outcome).Inc() }

// Reinstalled counts an attempt to install the state of another server. ok is true if it succeeded.
func (e stateEvents) Reinstalled(ok bool) {
	if ok {
		e.g.obs.reinstalled.Inc()
		return
	}
	e.g.obs.reinstallFailed.Inc()
}

// Changed wakes all callers that wait for a change of the group.
func (e stateEvents) Changed() { e.g.changed.Fire() }

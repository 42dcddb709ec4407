package snapshot

import (
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/timeline"
	"github.com/quorate/quorate/raftfsm/kv"
)

// FSM implements the interfaces through which raft uses the state machine. Raft calls ApplyBatch, Snapshot and
// Restore on one goroutine. At the same time, raft may call Persist on another goroutine.
type FSM struct {
	live    atomic.Pointer[kv.Machine]
	doubt   atomic.Pointer[Doubt] // why the live machine serves nothing; nil = it serves
	Damaged atomic.Bool           // the last verification found damaged records
	floor   atomic.Uint64         // see Floor
	passed  atomic.Uint64         // index of the newest entry that Raft has passed to ApplyBatch
	store   *Store
	log     Log
	Events  Events

	// swap is held while entries are applied, and while another machine replaces the live one. So no entry is
	// applied to a machine that is being replaced.
	swap     sync.Mutex
	received chan struct{} // capacity 1: a received database has replaced the live one
}

// Events receives events of the state machine. Goroutines of raft call its methods. FSM.Replace also calls ClockSeen,
// on the goroutine of its caller.
type Events interface {
	// ClockSeen reports the machine's cluster time after entries were applied or the machine was replaced.
	ClockSeen(ms uint64)
	// EntriesApplied reports how long it took to apply a batch of entries.
	EntriesApplied(took time.Duration)
	// LocksChanged reports that locks were acquired, renewed or released. It must not block.
	LocksChanged()
	// DueChanged reports that due work was written. It must not block.
	DueChanged()
	// TopicsChanged reports that records of topics were written. It must not block.
	TopicsChanged()
	// WorkflowsReplaced reports that a restore has replaced the records of workflows. It must not block.
	WorkflowsReplaced()
	// Reconfigured reports that a membership change was applied.
	Reconfigured()
	// SnapshotTaken reports a snapshot of the live database.
	SnapshotTaken(took time.Duration)
	// SnapshotInstalled reports that a received snapshot was installed. The snapshot has replaced the database, unless
	// the database was ahead of the snapshot.
	SnapshotInstalled()
}

// NewFSM creates the FSM for m, the live machine of s. d is the reason why m is not trusted, according to the manifest,
// or nil if m is trusted.
func NewFSM(s *Store, m *kv.Machine, d *Doubt, events Events) *FSM {
	f := &FSM{store: s, log: s.log, Events: events, received: make(chan struct{}, 1)}
	f.live.Store(m)
	f.doubt.Store(d)
	f.floor.Store(s.Index())
	s.fsm = f
	return f
}

// Received returns a channel that gets a value after a received database has replaced the live one. Several
// replacements may result in one value.
func (f *FSM) Received() <-chan struct{} { return f.received }

// Floor returns an index up to which the live machine has every command. This is the index of the snapshot that the
// server received last. If the server has received none since it started, it is the index of the snapshot that existed
// at the start, or 0 if there was none.
//
// Local snapshots and Replace do not change the result. A received snapshot changes it even if the live database is
// ahead of the snapshot and stays in use (see sink.keep).
func (f *FSM) Floor() uint64 { return f.floor.Load() }

// Passed returns the index of the newest entry that raft has passed to the FSM since the start. Raft does not pass an
// entry again, even if the machine could not apply it because its database is damaged.
func (f *FSM) Passed() uint64 { return f.passed.Load() }

// Doubt returns why the live machine is not trusted; nil if it is trusted.
func (f *FSM) Doubt() *Doubt { return f.doubt.Load() }

// Distrust makes this replica stop serving requests from m. It then calls begun, and records d as the reason in the
// manifest. Distrust does nothing, and changed is false, in these cases:
//
//   - m is not the live machine.
//   - A doubt with the same cause is already recorded.
//   - The recorded doubt is Replaceable, so a copy of another server's state will replace m.
func (f *FSM) Distrust(m *kv.Machine, d *Doubt, begun func()) (changed bool, err error) {
	f.swap.Lock()
	defer f.swap.Unlock()
	had := f.doubt.Load()
	if f.Machine() != m || had.Replaceable() || had != nil && had.Cause == d.Cause {
		return false, nil
	}
	f.doubt.Store(d)
	begun()
	return true, f.store.setDoubt(f.store.LiveDatabase(), d)
}

// Trust ends a doubt with the cause Split, so that the replica serves requests again. It does nothing, and changed
// is false, if there is no such doubt or m is no longer the live machine.
func (f *FSM) Trust(m *kv.Machine) (changed bool, err error) {
	f.swap.Lock()
	defer f.swap.Unlock()
	if d := f.doubt.Load(); d == nil || d.Replaceable() || f.Machine() != m {
		return false, nil
	}
	if err := f.store.setDoubt(f.store.LiveDatabase(), nil); err != nil {
		return false, err
	}
	f.doubt.Store(nil)
	return true, nil
}

// Replace makes m the live machine in place of old, and lets the replica serve requests again. dir is the directory of
// m's database, and held is the index up to which this database has all commands on disk. Replace first calls prepare,
// which must bring m up to date. No entry is applied until Replace returns.
//
// Replace returns the directory of the previous database. It returns fault.Unavailable if old is no longer the live
// machine, or if a snapshot was taken or received in the meantime.
func (f *FSM) Replace(dir string, m, old *kv.Machine, held uint64, prepare func() error) (oldDir string, err error) {
	f.swap.Lock() // from here on no entry is applied
	defer f.swap.Unlock()
	if f.Machine() != old {
		return "", fault.New(fault.Unavailable, "group.reinstall", "a snapshot was received meanwhile")
	}
	if err := prepare(); err != nil {
		return "", err
	}
	oldDir = f.store.LiveDatabase()
	if err := f.store.replace(oldDir, dir, held); err != nil {
		return "", err
	}
	f.live.Store(m)
	f.Damaged.Store(false) // the new state was verified
	f.doubt.Store(nil)
	f.Events.ClockSeen(m.Clock())
	return oldDir, nil
}

var _ raft.BatchingFSM = (*FSM)(nil)

// Result is the result of one entry.
type Result struct {
	kv.EntryResult
	Term uint64
}

// Machine returns the live machine.
func (f *FSM) Machine() *kv.Machine { return f.live.Load() }

// Apply applies one entry. Raft uses ApplyBatch instead; the interface raft.FSM requires Apply.
func (f *FSM) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies committed entries and returns one Result for each. An entry without a command changes only the
// machine's applied index.
func (f *FSM) ApplyBatch(batch []*raft.Log) []any {
	start := time.Now()
	first, last := batch[0].Index, batch[len(batch)-1].Index
	timeline.MarkEntries(timeline.Applying, first, last)
	entries := make([]kv.Entry, len(batch))
	for i, l := range batch {
		entries[i] = kv.Entry{Index: l.Index, Term: l.Term}
		switch l.Type {
		case raft.LogCommand:
			entries[i].Data = l.Data
		case raft.LogConfiguration:
			defer f.Events.Reconfigured()
		}
	}
	m, results := f.apply(entries)
	timeline.MarkEntries(timeline.Applied, first, last)
	answers, list := make([]any, len(batch)), make([]Result, len(batch))
	for i := range results {
		list[i] = Result{EntryResult: results[i], Term: batch[i].Term}
		answers[i] = &list[i]
	}
	f.Events.ClockSeen(m.Clock())
	f.log.Applied(last)
	f.Events.EntriesApplied(time.Since(start))
	if m.LocksChanged() {
		f.Events.LocksChanged()
	}
	if m.DueChanged() {
		f.Events.DueChanged()
	}
	if m.TopicsChanged() {
		f.Events.TopicsChanged()
	}
	if m.WorkflowsReplaced() {
		f.Events.WorkflowsReplaced()
	}
	return answers
}

func (f *FSM) apply(entries []kv.Entry) (*kv.Machine, []kv.EntryResult) {
	f.swap.Lock()
	defer f.swap.Unlock()
	m := f.Machine()
	f.passed.Store(entries[len(entries)-1].Index)
	return m, m.Apply(entries)
}

// Snapshot returns a snapshot of the live database for raft to persist. It copies nothing: it only records which
// database is live.
func (f *FSM) Snapshot() (raft.FSMSnapshot, error) {
	return &fsmSnapshot{machine: f.Machine(), database: f.store.LiveDatabase(), fsm: f, start: time.Now()}, nil
}

// ahead returns the live machine and the directory of its database if the machine is trusted and has applied an entry
// above index. Otherwise it returns nil.
func (f *FSM) ahead(index uint64) (m *kv.Machine, database string) {
	f.swap.Lock()
	defer f.swap.Unlock()
	if m = f.Machine(); f.doubt.Load() != nil || m.Applied() <= index {
		return nil, ""
	}
	return m, f.store.LiveDatabase()
}

// Restore makes the database of a received snapshot the live one, unless the current database is ahead of the snapshot
// (see sink.keep). source contains the token that Store.Open has returned for the snapshot.
func (f *FSM) Restore(source io.ReadCloser) error {
	defer source.Close()
	id, err := io.ReadAll(source)
	if err != nil {
		return err
	}
	p, err := f.store.Take(string(id))
	if err != nil {
		return err
	}
	if p.machine == nil {
		f.floor.Store(f.store.Index())
		f.Events.SnapshotInstalled()
		return nil
	}
	f.swap.Lock()
	old := f.live.Swap(p.machine)
	f.doubt.Store(nil) // the doubt was about the previous database; the manifest no longer has it
	f.swap.Unlock()
	f.floor.Store(f.store.Index())
	f.Events.ClockSeen(p.machine.Clock())
	if err := old.Close(); err != nil {
		return fault.Wrap(err, "group.Restore", "cannot close the replaced database")
	}
	f.store.Remove(p.oldDir)
	f.Events.SnapshotInstalled()
	select {
	case f.received <- struct{}{}:
	default:
	}
	return nil
}

// fsmSnapshot is a snapshot of the live database. Raft calls Persist to take the snapshot, and then closes the sink,
// which writes the manifest.
type fsmSnapshot struct {
	machine  *kv.Machine
	database string
	fsm      *FSM
	start    time.Time
}

// Persist makes all applied entries durable in the database. It then records in the sink that the snapshot refers to
// that database.
func (s *fsmSnapshot) Persist(to raft.SnapshotSink) error {
	k, ok := to.(*sink)
	if !ok {
		return fmt.Errorf("snapshot sink of type %T", to)
	}
	applied, err := s.machine.Flush()
	if err != nil {
		return err
	}
	s.fsm.store.process.Step("snapshot-flushed")
	k.markLocal(s.database, applied)
	s.fsm.Events.SnapshotTaken(time.Since(s.start))
	return nil
}

// Release does nothing.
func (s *fsmSnapshot) Release() {}

// Path returns the path of the directory with this name in the directory of the group.
func (s *Store) Path(name string) string { return filepath.Join(s.dir, name) }

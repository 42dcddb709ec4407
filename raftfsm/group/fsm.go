package group

import (
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// fsm is the bridge between raft and the machine. raft calls ApplyBatch, Snapshot and
// Restore from one goroutine; Persist runs beside them on another.
type fsm struct {
	live    atomic.Pointer[kv.Machine]
	doubt   atomic.Pointer[Doubt] // why the live machine serves nothing; nil = it does
	floor   atomic.Uint64         // snapshot index: the machine holds every command up to it
	store   *snapshots
	tail    *tail
	clock   *clock
	metrics *groupMetrics

	// swap is held while entries are applied and while another machine takes the place of the
	// live one, with the manifest that says so: what is applied must not be lost between.
	swap     sync.Mutex
	received chan struct{} // one slot: raft has received a snapshot

	tamper       func([]kv.Entry) // for tests: a machine that applies something else
	reconfigured func()           // a membership change was applied
}

var _ raft.BatchingFSM = (*fsm)(nil)

// applied is what the machine made of one entry.
type applied struct {
	kv.EntryResult
	term uint64
}

func (f *fsm) machine() *kv.Machine { return f.live.Load() }

// Apply applies one entry. raft uses ApplyBatch; this is for its interface.
func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies committed entries and answers each command with its results. An
// entry that carries no command only moves the machine's index.
func (f *fsm) ApplyBatch(batch []*raft.Log) []any {
	start := time.Now()
	entries := make([]kv.Entry, len(batch))
	for i, l := range batch {
		entries[i] = kv.Entry{Index: l.Index, Term: l.Term}
		switch l.Type {
		case raft.LogCommand:
			entries[i].Data = l.Data
		case raft.LogConfiguration:
			defer f.reconfigured()
		}
	}
	m, results := f.apply(entries)
	answers, list := make([]any, len(batch)), make([]applied, len(batch))
	for i := range results {
		list[i] = applied{EntryResult: results[i], term: batch[i].Term}
		answers[i] = &list[i]
	}
	f.clock.observe(m.Clock())
	f.tail.settle(batch[len(batch)-1].Index)
	f.metrics.applied(time.Since(start), len(batch))
	return answers
}

func (f *fsm) apply(entries []kv.Entry) (*kv.Machine, []kv.EntryResult) {
	f.swap.Lock()
	defer f.swap.Unlock()
	if f.tamper != nil {
		f.tamper(entries)
	}
	m := f.machine()
	return m, m.Apply(entries)
}

// Snapshot notes what is live; nothing is copied.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	return &fsmSnapshot{machine: f.machine(), database: f.store.database(), fsm: f, start: time.Now()}, nil
}

// Restore swaps in the database of a snapshot that was just received. source is the token
// that the snapshot store gave.
func (f *fsm) Restore(source io.ReadCloser) error {
	defer source.Close()
	id, err := io.ReadAll(source)
	if err != nil {
		return err
	}
	p, err := f.store.take(string(id))
	if err != nil {
		return err
	}
	f.swap.Lock()
	old := f.live.Swap(p.machine)
	f.doubt.Store(nil) // it was about the one before; the manifest says so already
	f.swap.Unlock()
	f.floor.Store(f.store.index())
	f.clock.observe(p.machine.Clock())
	if err := old.Close(); err != nil {
		return fault.Wrap(err, "group.Restore", "cannot close the replaced database")
	}
	f.store.remove(p.oldDir)
	f.metrics.installed.Inc()
	select {
	case f.received <- struct{}{}:
	default:
	}
	return nil
}

// fsmSnapshot is a snapshot of the live database: a flush and a line in the manifest.
type fsmSnapshot struct {
	machine  *kv.Machine
	database string
	fsm      *fsm
	start    time.Time
}

// Persist makes everything applied so far durable in the database itself.
func (s *fsmSnapshot) Persist(to raft.SnapshotSink) error {
	k, ok := to.(*sink)
	if !ok {
		return fmt.Errorf("snapshot sink of type %T", to)
	}
	applied, err := s.machine.Flush()
	if err != nil {
		return err
	}
	s.fsm.store.step("snapshot-flushed")
	k.markLocal(s.database, applied)
	s.fsm.metrics.snapshot(time.Since(s.start))
	return nil
}

// Release has nothing to release.
func (s *fsmSnapshot) Release() {}

// path of a directory of the group.
func (s *snapshots) path(name string) string { return filepath.Join(s.dir, name) }

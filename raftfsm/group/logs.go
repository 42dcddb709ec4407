package group

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
)

// logStore is an engine for entries: raft-boltdb or raft-wal.
type logStore interface {
	raft.LogStore
	io.Closer
}

// logs wraps the engine of the log. It seals every entry with a checksum and verifies it
// before raft applies or sends it, lets a leader replicate what its disk still writes (see
// unsynced), tells when an entry of ours is durable on this node, measures and watches the
// disk, and keeps the newest entries in memory.
//
// StoreLogs is called by raft's main goroutine only; GetLog by any. What GetLog returns may
// not be on this disk yet.
type logs struct {
	engine logStore
	tail   tail
	fatal  func(error)
	level  uint8                         // highest version of an entry that raise made durable
	raise  func(uint8) error             // see Options.Raise
	fsync  func(time.Duration, int, int) // duration, entries, bytes
	step   func(string)
	self   uint32    // tag of this server
	lost   func(int) // told of acknowledged writes that another leader replaces; nil = nobody

	// base tells the index and term below which the log was replaced by a snapshot, as long
	// as this server may not send entries to others.
	base func() (Position, bool)

	// writing lets one writer at a time into the engine, although it holds through the disk's
	// work: raft appends and compacts from two goroutines, and raft-wal, which waits once for
	// a segment being sealed, may cut it off if a third seals the next one meanwhile.
	writing sync.Mutex

	unsynced *unsynced
	early    atomic.Pointer[func() bool] // reports whether this server leads other voters; nil = it does not

	void     voided
	retained retained

	busy atomic.Int64 // start of the write in flight, monotonic nanoseconds since epoch; 0 = none
	last atomic.Uint64
	gone atomic.Uint64 // compacted up to here since the log was opened; raft-wal still finds some of it
	open time.Time     // busy counts from here

	mu      sync.Mutex
	waiting map[*byte]func(index, term uint64) // by first byte of Data
}

var (
	_ raft.LogStore          = (*logs)(nil)
	_ raft.MonotonicLogStore = (*logs)(nil)
)

func newLogs(engine logStore, fatal func(error), fsync func(time.Duration, int, int), step func(string)) *logs {
	s := &logs{
		engine: engine, fatal: fatal, fsync: fsync, step: step, open: time.Now(), waiting: map[*byte]func(uint64, uint64){},
		base: func() (Position, bool) { return Position{}, false },
	}
	s.unsynced = newUnsynced(func(entries []*raft.Log) error {
		if err := s.append(entries); err != nil {
			return err
		}
		s.announce(entries)
		return nil
	})
	return s
}

// align drops a log that does not continue the snapshot. A crash between the switch to a
// received database and the clearing of the log leaves entries of an older history below
// or across the snapshot: they may never have been committed, so they must not be sent
// to anybody, and raft-wal takes no entry that does not follow its last one.
func (s *logs) align(index, term uint64) error {
	first, last, err := s.ends()
	if err != nil || last == 0 || first > index {
		return err
	}
	if last >= index {
		var l raft.Log
		if err := s.read(index, &l); err != nil {
			return err
		}
		if l.Term == term {
			return nil
		}
	}
	s.last.Store(last)
	return s.DeleteRange(first, last)
}

func (s *logs) ends() (first, last uint64, err error) {
	if first, err = s.engine.FirstIndex(); err == nil {
		last, err = s.engine.LastIndex()
	}
	return first, last, err
}

// read reads and verifies an entry while the group is opened.
func (s *logs) read(index uint64, l *raft.Log) error {
	if err := s.engine.GetLog(index, l); err != nil {
		return &fault.Error{Code: fault.Corrupt, Op: "group.log", Msg: fmt.Sprintf("log entry %d cannot be read", index), Err: err,
			Hint: "restore the directory from a backup, or empty it to join again as a new server"}
	}
	return verify(l)
}

// scan verifies the entries above the snapshot, which raft is about to read, and accounts
// for them. It runs before raft does, for raft panics on an entry it cannot read.
func (s *logs) scan(snapshot uint64) error {
	first, last, err := s.ends()
	if err != nil {
		return err
	}
	s.last.Store(last)
	if last > snapshot && first > snapshot+1 {
		return &fault.Error{Code: fault.Corrupt, Op: "group.log",
			Msg:  fmt.Sprintf("the log starts at entry %d but the snapshot ends at %d: entries are missing", first, snapshot),
			Hint: "the directory was put together from different times; restore it whole from a backup, or empty it to join again as a new server"}
	}
	var l raft.Log
	for i := snapshot + 1; i <= last; i++ {
		l = raft.Log{}
		if err := s.read(i, &l); err != nil {
			return err
		}
		s.tail.note(&l)
	}
	return nil
}

// onDurable calls f, on the goroutine that wrote it, once the entry with this very Data slice
// is on this node's disk. Data of a follower's entries is decoded from the network and
// never matches, so f fires only for what was proposed here.
func (s *logs) onDurable(data []byte, f func(index, term uint64)) {
	s.mu.Lock()
	s.waiting[unsafe.SliceData(data)] = f
	s.mu.Unlock()
}

// forgetDurable withdraws onDurable.
func (s *logs) forgetDurable(data []byte) {
	s.mu.Lock()
	delete(s.waiting, unsafe.SliceData(data))
	s.mu.Unlock()
}

// StoreLog stores one entry.
func (s *logs) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs makes entries durable, or, where this server leads others, sees to it that they
// will be: see unsynced. A failed write ends the process: what is on disk is then unknown,
// and a later write could be acknowledged on top of it.
func (s *logs) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	size, own, reforms := 0, true, false
	for _, l := range entries {
		if len(l.Extensions) == 0 || isOwing(l.Extensions) {
			seal(l)
		} else if err := verify(l); err != nil {
			return err // it was damaged on its way here: refuse it, the leader sends it again
		} else {
			own = false
		}
		size += entrySize(l)
		reforms = reforms || l.Type == raft.LogConfiguration
	}
	if err := s.noteLevel(entries); err != nil {
		s.fatal(err)
		return err
	}
	if early := s.early.Load(); own && !reforms && size <= unsyncedBytes && early != nil && (*early)() {
		return s.unsynced.add(entries, func() { s.note(entries) })
	}
	if err := s.unsynced.drain(); err != nil {
		return err
	}
	if err := s.append(entries); err != nil {
		return err
	}
	s.note(entries)
	s.announce(entries)
	return nil
}

// note makes entries part of the log that raft sees.
func (s *logs) note(entries []*raft.Log) {
	s.tail.add(entries)
	s.void.end()
	s.last.Store(entries[len(entries)-1].Index)
}

// append writes entries to the disk.
func (s *logs) append(entries []*raft.Log) error {
	size := 0
	for _, l := range entries {
		size += entrySize(l)
	}
	start := time.Now()
	s.busy.Store(int64(start.Sub(s.open)) + 1)
	s.step("log-append")
	s.writing.Lock()
	err := s.engine.StoreLogs(entries)
	s.writing.Unlock()
	s.busy.Store(0)
	if err != nil {
		err = &fault.Error{Code: fault.Internal, Op: "group.log", Msg: "cannot write the log", Err: err,
			Hint: "free disk space or replace the disk, then start the node again; nothing acknowledged is lost"}
		s.fatal(err)
		return err
	}
	s.step("log-appended")
	s.fsync(time.Since(start), len(entries), size)
	return nil
}

// noteLevel makes the version of entries durable before they are.
func (s *logs) noteLevel(entries []*raft.Log) error {
	v := s.level
	for _, l := range entries {
		if l.Type == raft.LogCommand {
			v = max(v, command.VersionOf(l.Data))
		}
	}
	return s.raiseTo(v)
}

func (s *logs) raiseTo(v uint8) error {
	if v <= s.level {
		return nil
	}
	if s.raise != nil {
		if err := s.raise(v); err != nil {
			return fault.Wrap(err, "group.log", "the format of the log entries cannot be noted")
		}
	}
	s.level = v
	return nil
}

// announce fires the durable signals of entries, which have been noted: who hears of one may
// ask at once what the log holds.
func (s *logs) announce(entries []*raft.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return
	}
	for _, l := range entries {
		if f, ok := s.waiting[unsafe.SliceData(l.Data)]; ok && len(l.Data) > 0 {
			delete(s.waiting, unsafe.SliceData(l.Data))
			f(l.Index, l.Term)
		}
	}
}

// stalled returns for how long the write in flight has been going on, 0 if there is none.
func (s *logs) stalled() time.Duration {
	start := s.busy.Load()
	if start == 0 {
		return 0
	}
	return time.Since(s.open) - time.Duration(start-1)
}

// GetLog reads an entry and verifies it. A damaged one ends the process: it must be
// neither applied nor sent. On a follower, the entry that a snapshot ends with is found
// even if the log begins above it: raft looks for it when a leader repeats its first
// append after a snapshot, and would otherwise ask for that snapshot again and again.
func (s *logs) GetLog(index uint64, l *raft.Log) error {
	if c := s.tail.get(index); c != nil {
		*l = *c
		return nil
	}
	*l = raft.Log{}
	if err := s.find(index, l); err != nil {
		if p, follows := s.base(); follows && p.Index == index && errors.Is(err, raft.ErrLogNotFound) {
			*l = raft.Log{Index: index, Term: p.Term, Type: raft.LogNoop, Extensions: []byte("snapshot")} // a seal nobody accepts
			return nil
		}
		if errors.Is(err, raft.ErrLogNotFound) && s.void.covers(index) {
			*l = raft.Log{Index: index, Type: raft.LogNoop, Extensions: []byte("void")}
			return nil
		}
		return err
	}
	if err := verify(l); err != nil {
		s.fatal(err)
		return err
	}
	return nil
}

func (s *logs) find(index uint64, l *raft.Log) error {
	if index <= s.gone.Load() {
		return raft.ErrLogNotFound
	}
	return s.engine.GetLog(index, l)
}

// termAt returns the term of the entry at index, if it is in the log.
func (s *logs) termAt(index uint64) (term uint64, known bool) {
	if term, known = s.tail.termAt(index); known || index > s.last.Load() {
		return term, known
	}
	var l raft.Log
	if err := s.GetLog(index, &l); err != nil {
		return 0, false
	}
	return l.Term, true
}

// FirstIndex returns the index of the oldest entry, 0 for none.
func (s *logs) FirstIndex() (uint64, error) { return s.engine.FirstIndex() }

// LastIndex returns the index of the newest entry, 0 for none.
func (s *logs) LastIndex() (uint64, error) { return s.last.Load(), nil }

// DeleteRange deletes entries: old ones after a snapshot, unless somebody needs them (see
// retained), or the newest ones that conflict with a leader's.
func (s *logs) DeleteRange(lo, hi uint64) error {
	if hi >= s.last.Load() {
		if err := s.unsynced.drain(); err != nil {
			return err
		}
	} else if need := s.retained.oldest(); need != 0 && need <= hi && s.tail.since(need) <= retainBytes {
		if hi = need - 1; hi < lo {
			return nil
		}
	}
	s.tellLost(lo, hi)
	s.step("log-truncate")
	s.writing.Lock()
	err := s.engine.DeleteRange(lo, hi)
	s.writing.Unlock()
	if err != nil {
		err = &fault.Error{Code: fault.Internal, Op: "group.log", Msg: fmt.Sprintf("cannot delete log entries %d to %d", lo, hi), Err: err}
		s.fatal(err)
		return err
	}
	s.step("log-truncated")
	last := s.last.Load()
	if snap, follows := s.base(); follows && lo <= snap.Index && snap.Index <= last && last <= hi {
		s.void.begin(snap, last)
	}
	if hi < last {
		s.gone.Store(hi)
		s.tail.forget(hi)
		return nil
	}
	newLast, err := s.engine.LastIndex()
	if err != nil {
		return err
	}
	s.last.Store(newLast) // before the tail: what the tail no longer knows must not look compacted
	s.tail.cut(lo)
	return nil
}

// IsMonotonic makes raft leave no gaps in the log after it installed a snapshot, whatever
// the engine could bear: one behaviour for both.
func (s *logs) IsMonotonic() bool { return true }

// Close closes the engine, after what is not synced yet.
func (s *logs) Close() error {
	err := s.unsynced.drain()
	if closed := s.engine.Close(); closed != nil {
		err = errors.Join(err, errors.New("closing the log"), closed)
	}
	return err
}

package raftlog

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/timeline"
	"github.com/quorate/quorate/raftfsm/command"
)

// Backend stores entries: raft-boltdb or raft-wal.
type Backend interface {
	raft.LogStore
	io.Closer
}

// Role describes the role of this server in the group. Before Raft runs, the methods of Role return false and zero
// values.
type Role interface {
	// Running reports whether Raft runs.
	Running() bool
	// Base returns the position of the newest snapshot. follows is true if Raft runs and this server is not the
	// leader.
	Base() (end Position, follows bool)
	// LeadsOthers reports whether this server leads and has other voters.
	LeadsOthers() bool
}

// Events receives events of the log.
type Events interface {
	// Appended reports a write to the disk.
	Appended(took time.Duration, entries, bytes int)
	// Lost reports acknowledged writes that entries of another leader replace.
	Lost(writes int)
}

// Process is the program that uses the log. The log calls its methods.
type Process interface {
	// Fatal reports an error after which this replica cannot be trusted. It should end the process.
	Fatal(err error)
	// Step is called before and after each named step of disk work, for tests.
	Step(name string)
	// Raise records durably that the log may contain entries of the given version.
	Raise(version uint8) error
}

// Store wraps the engine of the log. It adds a checksum to every entry, verifies the checksum on reads, and caches the
// newest entries. It reports how long each write takes. On a leader, StoreLogs may return before the entries are on the
// disk, so that raft replicates them in the meantime (see unsynced). WaitDurable waits until the entries are on the
// disk.
//
// Only raft's main goroutine calls StoreLogs. Any goroutine may call GetLog, which may return an entry that is not yet
// durable on this server.
type Store struct {
	engine Backend
	tail   tail
	level  uint8  // highest version that Process.Raise has made durable
	self   uint32 // tag of this server
	gaps   bool   // appends are not compared with the snapshot; see AllowGaps

	role    Role
	events  Events
	process Process

	// writing admits one writer at a time to the engine, also during its disk work. Raft appends and compacts from two
	// goroutines. Without this lock, raft-wal could truncate a segment that one goroutine is sealing, if the other one
	// has sealed the next segment in the meantime.
	writing sync.Mutex

	durable extent     // the part that is on disk
	floors  *FloorFile // nil = no floor

	unsynced *unsynced

	discarded Discarded
	retained  Retained

	busy atomic.Int64 // start of the write in flight, in monotonic nanoseconds since open, plus 1; 0 = none
	last atomic.Uint64
	// gone is the index up to which entries were compacted since the log was opened; raft-wal may still return some
	// of these entries
	gone atomic.Uint64
	open time.Time // the time from which busy counts
}

var (
	_ raft.LogStore          = (*Store)(nil)
	_ raft.MonotonicLogStore = (*Store)(nil)
)

// NewStore wraps an engine. level is the highest version of log entries that Process.Raise has already recorded
// durably.
func NewStore(engine Backend, server raft.ServerID, level uint8, role Role, events Events, process Process) *Store {
	s := &Store{
		engine: engine, level: level, self: serverTag(server), role: role, events: events, process: process,
		open: time.Now(),
	}
	s.unsynced = newUnsynced(func(entries []*raft.Log) error {
		if err := s.append(entries); err != nil {
			return err
		}
		markStored(timeline.Written, entries)
		return nil
	})
	return s
}

// Align deletes the whole log if it contradicts the newest snapshot, which ends with the entry at the given index and
// term. The log contradicts the snapshot if it has an entry of another term at this index, or if it ends before this
// index. A crash between the receipt of a snapshot and the truncation of the log can leave such a log. The entries of
// such a log must not be sent to other servers.
func (s *Store) Align(index, term uint64) error {
	first, last, err := s.Ends()
	if err != nil || last == 0 || first > index {
		return err
	}
	if last >= index {
		var l raft.Log
		if err := s.Read(index, &l); err != nil {
			return err
		}
		if l.Term == term {
			return nil
		}
	}
	s.last.Store(last)
	return s.DeleteRange(first, last)
}

// Ends returns the indexes of the oldest and the newest entry on disk; 0 = none.
func (s *Store) Ends() (first, last uint64, err error) {
	if first, err = s.engine.FirstIndex(); err == nil {
		last, err = s.engine.LastIndex()
	}
	return first, last, err
}

// Read reads an entry from the engine, without the cache, and verifies its checksum. It returns fault.Corrupt if the
// entry cannot be read or is damaged. Unlike GetLog, it does not end the process.
func (s *Store) Read(index uint64, l *raft.Log) error {
	if err := s.engine.GetLog(index, l); err != nil {
		return &fault.Error{Code: fault.Corrupt, Op: "group.log",
			Msg: fmt.Sprintf("log entry %d cannot be read", index), Err: err,
			Hint: "restore the directory from a backup, or empty it to join again as a new server"}
	}
	return Verify(l)
}

// Scan verifies all log entries above the index of the snapshot, and records their sizes and types. Call it before raft
// reads the entries, because raft panics on an entry that it cannot read. If an entry is damaged, Scan returns its
// index and an error. With other errors, the index is 0.
func (s *Store) Scan(snapshot uint64) (damaged uint64, err error) {
	first, last, err := s.Ends()
	if err != nil {
		return 0, err
	}
	s.last.Store(last)
	if last > snapshot && first > snapshot+1 {
		return 0, &fault.Error{Code: fault.Corrupt, Op: "group.log",
			Msg: fmt.Sprintf("the log starts at entry %d but the snapshot ends at %d: entries are missing", first,
				snapshot),
			Hint: "the files in the directory are of different times; restore the whole directory from a backup, or " +
				"empty it to join again as a new server"}
	}
	var l raft.Log
	for i := snapshot + 1; i <= last; i++ {
		l = raft.Log{}
		if err := s.Read(i, &l); err != nil {
			return i, err
		}
		s.tail.note(&l)
	}
	return 0, nil
}

// Room waits until the next call of StoreLogs can begin without waiting for earlier writes. It returns at once if this
// server does not lead, or if there are no other voters.
func (s *Store) Room() {
	if s.role.LeadsOthers() {
		s.unsynced.room()
	}
}

// StoreLog stores one entry.
func (s *Store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs appends entries to the log. It returns when they are durable. On a leader with other voters, it may
// return earlier (see unsynced). A failed write ends the process: the content of the disk is then unknown, and no
// later write may be acknowledged.
func (s *Store) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	if err := s.checkFollows(entries[0].Index); err != nil {
		return err
	}
	size, own, reforms := 0, true, false
	for _, l := range entries {
		if len(l.Extensions) == 0 || isOwing(l.Extensions) {
			Seal(l)
		} else if err := Verify(l); err != nil {
			return err // damaged in transit: refuse it, and the leader sends it again
		} else {
			own = false
		}
		size += EntrySize(l)
		reforms = reforms || l.Type == raft.LogConfiguration
	}
	if err := s.noteLevel(entries); err != nil {
		s.process.Fatal(err)
		return err
	}
	if own && !reforms && size <= unsyncedBytes && s.role.LeadsOthers() {
		return s.unsynced.add(entries, func() { s.note(entries) })
	}
	if err := s.unsynced.drain(); err != nil {
		return err
	}
	if err := s.append(entries); err != nil {
		return err
	}
	stage := timeline.Stored
	if own {
		stage = timeline.Written
	}
	markStored(stage, entries)
	s.note(entries)
	return nil
}

// AllowGaps permits gaps between the snapshot and the log. It disables Rebase and the check that entries follow the
// log. Tests use AllowGaps to show why Rebase and the check are needed. Call it before Raft runs.
func (s *Store) AllowGaps() { s.gaps = true }

// checkFollows returns fault.Conflict unless the given index directly follows the end of the log or, if the log is
// empty, the end of the snapshot. If there is neither a log nor a snapshot, every index is accepted.
//
// This check prevents a gap when an append arrives late. For example, a new server has installed a snapshot, and then
// receives a delayed append of the entries from 1 on. Raft accepts this append, because raft compares only the previous
// entry, and the append has none.
func (s *Store) checkFollows(index uint64) error {
	last := s.last.Load()
	if last == 0 {
		base, _ := s.role.Base()
		last = base.Index
	}
	if last == 0 || index == last+1 || s.gaps {
		return nil
	}
	return fault.New(fault.Conflict, "group.log",
		fmt.Sprintf("log entry %d was received late: the log or its snapshot ends at entry %d", index, last))
}

// markStored marks in an execution trace that entries are on the disk.
func markStored(stage string, entries []*raft.Log) {
	timeline.MarkEntries(stage, entries[0].Index, entries[len(entries)-1].Index)
}

// note records that the log has the entries, durable or not. Raft can read them afterwards.
func (s *Store) note(entries []*raft.Log) {
	s.tail.add(entries)
	s.discarded.End()
	s.last.Store(entries[len(entries)-1].Index)
}

// append writes entries to the disk.
func (s *Store) append(entries []*raft.Log) error {
	size := 0
	for _, l := range entries {
		size += EntrySize(l)
	}
	start := time.Now()
	s.busy.Store(int64(start.Sub(s.open)) + 1)
	s.process.Step("log-append")
	s.writing.Lock()
	err := s.engine.StoreLogs(entries)
	s.writing.Unlock()
	s.busy.Store(0)
	if err != nil {
		err = &fault.Error{Code: fault.Internal, Op: "group.log", Msg: "cannot write the log", Err: err,
			Hint: "free disk space or replace the disk, then start the node again; nothing acknowledged is lost"}
		s.process.Fatal(err)
		return err
	}
	s.process.Step("log-appended")
	s.durable.appended(entries)
	s.events.Appended(time.Since(start), len(entries), size)
	return nil
}

// noteLevel durably records the highest format version of the given entries. The caller must not write the entries
// before noteLevel has returned nil.
func (s *Store) noteLevel(entries []*raft.Log) error {
	v := s.level
	for _, l := range entries {
		if l.Type == raft.LogCommand {
			v = max(v, command.VersionOf(l.Data))
		}
	}
	return s.RaiseTo(v)
}

// RaiseTo records durably that the log may contain entries of format version v. It does nothing if the recorded
// version is v or higher. Only raft's main goroutine and the goroutine that opens the group may call it.
func (s *Store) RaiseTo(v uint8) error {
	if v <= s.level {
		return nil
	}
	if err := s.process.Raise(v); err != nil {
		return fault.Wrap(err, "group.log", "the format of the log entries cannot be recorded")
	}
	s.level = v
	return nil
}

// Stalled returns how long the write in flight has taken so far; 0 = none.
func (s *Store) Stalled() time.Duration {
	start := s.busy.Load()
	if start == 0 {
		return 0
	}
	return time.Since(s.open) - time.Duration(start-1)
}

// GetLog reads the entry at the given index and verifies its checksum. A damaged entry ends the process, because the
// entry must be neither applied nor sent to other servers.
//
// If the log does not contain the entry, GetLog returns raft.ErrLogNotFound. In two cases, it returns a placeholder
// instead:
//
//   - A snapshot has replaced the entry, but raft still expects the entry in the log (see Discarded).
//   - On a follower, the entry is the last one of the newest snapshot. Raft looks up this entry before the first append
//     after the snapshot.
func (s *Store) GetLog(index uint64, l *raft.Log) error {
	if c := s.tail.get(index); c != nil {
		*l = *c
		return nil
	}
	*l = raft.Log{}
	if err := s.find(index, l); err != nil {
		if p, follows := s.role.Base(); follows && p.Index == index && errors.Is(err, raft.ErrLogNotFound) {
			*l = raft.Log{Index: index, Term: p.Term, Type: raft.LogNoop,
				Extensions: []byte("snapshot")} // not a valid checksum, so no server accepts it
			return nil
		}
		if errors.Is(err, raft.ErrLogNotFound) && s.discarded.covers(index) {
			*l = raft.Log{Index: index, Type: raft.LogNoop, Extensions: []byte("void")}
			return nil
		}
		return err
	}
	if err := Verify(l); err != nil {
		s.process.Fatal(err)
		return err
	}
	return nil
}

func (s *Store) find(index uint64, l *raft.Log) error {
	if index <= s.gone.Load() {
		return raft.ErrLogNotFound
	}
	return s.engine.GetLog(index, l)
}

// TermAt returns the term of the entry at the given index. The result known is false if the term is not known. The
// term of a compacted entry may still be known.
func (s *Store) TermAt(index uint64) (term uint64, known bool) {
	if term, known = s.tail.termAt(index); known || index > s.last.Load() {
		return term, known
	}
	var l raft.Log
	if err := s.GetLog(index, &l); err != nil {
		return 0, false
	}
	return l.Term, true
}

// Last returns the index of the newest entry; 0 = none.
func (s *Store) Last() uint64 { return s.last.Load() }

// LastVisible returns the index of the newest entry from floor+1 to index that raft passes to the state machine. It
// returns 0 if there is no such entry. The state machine must have applied all entries up to floor.
func (s *Store) LastVisible(index, floor uint64) uint64 { return s.tail.lastVisible(index, floor) }

// Applied records that the state machine has applied all entries up to the given index.
func (s *Store) Applied(index uint64) { s.tail.settle(index) }

// BytesSince returns how many bytes were appended to the log, starting with the entry at the given index. The result is
// accurate to 256 KiB.
func (s *Store) BytesSince(index uint64) uint64 { return s.tail.since(index) }

// EntriesWithin returns how many of the newest entries fit into limit bytes. The parameter last is the index of the
// last entry. If all entries fit, EntriesWithin returns last, which is never less than their number.
func (s *Store) EntriesWithin(last, limit uint64) uint64 { return s.tail.within(last, limit) }

// Configuration returns the index of the newest configuration in the log; 0 = none known.
func (s *Store) Configuration() uint64 { return s.tail.configuration() }

// WaitDurable waits until the entries up to the given index are on this server's disk. It returns an error if a
// write fails. It has no time limit.
func (s *Store) WaitDurable(index uint64) error { return s.unsynced.wait(index) }

// Drain waits until all entries are on this server's disk. It returns an error if a write fails.
func (s *Store) Drain() error { return s.unsynced.drain() }

// Retained returns the object that determines which old entries the log keeps for followers that receive a snapshot.
func (s *Store) Retained() *Retained { return &s.retained }

// Discarded returns the record of the entries that a snapshot has replaced, although raft still considers them part of
// this log.
func (s *Store) Discarded() *Discarded { return &s.discarded }

// HoldsAt reports whether the log has the entry with the index and the term of the given position. It may also
// return true for a compacted entry.
func (s *Store) HoldsAt(at Position) bool {
	term, known := s.TermAt(at.Index)
	return known && term == at.Term
}

// FirstIndex returns the index of the oldest entry; 0 = none.
func (s *Store) FirstIndex() (uint64, error) { return s.engine.FirstIndex() }

// LastIndex returns the index of the newest entry; 0 = none.
func (s *Store) LastIndex() (uint64, error) { return s.last.Load(), nil }

// DeleteRange deletes the entries lo to hi. It keeps old entries that a follower still needs (see Retained). Raft
// deletes the oldest entries after a snapshot, and the newest entries if they conflict with those of the leader.
func (s *Store) DeleteRange(lo, hi uint64) error {
	// Read the last index only once. Raft compacts the log on its goroutine for snapshots. At the same time, raft's
	// main goroutine may delete the newest entries, or all entries.
	last := s.last.Load()
	if last == 0 {
		return nil
	}
	compacts := hi < last
	if compacts {
		if need := s.retained.Oldest(); need != 0 && need <= hi && s.tail.since(need) <= retainBytes {
			hi = need - 1
		}
		if hi < lo {
			return nil
		}
	} else if err := s.beforeCut(lo, hi); err != nil {
		return err
	}
	s.process.Step("log-truncate")
	s.writing.Lock()
	err := s.engine.DeleteRange(lo, hi)
	s.writing.Unlock()
	if err != nil {
		err = &fault.Error{Code: fault.Internal, Op: "group.log",
			Msg: fmt.Sprintf("cannot delete log entries %d to %d", lo, hi), Err: err}
		s.process.Fatal(err)
		return err
	}
	s.process.Step("log-truncated")
	if compacts {
		s.durable.compacted(hi)
		s.gone.Store(hi)
		s.tail.forget(hi)
		return nil
	}
	if snap, follows := s.role.Base(); follows && lo <= snap.Index && snap.Index <= last {
		s.discarded.begin(snap, last)
	}
	newLast, err := s.engine.LastIndex()
	if err != nil {
		return err
	}
	s.last.Store(newLast) // before the tail is cut, so that TermAt does not take deleted entries for compacted ones
	s.tail.cut(lo)
	return nil
}

// beforeCut prepares the log for the deletion of its newest entries, lo to hi. It waits until these entries are on
// disk, reports the acknowledged writes among them as lost, and lowers the floor.
func (s *Store) beforeCut(lo, hi uint64) error {
	if err := s.unsynced.drain(); err != nil {
		return err
	}
	s.tellLost(lo, hi)
	forget := func() { s.durable.cut(lo) }
	if s.floors == nil {
		forget()
		return nil
	}
	if err := s.floors.lower(lo, forget); err != nil {
		err = fault.Wrap(err, "group.log", "the end of the log cannot be replaced")
		s.process.Fatal(err)
		return err
	}
	return nil
}

// IsMonotonic returns true. Raft then leaves no gap in the log when it installs a snapshot.
func (s *Store) IsMonotonic() bool { return true }

// Close waits for unsynced entries and closes the engine.
func (s *Store) Close() error {
	err := s.unsynced.drain()
	if closed := s.engine.Close(); closed != nil {
		err = errors.Join(err, errors.New("closing the log"), closed)
	}
	return err
}

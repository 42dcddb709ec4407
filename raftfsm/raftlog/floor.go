package raftlog

import (
	"encoding/json"
	"errors"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"

	"github.com/quorate/quorate/internal/durable"
)

const (
	FloorName    = "floor.json"
	floorVersion = 1
)

// Floor records the minimum that the other files of a group must contain: term, vote, log and snapshot. It is stored in
// a separate file with a checksum. A server does not start if one of the other files was lost or replaced by an older
// copy. Otherwise the server could vote twice in a term, or help to elect a leader that lacks acknowledged writes.
//
// Invariant: everything in the floor is already durable in the other files. Therefore entries are removed from the
// floor before they are deleted from the end of the log. So an intact group can be opened after a crash at any point.
//
// Appends never wait for a write of the floor. The floor is written at these times:
//
//   - when the group has been opened
//   - with each vote, before the vote is sent
//   - with each snapshot
//   - before the end of the log is truncated
//   - at a clean close
//   - every Timing.FloorEvery (see package group) if something has changed
//
// When the server starts, the files are also compared with the database, and with what other servers have recorded (see
// transport.Witness).
type Floor struct {
	Version int    `json:"version"`
	Owner          // as known when the floor was written
	Group   uint32 `json:"group"`
	Server  string `json:"server"`
	Engine  Engine `json:"logStore"`

	Term     uint64 `json:"term"`
	VoteTerm uint64 `json:"voteTerm,omitempty"`
	Vote     string `json:"vote,omitempty"`
	First    uint64 `json:"first,omitempty"` // index of the oldest entry in the log; 0 = the log was empty
	Last     uint64 `json:"last,omitempty"`
	LastTerm uint64 `json:"lastTerm,omitempty"` // term of the entry at Last; 0 = not recorded
	Snapshot uint64 `json:"snapshot,omitempty"` // index of the snapshot
	Applied  uint64 `json:"applied,omitempty"`  // index of the newest command in the database on disk

	Seen map[string]Seen `json:"seen,omitempty"` // what this server has seen of other servers, by server id
}

// FloorSources supplies what a floor records besides the log, terms and votes.
type FloorSources interface {
	// Owner returns the cluster to which the group belongs.
	Owner() Owner
	// SnapshotExtent returns what the manifest names: the index of the snapshot, and the index of the newest command
	// that the database has on disk.
	SnapshotExtent() (index, applied uint64)
	// SeenOfOthers returns what this server has seen of other servers, by server id.
	SeenOfOthers() map[string]Seen
}

// FloorFile maintains the floor file of one group. It is safe for concurrent use.
type FloorFile struct {
	volume  Volume
	dir     string
	process Process
	sources FloorSources
	extent  *extent // the durable part of the log

	mu      sync.Mutex
	current Floor  // the newest values known; the file may be older
	written string // content that was last written; empty = none since the start
}

// LoadFloor reads the floor of a directory. It returns nil, nil if there is none.
func LoadFloor(v Volume, dir string) (*Floor, error) {
	path := filepath.Join(dir, FloorName)
	body, err := v.Read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, durable.ErrDamaged):
		return nil, CorruptFile(path, err.Error())
	case err != nil:
		return nil, DiskError(err, path)
	}
	var f Floor
	if err := json.Unmarshal(body, &f); err != nil {
		return nil, CorruptFile(path, err.Error())
	}
	if f.Version > floorVersion {
		return nil, errNewer(path, uint64(f.Version), floorVersion) //nolint:gosec // positive
	}
	return &f, nil
}

// observeTerm records a term that the stable store has written. The term reaches the floor file only when the file is
// next written. This delay is safe, because a server may forget a term in which it has not voted.
func (k *FloorFile) observeTerm(term uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current.Term = term
}

// vote records a vote that the stable store already holds, and writes the floor file.
func (k *FloorFile) vote(term uint64, candidate string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current.VoteTerm, k.current.Vote = term, candidate
	return k.writeLocked()
}

// lower removes the entries at and above the given index from the floor. The caller may delete these entries from the
// log only after lower has returned nil. lower first calls forget, which must remove the entries from k.extent.
// Otherwise a concurrent write of the floor file could record the entries again.
func (k *FloorFile) lower(index uint64, forget func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	named := k.current.Last >= index
	forget()
	if !named {
		return nil
	}
	return k.writeLocked()
}

// Write writes the floor file if anything has changed.
func (k *FloorFile) Write() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.writeLocked()
}

func (k *FloorFile) writeLocked() error {
	f := &k.current
	f.Owner = k.sources.Owner()
	first, last := k.extent.get()
	f.First, f.Last, f.LastTerm = first, last.Index, last.Term
	f.Snapshot, f.Applied = k.sources.SnapshotExtent()
	f.Seen = k.sources.SeenOfOthers()
	body, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if string(body) == k.written {
		return nil
	}
	path := filepath.Join(k.dir, FloorName)
	if err := k.volume.Write(path, body, func(done string) { k.process.Step("floor-" + done) }); err != nil {
		return DiskError(err, path)
	}
	k.written = string(body)
	return nil
}

// Promises returns the durable term, and the term of the newest durable vote.
func (k *FloorFile) Promises() (term, vote uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current.Term, k.current.VoteTerm
}

// found describes what the log, the file of terms and votes, and the manifest contain when a group is opened.
type found struct {
	Term, VoteTerm uint64
	vote           string
	first          uint64
	Last           Position // newest entry of the log
	Snapshot       Position
	Applied        uint64 // index of the newest command in the database, according to the manifest
	Manifest       string // path of the file that names the snapshot
	termAt         func(index uint64) (uint64, error)
}

// Identity names the group and server to which a directory belongs.
type Identity struct {
	Dir    string
	Group  uint32
	Server string
	Engine Engine
	Owner  Owner
}

// Check compares the floor with the files of the group. h describes the content of these files (see ReadStores), and id
// describes the group and the server. Check returns fault.Corrupt in two cases:
//
//   - The floor is of another group, server, log engine or cluster than id names, or of a newer epoch.
//   - The files lack something that the floor records, or contradict the floor.
func (f *Floor) Check(id Identity, h found) error {
	file := func(name string) string { return filepath.Join(id.Dir, name) }
	switch {
	case f.Server != id.Server || f.Group != id.Group || f.Engine != id.Engine:
		return LostData(file(FloorName), "belongs to group %d of server %s with log store %s, and not to group %d "+
			"of server %s with log store %s", f.Group, f.Server, f.Engine, id.Group, id.Server, id.Engine)
	case f.Cluster != "" && f.Cluster != id.Owner.Cluster, f.Epoch > id.Owner.Epoch:
		return LostData(file(FloorName), "belongs to cluster %s at epoch %d, and node.json says cluster %q at epoch "+
			"%d: node.json is an older copy", f.Cluster, f.Epoch, id.Owner.Cluster, id.Owner.Epoch)
	case h.Snapshot.Index < f.Snapshot, h.Applied < f.Applied:
		return LostData(h.Manifest, "is an older copy: its snapshot ends at entry %d (applied %d), there was one "+
			"that ended at %d (applied %d)", h.Snapshot.Index, h.Applied, f.Snapshot, f.Applied)
	case h.Term < f.Term, h.VoteTerm < f.VoteTerm:
		return LostData(file(StableName), "is an older copy, or was emptied: it has term %d and a vote of term %d, "+
			"this server had reached term %d and voted in term %d", h.Term, h.VoteTerm, f.Term, f.VoteTerm)
	case h.VoteTerm == f.VoteTerm && h.vote != f.Vote:
		return LostData(file(StableName), "is damaged: it has a vote for %q in term %d, this server had voted for %q",
			h.vote, h.VoteTerm, f.Vote)
	case max(h.Last.Index, h.Snapshot.Index) < f.Last:
		return LostData(FileOf(id.Dir, id.Engine, h.Last.Index),
			"is an older copy, or was emptied: it ends at entry %d, it had reached entry %d", h.Last.Index, f.Last)
	case h.first != 0 && h.first < f.First:
		return LostData(FileOf(id.Dir, id.Engine, h.first),
			"is an older copy: it begins at entry %d, those before entry %d had been compacted", h.first, f.First)
	}
	if f.LastTerm == 0 || f.Last <= h.Snapshot.Index {
		return nil
	}
	term, err := h.termAt(f.Last)
	if err != nil {
		return err
	}
	if term != f.LastTerm {
		return LostData(file(id.Engine.FileName()),
			"is not the log of this server: entry %d is of term %d, it was of term %d", f.Last, term, f.LastTerm)
	}
	return nil
}

// CheckTerm returns fault.Corrupt if the stored term is lower than the highest term of the entries, snapshots and votes
// of this server. In that case, data was lost, because a server stores a new term before it stores an entry, a snapshot
// or a vote of that term.
func CheckTerm(dir string, stored, newest uint64) error {
	if stored >= newest {
		return nil
	}
	return LostData(filepath.Join(dir, StableName),
		"is an older copy, or was emptied: it has term %d, but this server holds an entry, a snapshot or a vote of "+
			"term %d", stored, newest)
}

// ReadStores reads the terms, the votes and the extent of the log from the stores, for Floor.Check.
func ReadStores(votes *Votes, log *Store) (h found, err error) {
	if h.Term, err = votes.CurrentTerm(); err != nil {
		return h, err
	}
	term, vote, err := votes.Vote()
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return h, err
	}
	h.VoteTerm, h.vote = term, string(vote)
	if h.first, h.Last.Index, err = log.Ends(); err != nil {
		return h, err
	}
	h.termAt = func(index uint64) (uint64, error) {
		var l raft.Log
		err := log.Read(index, &l)
		return l.Term, err
	}
	if h.Last.Index > 0 {
		h.Last.Term, err = h.termAt(h.Last.Index)
	}
	return h, err
}

// NewFloorFile returns the FloorFile of a group. The FloorFile writes nothing before Begin is called.
func NewFloorFile(v Volume, dir string, log *Store, sources FloorSources, process Process) *FloorFile {
	return &FloorFile{volume: v, dir: dir, process: process, sources: sources, extent: &log.durable}
}

// Begin sets the floor to h, the content of the log and of the file of terms and votes. It does not write the floor
// file. From then on, log and votes keep the floor up to date. old is the content of the floor file, or nil if there is
// none.
func (k *FloorFile) Begin(id Identity, h found, old *Floor, log *Store, votes *Votes) {
	log.durable.set(h.first, h.Last)
	k.current = Floor{
		Version: floorVersion, Group: id.Group, Server: id.Server, Engine: id.Engine,
		Term: h.Term, VoteTerm: h.VoteTerm, Vote: h.vote,
	}
	if old != nil {
		k.current.Last = old.Last
	}
	log.floors, votes.floors = k, k
}

// extent records which part of a log is durable.
type extent struct {
	mu    sync.Mutex
	first uint64
	last  Position
}

func (e *extent) set(first uint64, last Position) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.first, e.last = first, last
}

func (e *extent) get() (first uint64, last Position) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.first, e.last
}

// appended records that the given entries are durable.
func (e *extent) appended(entries []*raft.Log) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first == 0 {
		e.first = entries[0].Index
	}
	last := entries[len(entries)-1]
	e.last = Position{Term: last.Term, Index: last.Index}
}

// cut records that the entries from the given index on are about to be deleted from the log.
func (e *extent) cut(index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case index <= e.first:
		e.first, e.last = 0, Position{}
	case index <= e.last.Index:
		e.last = Position{Index: index - 1}
	}
}

// compacted records that the entries up to the given index were deleted.
func (e *extent) compacted(index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.first != 0 {
		e.first = max(e.first, index+1)
	}
}

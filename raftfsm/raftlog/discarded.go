package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Discarded describes entries that a received snapshot has replaced, and that raft still considers part of the log of
// a follower.
//
// The problem: a snapshot that ends at index S can contradict the log of the follower. A deposed leader may have
// written a different entry at S, and maybe entries above S. Raft then clears the log but keeps its old last index
// (hashicorp/raft#697). The follower would refuse the next entries of the leader, and the leader would send the
// snapshot again and again.
//
// Discarded solves this in two ways:
//
//  1. The log returns the entries from S+1 to the old last index to raft with term 0. So raft replaces them, like all
//     entries that contradict its leader.
//  2. Discarded changes an append whose previous entry is at or below S. It removes the entries up to S, and the append
//     then names no previous entry. Raft would refuse the unchanged append, because it no longer has a previous entry
//     below S. At S, raft may compare the term with that of its old last entry. An append that names S with another
//     term than the snapshot is not changed.
//
// Both measures end when the first new entry is stored or the server restarts, because raft then updates its last
// index. Until then, raft still uses its old last entry in elections. This is safe, because a candidate with that
// entry cannot win: the old log contradicts a committed entry, so a majority has a newer log.
//
// Safe for concurrent use.
type Discarded struct {
	mu   sync.Mutex
	from Position // end of the snapshot
	to   uint64   // raft's last index; 0 = no entry is discarded
}

// begin records that the log was cleared for a snapshot. The parameter last is the last index of the cleared log, and
// from is the end of the snapshot.
func (v *Discarded) begin(from Position, last uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.from, v.to = from, last
}

// End records that new entries were stored.
func (v *Discarded) End() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.to = 0
}

// covers reports whether the entry at the given index was discarded, while raft still assumes that it exists.
func (v *Discarded) covers(index uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return index > v.from.Index && index <= v.to
}

// rebase returns r without the entries that the snapshot covers. The result names no previous entry, so raft does
// not compare it with entries that the snapshot has replaced.
func (v *Discarded) rebase(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	v.mu.Lock()
	from, to := v.from, v.to
	v.mu.Unlock()
	switch {
	case to == 0, r.PrevLogEntry > from.Index:
		return r
	case r.PrevLogEntry == from.Index && r.PrevLogTerm != from.Term:
		return r
	}
	c := *r
	c.Entries = r.Entries[min(from.Index-r.PrevLogEntry, uint64(len(r.Entries))):]
	c.PrevLogEntry, c.PrevLogTerm = 0, 0
	return &c
}

package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Discarded describes entries that raft still considers part of a follower's log although a received snapshot has
// replaced them.
//
// A snapshot that ends at index S can contradict the log of the follower. This happens if a deposed leader has written
// a different entry at S, and maybe entries above S. Raft then clears the log, but its last index stays the old one
// (hashicorp/raft#697). So the follower would refuse the next entries of the leader, and the leader would send the
// snapshot again and again.
//
// Discarded avoids this in two ways. First, the log returns entries above S to raft with term 0, so that raft replaces
// them like all entries that contradict its leader. Second, an append whose previous entry is at or below S is
// changed: it then begins after S and names no previous entry. Without this change, raft would not find a previous
// entry below S. At S, it could use the term of its old last entry. Discarded does both until the first new entry is
// stored, because raft then updates its last index, or until a restart.
//
// Until then raft uses its old last entry in elections. That is safe, because a candidate cannot win with it: the old
// log contradicts a committed entry, so a majority has a newer log.
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

// covers reports whether raft still assumes an entry at the given index, although that entry was discarded.
func (v *Discarded) covers(index uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return index > v.from.Index && index <= v.to
}

// rebase returns r without the entries that the snapshot covers, and changed so that raft does not compare it with log
// entries that the snapshot has replaced.
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

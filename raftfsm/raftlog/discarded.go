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
// So the log returns the entries from S+1 to the old last index to raft with term 0. Raft replaces them, like all
// entries that contradict its leader. An append that follows S is rebased (see Store.Rebase).
//
// Raft updates its last index when the first new entry is stored or the server restarts. Then no entry counts as
// discarded any more. Until then, raft still uses its old last entry in elections. This is safe, because a candidate
// with that entry cannot win: the old log contradicts a committed entry, so a majority has a newer log. For the same
// reason, no leader has an entry of the old log above S, or names it as a previous entry. So raft never applies an
// entry with term 0.
//
// A Discarded is safe for concurrent use.
type Discarded struct {
	mu   sync.Mutex
	from Position // end of the snapshot
	to   uint64   // last index of the cleared log, which raft still uses; 0 = no entry is discarded
}

// begin records that the log was cleared for a snapshot. snapshot is the end of the snapshot, and last is the last
// index of the cleared log.
func (v *Discarded) begin(snapshot Position, last uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.from, v.to = snapshot, last
}

// End records that new entries were stored. No entry counts as discarded afterwards.
func (v *Discarded) End() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.to = 0
}

// covers reports whether the entry at the given index is discarded. A snapshot has replaced a discarded entry, but raft
// still assumes that the entry exists.
func (v *Discarded) covers(index uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return index > v.from.Index && index <= v.to
}

// Rebase adapts an append to an empty log after a snapshot, so that raft can accept it. It removes the entries up to
// the end of the snapshot. The append then names no previous entry. Raft might refuse the unchanged append, for these
// reasons:
//
//   - Raft has no previous entry below the end of the snapshot.
//   - After a snapshot that contradicts the log, raft may compare the previous entry with its old last entry (see
//     Discarded).
//   - If a local snapshot completes at the same time, raft may set its record of the newest snapshot back to an
//     earlier one. The leader would then continue from an entry that the log no longer has.
//
// Rebase does not change an append that names the end of the snapshot with another term.
//
// Raft may still process an earlier request when it gets the adapted append. If the earlier request stores entries,
// raft compares the entries of r with them, one by one. If the earlier request installs a newer snapshot, the log
// refuses r (see checkFollows), and the leader repeats r.
func (s *Store) Rebase(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	base, _ := s.role.Base()
	if base.Index == 0 || s.last.Load() != 0 || s.gaps {
		return r
	}
	return rebase(r, base)
}

// rebase returns r without the entries that a snapshot covers. The parameter snapshot is the position at which that
// snapshot ends. The result has no previous entry, so raft does not compare it with entries that the snapshot has
// replaced. There are two exceptions, in which rebase returns r unchanged: the previous entry of r is after the end
// of the snapshot, or it is at the end and has another term.
func rebase(r *raft.AppendEntriesRequest, snapshot Position) *raft.AppendEntriesRequest {
	switch {
	case r.PrevLogEntry > snapshot.Index:
		return r
	case r.PrevLogEntry == snapshot.Index && r.PrevLogTerm != snapshot.Term:
		return r
	}
	c := *r
	c.Entries = r.Entries[min(snapshot.Index-r.PrevLogEntry, uint64(len(r.Entries))):]
	c.PrevLogEntry, c.PrevLogTerm = 0, 0
	return &c
}

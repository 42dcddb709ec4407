package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Discarded describes the entries that a received snapshot has replaced, although raft still considers them part of the
// log.
//
// Such entries exist if the snapshot contradicts the log of the follower. For example, the snapshot ends at index S,
// but a deposed leader has written a different entry at S, and more entries above S. Raft then clears the log, but
// keeps its old last index (hashicorp/raft#697). The follower would refuse the next entries of the leader, and the
// leader would send the snapshot again and again.
//
// To prevent this, Store.GetLog returns placeholders with term 0 for the indexes from S+1 to the old last index. Raft
// replaces them as it replaces all entries that contradict the leader. Store.Rebase adapts an append that follows S.
//
// Entries count as discarded until raft stores the first new entry, or the server restarts. Until then:
//
//   - Raft uses its old last entry in elections, but a candidate with this entry cannot win. The old log
//     contradicts a committed entry, so a majority has a newer log.
//   - Raft never applies a placeholder. No leader has an entry of the old log above S, and no leader names such an
//     entry as the previous entry of an append.
//
// A Discarded is safe for concurrent use.
type Discarded struct {
	mu   sync.Mutex
	from Position // end of the snapshot
	to   uint64   // last index of the cleared log, which raft still uses; 0 = no entry is discarded
}

// begin records that the log was cleared for a snapshot that ends at the given position. last is the index of the last
// entry of the cleared log.
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

// covers reports whether the entry at the given index is discarded: a snapshot has replaced it, but raft still assumes
// that it exists.
func (v *Discarded) covers(index uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return index > v.from.Index && index <= v.to
}

// Rebase adapts an append so that raft accepts it when the log is empty after a snapshot. It removes the entries that
// the snapshot covers, and the reference to the previous entry. It returns r unchanged in these cases:
//
//   - The log is not empty, or there is no snapshot.
//   - The previous entry is after the end of the snapshot, or is at the end and has another term.
//
// Raft might refuse the original append for these reasons:
//
//   - The previous entry is below the end of the snapshot, so the server does not have it.
//   - The snapshot contradicted the log, and raft compares the previous entry with its old last entry (see Discarded).
//   - A local snapshot was completed at the same time, and raft takes it for the newest one. The leader would then
//     continue from an entry that the log no longer has.
//
// Rebase is safe while raft still stores an earlier append, because raft compares the stored entries with those of r
// one by one. If raft has installed a newer snapshot, the log refuses r (see checkFollows), and the leader repeats the
// append.
func (s *Store) Rebase(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	base, _ := s.role.Base()
	if base.Index == 0 || s.last.Load() != 0 || s.gaps {
		return r
	}
	return rebase(r, base)
}

// rebase returns a copy of r without the entries that a snapshot covers. snapshot is the position at which the snapshot
// ends. The copy names no previous entry, so raft does not compare it with entries that the snapshot has replaced. If
// the previous entry of r is after the end of the snapshot, or is at the end and has another term, rebase returns r
// itself.
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

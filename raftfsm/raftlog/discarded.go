package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// Discarded describes the entries that a received snapshot has replaced, although raft still considers them part of the
// log.
//
// Such entries exist if the received snapshot contradicts the log of the follower. For example, the snapshot ends at
// index S, but a deposed leader has written a different entry at S, and more entries above S. Raft then clears the log,
// but keeps its old last index (hashicorp/raft#697). So the follower would refuse the next entries of the leader, and
// the leader would send the snapshot again and again.
//
// To prevent this, Store.GetLog returns placeholders with term 0 for the indexes from S+1 to the old last index. Raft
// replaces these placeholders, like all entries that contradict the leader. An append that follows S is rebased (see
// Store.Rebase).
//
// Raft updates its last index when it stores the first new entry, or when the server restarts. Then no entry counts as
// discarded any more. Until then, raft still uses its old last entry in elections. This is safe, because the old log
// contradicts a committed entry. So a majority has a newer log, and a candidate with the old entry cannot win. For the
// same reason, no leader has an entry of the old log above S, or names one as a previous entry. So raft never applies a
// placeholder.
//
// A Discarded is safe for concurrent use.
type Discarded struct {
	mu   sync.Mutex
	from Position // end of the snapshot
	to   uint64   // last index of the cleared log, which raft still uses; 0 = no entry is discarded
}

// begin records that the log was cleared for a snapshot. The parameter snapshot is the position at which the snapshot
// ends, and last is the index of the last entry before the log was cleared.
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

// Rebase adapts an append so that raft accepts it when the log is empty after a snapshot. It removes the entries that
// the snapshot covers, and the reference to the previous entry. If the log is not empty, Rebase returns r unchanged.
// Raft might refuse the original append for these reasons:
//
//   - The previous entry is below the end of the snapshot, so the server does not have it.
//   - The snapshot contradicted the log. Then raft may compare the previous entry with its old last entry (see
//     Discarded).
//   - A local snapshot completes at the same time. Then raft may set its record of the newest snapshot back to the
//     local one. The leader would continue from an entry that the log no longer has.
//
// Rebase does not change an append if its previous entry is after the end of the snapshot, or is at the end and has
// another term.
//
// Raft may still be processing an earlier append when it gets the adapted one. If the earlier append stores entries,
// raft compares them one by one with the entries of r. If raft has installed a newer snapshot meanwhile, the log
// refuses r (see checkFollows), and the leader repeats r.
func (s *Store) Rebase(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
	base, _ := s.role.Base()
	if base.Index == 0 || s.last.Load() != 0 || s.gaps {
		return r
	}
	return rebase(r, base)
}

// rebase returns a copy of r without the entries that a snapshot covers. The parameter snapshot is the position at
// which the snapshot ends. The copy names no previous entry, so raft does not compare it with entries that the snapshot
// has replaced. rebase returns r itself if the previous entry of r is after the end of the snapshot, or is at the end
// and has another term.
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

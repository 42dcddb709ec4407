package raftlog

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Limits for the old entries that the log keeps for followers to which a snapshot was sent.
const (
	retainBytes = 1 << 30         // bytes, from the oldest entry that a follower needs
	retainWait  = 1 * time.Minute // time without an acknowledgement of the follower
)

// Retained determines which old entries a leader keeps in its log for followers that receive a snapshot. While a
// snapshot is being sent, the leader may take a newer one. If the leader then deleted all entries that the newer
// snapshot covers, the follower could not continue after the older snapshot. It would need one snapshot after another.
//
// Invariant: from the start of a transfer until the follower has caught up, the leader keeps all entries after the end
// of the sent snapshot. It may delete them in two cases:
//
//   - These entries exceed retainBytes.
//   - The follower has acknowledged nothing for retainWait after the transfer.
type Retained struct {
	mu    sync.Mutex
	needs map[raft.ServerID]need
}

// need describes which entries a follower needs: all entries from index on. The entry at index itself is needed,
// because the first append after the snapshot names it as its previous entry.
type need struct {
	index   uint64
	sending bool      // a snapshot is being sent
	heard   time.Time // time of the last acknowledgement of the follower, or of the end of the transfer
}

// Begin records that a snapshot is being sent to a follower. index is the index at which the snapshot ends.
func (r *Retained) Begin(id raft.ServerID, index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.needs == nil {
		r.needs = map[raft.ServerID]need{}
	}
	r.needs[id] = need{index: index, sending: true}
}

// End records the end of a transfer to a follower. installed is true if the follower has installed the snapshot. After
// a failed transfer, no entries are kept for the follower any more, because raft sends it the newest snapshot next.
func (r *Retained) End(id raft.ServerID, installed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, ok := r.needs[id]; ok && installed {
		r.needs[id] = need{index: n.index, heard: time.Now()}
		return
	}
	delete(r.needs, id)
}

// Reached records that a follower has the entries up to index. The parameter last is the last index of the log. When
// the follower is at most 64 entries behind last, no more entries are kept for it.
func (r *Retained) Reached(id raft.ServerID, index, last uint64) {
	const near = 64 // number of entries that may be in flight
	r.mu.Lock()
	defer r.mu.Unlock()
	switch n, ok := r.needs[id]; {
	case !ok || n.sending:
	case index+near >= last:
		delete(r.needs, id)
	default:
		r.needs[id] = need{index: max(index, n.index), heard: time.Now()}
	}
}

// Oldest returns the index of the oldest entry that a follower needs; 0 = none.
func (r *Retained) Oldest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := uint64(0)
	for id, n := range r.needs {
		switch {
		case !n.sending && time.Since(n.heard) > retainWait:
			delete(r.needs, id)
		case out == 0 || n.index < out:
			out = n.index
		}
	}
	return out
}

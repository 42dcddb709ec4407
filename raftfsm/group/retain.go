package group

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Bounds of what is kept of the log for followers that were sent a snapshot.
const (
	retainBytes = 1 << 30         // of the log, from the oldest entry that is needed
	retainWait  = 1 * time.Minute // without a word from the follower
)

// retained is what a leader keeps of its log although a snapshot covers it, because a
// follower is being sent an older one: it needs the entries behind that. A state that takes
// longer to send than the log takes to be trimmed would be sent again and again.
//
// Invariant: from the beginning of a transfer until the follower has caught up, nothing from
// the snapshot's last entry on is compacted, unless that were more than retainBytes or the
// follower has been silent for retainWait.
type retained struct {
	mu    sync.Mutex
	needs map[raft.ServerID]need
}

// need is the oldest entry that a follower has not got.
type need struct {
	index   uint64
	sending bool      // a snapshot is on its way
	heard   time.Time // of the follower, or of the end of the transfer
}

// begin notes that a follower is being sent the snapshot that ends with index.
func (r *retained) begin(id raft.ServerID, index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.needs == nil {
		r.needs = map[raft.ServerID]need{}
	}
	r.needs[id] = need{index: index, sending: true}
}

// end notes the end of a transfer. After one that failed raft begins anew, with the newest.
func (r *retained) end(id raft.ServerID, installed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, ok := r.needs[id]; ok && installed {
		r.needs[id] = need{index: n.index, heard: time.Now()}
		return
	}
	delete(r.needs, id)
}

// reached notes that a follower has the entries up to index, of a log that ends with last.
func (r *retained) reached(id raft.ServerID, index, last uint64) {
	const near = 64 // entries: what is under way
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

// oldest returns the oldest entry that somebody needs, 0 for none.
func (r *retained) oldest() uint64 {
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

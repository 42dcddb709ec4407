package group

import (
	"sync"

	"github.com/hashicorp/raft"
)

// voided is what raft still believes to be in the log of a follower although a received
// snapshot has replaced it.
//
// A snapshot that ends at S contradicts a log that reaches to S or beyond with another
// entry there: a deposed leader wrote it. Raft clears such a log, but goes on as if it
// ended where it did (hashicorp/raft#697): it would refuse what the leader sends next,
// the leader would send the snapshot again, and so on for ever.
//
// So entries above S are shown to raft as void ones, of term 0, which it replaces as it
// does with any that contradict its leader; and appends are rebased to S, for raft cannot
// look up its own last entry there. Both end with the first entry that is stored, for then
// raft notes anew where the log ends; a restart ends them too.
//
// Until then raft claims its old last entry in elections. That is what it could claim
// before, and it wins nothing: the log it stands for contradicts a committed entry, so a
// majority holds one that is newer.
//
// Safe for concurrent use.
type voided struct {
	mu   sync.Mutex
	from Position // end of the snapshot
	to   uint64   // raft's last entry; 0 = nothing is void
}

// begin notes that the log up to last was cleared for a snapshot that ends at from.
func (v *voided) begin(from Position, last uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.from, v.to = from, last
}

// end notes that entries were stored.
func (v *voided) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.to = 0
}

// covers reports whether raft believes in an entry at index that is gone.
func (v *voided) covers(index uint64) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return index > v.from.Index && index <= v.to
}

// rebase makes an append to a log of which nothing but the snapshot is left one that raft
// need not compare: entries that the snapshot covers are left out, for every leader of
// this term or a later one has the same. It is right too if entries were stored meanwhile:
// raft compares those above the snapshot one by one.
func (v *voided) rebase(r *raft.AppendEntriesRequest) *raft.AppendEntriesRequest {
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

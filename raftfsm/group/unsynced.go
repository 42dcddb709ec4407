package group

import (
	"sync"

	"github.com/hashicorp/raft"
)

// unsyncedBytes bounds what a leader hands to its followers before its own disk has it. It is
// below tailCacheBytes: entries are sent from there until they can be read from the log.
const unsyncedBytes = 8 << 20

// unsynced are the entries that the leader here replicates while its own disk still writes
// them, so that a write costs the slower of two disks and not one after the other (Ongaro,
// Consensus: Bridging Theory and Practice, section 10.2.1; hashicorp/raft#578).
//
// Invariants:
//
//  1. No leader commits an entry before its own disk holds it. Raft counts the leader once
//     StoreLogs returns, which here may be too early, but it needs one other voter at least:
//     and no answer of another server that covers an entry reaches raft before the entry is
//     durable here (guard.AppendEntries). Where there is no other voter, and for a change of
//     the configuration, which may lead there, StoreLogs waits for the disk.
//  2. What a server says of its log in one term is durable before it says anything in the
//     next: terms and votes are stored after all entries (stable), and a leader takes part in
//     nothing else before a newer term.
//  3. Entries reach the disk in the order of the log. One goroutine writes at a time; whoever
//     writes or truncates besides waits for it first.
//
// A leader that crashes may come back with less than it sent, as a follower does that was
// sent less: nothing of that was counted.
//
// At most two writes are outstanding, the one that is going on and the next: raft's main loop
// waits where there would be a third, and meanwhile proposals are gathered into one entry.
type unsynced struct {
	write func([]*raft.Log) error

	mu      sync.Mutex
	changed sync.Cond   // of mu
	next    []*raft.Log // not yet given to write
	first   uint64      // oldest entry that is not durable; 0 = all are
	running bool        // a goroutine writes, or is about to
	err     error       // of a write: nothing is taken any more
}

func newUnsynced(write func([]*raft.Log) error) *unsynced {
	u := &unsynced{write: write}
	u.changed.L = &u.mu
	return u
}

// add hands entries to the disk and returns, unless two writes are outstanding already. It
// calls note once they count as not durable and before they can be. The entries must not be
// changed afterwards.
func (u *unsynced) add(entries []*raft.Log, note func()) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.err == nil && len(u.next) > 0 {
		u.changed.Wait()
	}
	if u.err != nil {
		return u.err
	}
	u.next = entries
	if u.first == 0 {
		u.first = entries[0].Index
	}
	note()
	if !u.running {
		u.running = true
		go u.run()
	}
	return nil
}

// run writes until nothing is left.
func (u *unsynced) run() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.err == nil && len(u.next) > 0 {
		batch := u.next
		u.next = nil
		u.changed.Broadcast()
		u.mu.Unlock()
		err := u.write(batch)
		u.mu.Lock()
		if u.err = err; err == nil {
			u.first = 0
			if len(u.next) > 0 {
				u.first = u.next[0].Index
			}
		}
		u.changed.Broadcast()
	}
	u.running = false
	u.changed.Broadcast()
}

// wait returns when the entries up to index are durable, or with the error of a write. It
// lasts as long as the disk does.
func (u *unsynced) wait(index uint64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.err == nil && u.first != 0 && u.first <= index {
		u.changed.Wait()
	}
	return u.err
}

// drain returns when everything is durable and nobody writes.
func (u *unsynced) drain() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.running {
		u.changed.Wait()
	}
	return u.err
}

package raftlog

import (
	"sync"

	"github.com/hashicorp/raft"
)

// unsyncedBytes is the maximum size, in bytes, of a write that a leader may send to followers before its own disk has
// it. Two such writes can be outstanding. Their entries are sent from the tail cache, so both must fit into
// tailCacheBytes.
const unsyncedBytes = 8 << 20

// unsynced contains the entries that a leader sends to followers while its own disk still writes them. The disks of the
// leader and the followers can therefore work at the same time. See Ongaro, Consensus: Bridging Theory and Practice,
// section 10.2.1.
//
// Three rules make this safe:
//
//  1. A leader commits no entry before its own disk has the entry. Raft counts the leader's copy as soon as
//     StoreLogs returns, so transport.Guard delays the answers of followers until the entry is durable on the
//     leader. If there is no other voter, or the entry changes the configuration, StoreLogs waits for the disk.
//  2. All earlier entries are on disk before a term or a vote is stored (see Votes). The log that a server reports
//     in one term is therefore durable before the server sends anything in the next term.
//  3. Entries reach the disk in the order of the log. One goroutine writes at a time, and at most two writes are
//     outstanding. Before a third write, raft's main loop waits.
//
// After a crash, a leader may lack entries that it has sent to followers. This is safe, because the leader has not
// counted its own copies of these entries towards a commit.
type unsynced struct {
	write func([]*raft.Log) error

	mu      sync.Mutex
	changed sync.Cond   // of mu
	next    []*raft.Log // not yet passed to write
	first   uint64      // oldest entry that is not durable; 0 = all are durable
	running bool        // a goroutine is writing, or is about to
	err     error       // error of a write; afterwards nothing is accepted
}

func newUnsynced(write func([]*raft.Log) error) *unsynced {
	u := &unsynced{write: write}
	u.changed.L = &u.mu
	return u
}

// room waits until fewer than two writes are outstanding, so that add need not wait. It also returns when a write has
// failed.
func (u *unsynced) room() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.err == nil && len(u.next) > 0 {
		u.changed.Wait()
	}
}

// add passes entries to the goroutine that writes to the disk. It also calls note, which makes the entries visible to
// raft. If two writes are outstanding, add first waits until one of them has ended. If an earlier write has failed, add
// returns the error of that write, and does not call note. The caller must not change the entries afterwards.
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

// run writes the entries that add has passed, until none are left or a write fails.
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

// wait waits until the entries up to the given index are durable. It returns an error if a write fails. It has no
// time limit.
func (u *unsynced) wait(index uint64) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.err == nil && u.first != 0 && u.first <= index {
		u.changed.Wait()
	}
	return u.err
}

// drain waits until all entries are durable and no write is in flight. It returns an error if a write has failed.
func (u *unsynced) drain() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.running {
		u.changed.Wait()
	}
	return u.err
}

package kv

import (
	"sync"
	"sync/atomic"
)

// LockStore holds the locks of every store whose keys are in this group. A backup does not contain it, and a restore
// empties it. The name is part of the format. It has no slash, so it is never the name of an application's store.
const LockStore = "locks"

// lockChanges collects which records of LockStore were changed, for the part of the leader that counts how long locks
// are valid.
type lockChanges struct {
	recent atomic.Bool // the last Apply has changed a record

	mu   sync.Mutex
	on   bool
	keys []string
	all  bool
}

// lockChanged records that a write has changed or removed a key.
func (w *writer) lockChanged(k rowKey) {
	if k.store == LockStore {
		w.locks = append(w.locks, k.key)
	}
}

// publish hands the changes of an Apply over.
func (c *lockChanges) publish(w *writer) {
	if len(w.locks) == 0 && !w.unlocked {
		return
	}
	c.recent.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.on {
		c.keys, c.all = append(c.keys, w.locks...), c.all || w.unlocked
	}
	w.locks, w.unlocked = nil, false
}

// LocksChanged reports whether a record of LockStore has changed since the last call.
func (m *Machine) LocksChanged() bool { return m.locks.recent.Load() && m.locks.recent.Swap(false) }

// CollectLockChanges begins to collect the keys of LockStore that change, or ends it. Whoever begins must call
// LockChanges each time that LocksChanged reports a change, because nothing bounds what is collected. Keys that were
// collected before are forgotten.
func (m *Machine) CollectLockChanges(on bool) {
	m.locks.mu.Lock()
	defer m.locks.mu.Unlock()
	m.locks.on, m.locks.keys, m.locks.all = on, nil, false
}

// LockChanges returns the keys of LockStore that have changed since the last call. A key may occur several times.
// If all is true, every key may have changed, because a restore has removed all locks.
func (m *Machine) LockChanges() (keys []string, all bool) {
	m.locks.mu.Lock()
	defer m.locks.mu.Unlock()
	keys, all = m.locks.keys, m.locks.all
	m.locks.keys, m.locks.all = nil, false
	return keys, all
}

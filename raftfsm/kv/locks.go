package kv

// LockStore is the name of the internal store for locks and the directory of actors. Backups do not contain this store,
// and a restore empties it. The name is part of the format. It has no slash, so it differs from the name of every
// application's store.
const LockStore = "locks"

// LocksChanged reports whether a record of LockStore has changed since the last call.
func (m *Machine) LocksChanged() bool { return m.locks.happened() }

// CollectLockChanges starts or stops the recording of changed keys of LockStore. Each call discards the keys recorded
// before it. The number of recorded keys is not limited. While recording is on, the caller must therefore call
// LockChanges whenever LocksChanged returns true.
func (m *Machine) CollectLockChanges(record bool) { m.locks.collect(record) }

// LockChanges returns the keys of LockStore that were changed since the last call. A key may occur several times. If
// incomplete is true, a restore has removed all locks, and any key may have changed.
func (m *Machine) LockChanges() (keys []string, incomplete bool) { return m.locks.take() }

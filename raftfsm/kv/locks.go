package kv

// LockStore holds the locks of every store whose keys are in this group, and the directory of their actors. A backup
// does not contain it, and a restore empties it. The name is part of the format. It has no slash, so it is never the
// name of an application's store.
const LockStore = "locks"

// LocksChanged reports whether a record of LockStore has changed since the last call.
func (m *Machine) LocksChanged() bool { return m.locks.happened() }

// CollectLockChanges starts or stops the collection of changed keys of LockStore. Keys that were collected before
// are dropped. While the collection is on, the caller must call LockChanges each time LocksChanged reports a change,
// because the collection has no size limit.
func (m *Machine) CollectLockChanges(on bool) { m.locks.collect(on) }

// LockChanges returns the keys of LockStore that have changed since the last call. A key may occur several times.
// If all is true, every key may have changed, because a restore has removed all locks.
func (m *Machine) LockChanges() (keys []string, all bool) { return m.locks.take() }

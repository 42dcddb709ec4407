package kv

// LockStore is the name of the internal store for the locks and the actor directory of all applications whose keys are
// in this group. Backups do not contain it, and a restore empties it. The name is part of the format. It has no slash,
// so no application's store can have this name.
const LockStore = "locks"

// LocksChanged reports whether a record of LockStore has changed since the last call.
func (m *Machine) LocksChanged() bool { return m.locks.happened() }

// CollectLockChanges turns the recording of changed keys of LockStore on or off. Each call drops the keys that were
// recorded so far. While recording is on, the caller must call LockChanges whenever LocksChanged returns true, because
// the number of recorded keys is not limited.
func (m *Machine) CollectLockChanges(on bool) { m.locks.collect(on) }

// LockChanges returns the keys of LockStore that were changed since the last call. A key may occur several times. If
// the result all is true, any key may have changed, because a restore has removed all locks.
func (m *Machine) LockChanges() (keys []string, all bool) { return m.locks.take() }

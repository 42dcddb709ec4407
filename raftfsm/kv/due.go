package kv

// DueStore is the name of the internal store for work that is due at some time, and for the index of that work; see
// package due. Backups contain it. The name is part of the format. It has no slash, so no application's store can have
// this name.
const DueStore = "due"

// DueChanged reports whether a record of DueStore was written since the last call.
func (m *Machine) DueChanged() bool { return m.dues.happened() }

// CollectDueChanges turns the recording of written keys of DueStore on or off. Each call drops the keys that were
// recorded so far.
func (m *Machine) CollectDueChanges(on bool) { m.dues.collect(on) }

// DueChanges returns the keys of DueStore that were written since the last call, in the order of the writes, without
// keys that were removed. If the result all is true, the list is incomplete, because a restore took place or more than
// maxChanges keys were written. The caller must then read the whole store.
func (m *Machine) DueChanges() (keys []string, all bool) { return m.dues.take() }

package kv

// DueStore is the name of the internal store for due work and its index (see package due). Backups contain this store.
// The name is part of the format. It has no slash, so it differs from the name of every application's store.
const DueStore = "due"

// DueChanged reports whether a record of DueStore was written since the last call.
func (m *Machine) DueChanged() bool { return m.dues.happened() }

// CollectDueChanges turns the recording of written keys of DueStore on or off. Each call discards the keys recorded
// before it.
func (m *Machine) CollectDueChanges(on bool) { m.dues.collect(on) }

// DueChanges returns the keys of DueStore that were written since the last call, in the order of the writes. Removals
// are not recorded. If incomplete is true, some written keys are missing, and the caller must read the whole store.
// This happens after a restore, or if more than maxChanges keys were written.
func (m *Machine) DueChanges() (keys []string, incomplete bool) { return m.dues.take() }

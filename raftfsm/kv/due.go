package kv

// DueStore is the name of the internal store for due work and its index (see package due). Backups contain this store.
// The name is part of the format. It has no slash, so it differs from the name of every application's store.
const DueStore = "due"

// DueChanged reports whether a record of DueStore was written since the last call.
func (m *Machine) DueChanged() bool { return m.dues.happened() }

// CollectDueChanges makes the machine record which keys of DueStore are written, or stop recording them. Each call
// discards the keys that were recorded before it.
func (m *Machine) CollectDueChanges(on bool) { m.dues.collect(on) }

// DueChanges returns the keys of DueStore that were written since the last call, in the order of the writes. It leaves
// out keys that were removed. If incomplete is true, some written keys are missing, and the caller must read the whole
// store. For example, incomplete is true after a restore, or if more than maxChanges keys were written.
func (m *Machine) DueChanges() (keys []string, incomplete bool) { return m.dues.take() }

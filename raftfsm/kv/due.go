package kv

// DueStore is the name of the internal store for due work and its index; see package due. Backups contain it. The
// name is part of the format. It has no slash, so no store of an application can have this name.
const DueStore = "due"

// DueChanged reports whether a record of DueStore was written since the last call.
func (m *Machine) DueChanged() bool { return m.dues.happened() }

// CollectDueChanges starts or stops the recording of written keys of DueStore. Each call drops the keys recorded so
// far.
func (m *Machine) CollectDueChanges(on bool) { m.dues.collect(on) }

// DueChanges returns the keys of DueStore that were written since the last call, in the order of the writes. Keys
// that were removed are not included. If incomplete is true, keys are missing, and the caller must read the whole
// store. This happens after a restore, and after more than maxChanges written keys.
func (m *Machine) DueChanges() (keys []string, incomplete bool) { return m.dues.take() }

package kv

// DueStore holds the work that is due at some time, and its index; see package due. Backups contain it. The name is
// part of the format. It has no slash, so it is never the name of an application's store.
const DueStore = "due"

// DueChanged reports whether a record of DueStore was written since the last call.
func (m *Machine) DueChanged() bool { return m.dues.happened() }

// CollectDueChanges starts or stops the collection of written keys of DueStore. Keys that were collected before are
// dropped.
func (m *Machine) CollectDueChanges(on bool) { m.dues.collect(on) }

// DueChanges returns the keys of DueStore that were written since the last call, in the order of the writes. It
// leaves out removed keys. If all is true, every key may have changed: there was a restore, or more than maxChanges
// keys were written.
func (m *Machine) DueChanges() (keys []string, all bool) { return m.dues.take() }

package kv

// WorkflowStore is the name of the internal store for workflows (see package workflows). Backups contain this store.
// The name is part of the format. It has no slash, so it differs from the name of every application's store.
const WorkflowStore = "workflows"

// WorkflowsReplaced reports whether a restore has replaced the records of WorkflowStore since the last call. It does
// not report other changes, because only the leader makes them, and the leader knows what it has written.
func (m *Machine) WorkflowsReplaced() bool { return m.workflows.Load() && m.workflows.Swap(false) }

package kv

// WorkflowStore is the name of the internal store for workflows; see package workflows. Backups contain it. The name
// is part of the format. It has no slash, so no store of an application can have this name.
const WorkflowStore = "workflows"

// WorkflowsReplaced reports whether a restore has replaced the records of WorkflowStore since the last call. No other
// changes are reported: only the leader makes them, and it knows what it has written.
func (m *Machine) WorkflowsReplaced() bool { return m.workflows.Load() && m.workflows.Swap(false) }

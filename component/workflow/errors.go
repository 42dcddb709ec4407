package workflow

import "github.com/quorate/quorate/internal/fault"

// The texts of these errors are part of Dapr's API.

// NoInstance returns the error for an instance that does not exist.
func NoInstance(id string) *fault.Error {
	return &fault.Error{Code: fault.NotFound, Op: "workflow", Msg: "no such instance exists", Key: id}
}

// AlreadyRuns returns the error of a start with the id of an instance that is not terminal.
func AlreadyRuns(id string) *fault.Error {
	return &fault.Error{Code: fault.Conflict, Op: "workflow",
		Msg: "an active workflow with ID '" + id + "' already exists", Key: id}
}

// AlreadyExists returns the error of a start whose id belongs to a terminal instance that must not be replaced.
func AlreadyExists(id string) *fault.Error {
	return &fault.Error{Code: fault.Conflict, Op: "workflow", Msg: "a workflow with ID '" + id +
		"' already exists and the create enforces instance ID uniqueness", Key: id}
}

// ChildRuns returns the error of a start whose id belongs to a terminal instance with a descendant that is not
// terminal. child is the id of this descendant.
func ChildRuns(id, child string) *fault.Error {
	return &fault.Error{Code: fault.Conflict, Op: "workflow", Msg: "cannot recreate workflow with ID '" + id +
		"': child workflow '" + child + "': orchestration has not yet completed", Key: id}
}

// Stalled returns the error of a change that a stalled instance refuses.
func Stalled(id string) *fault.Error {
	return &fault.Error{Code: fault.Invalid, Op: "workflow", Msg: "workflow is stalled", Key: id}
}

// NotTerminal returns the error of a purge of an instance that is not terminal.
func NotTerminal(id string) *fault.Error {
	return &fault.Error{Code: fault.Invalid, Op: "workflow", Msg: "orchestration has not yet completed", Key: id}
}

// Package turn defines the rules of a workflow's turn. A turn is one execution of the workflow's code by a worker:
// the worker gets the history and the new events of an instance and answers with actions. The functions of this
// package say which events a worker gets, what its actions change, and when an answer is refused.
//
// The result of every function depends on the arguments only. The time and random ids are arguments. No function
// changes an event that it was given, except that Traced changes the start event. So an engine may share events
// between its cache, its records and its workers. The answers of workers may be hostile, so every function checks
// them before it uses them.
//
// The package owns these rules. It has no goroutines and does no I/O.
package turn

// Package turn defines the rules of a workflow's turn. A turn is one execution of the workflow's code by a worker: the
// worker gets the history and the new events of an instance and answers with actions. The functions of this package
// determine which events a worker gets, what its actions change, and when an answer is refused. The package owns these
// rules.
//
// The result of a function depends only on its arguments. The current time and random ids are also arguments. The
// functions do not change the events in their arguments, so an engine may share events between its cache, its records
// and its workers. The only exception is Traced, which changes a start event.
//
// A worker may be hostile. Therefore the functions check an answer before they use it. The package has no goroutines
// and does no I/O.
package turn

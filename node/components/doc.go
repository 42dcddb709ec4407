// Package components opens the components that the resource files of a node declare, and makes them available to the
// APIs. Package component/loader reads the files. Package components owns the replicated component types such as
// state.raft, the claims of input bindings, and the rule that decides which state stores an application can use.
//
// If all nodes receive an event of an input binding, a claim ensures that only one of them handles the event.
//
// Package components has no goroutines.
package components

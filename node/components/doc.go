// Package components opens the components that the resource files of a node declare, and makes them available to the
// APIs. Package component/loader reads the files. The package owns the replicated component types such as state.raft,
// the claims of input bindings, and which components an application sees.
//
// The package implements the replicated component types such as state.raft. If all nodes receive an event of an input
// binding, it ensures that only one of them handles the event. It also decides which state stores an application can
// use.
//
// Package components has no goroutines.
package components

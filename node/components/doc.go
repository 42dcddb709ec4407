// Package components opens the components that the resources of a node declare. It makes them available to the service
// layer.
//
// It owns the replicated component types such as state.raft, and the claims of input bindings. It also decides which
// state stores an application can use. Package component/loader reads the files. Package components has no goroutines.
package components

// Package components opens the components that the resources of a node declare, and provides them to the service
// layer.
//
// It owns the replicated component types such as state.raft, the claims of input bindings, and which components an
// application sees. Package component/loader reads the files. Package components has no goroutines.
package components

// Package inputs runs the input bindings of a node and delivers their events to the applications.
//
// It owns two decisions: which application gets the events of a binding, and when the delivery ends. Package api
// delivers single events.
//
// Goroutines: one for each binding that an application receives events of, until the binding has started. Close ends
// them.
package inputs

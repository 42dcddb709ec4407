// Package inputs runs the input bindings of a node and delivers their events to the applications.
//
// It owns two decisions: which application gets the events of a binding, and when the delivery ends. Package api
// delivers single events.
//
// Goroutines: one for each binding whose events an application receives. The goroutine ends when the binding has
// started, or with Close.
package inputs

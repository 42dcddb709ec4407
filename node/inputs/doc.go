// Package inputs runs the input bindings of a node and delivers their events to the applications.
//
// It owns which application gets the events of a binding, and the end of the delivery. Package api delivers single
// events.
//
// Goroutines: one for each application that receives events. Close ends them.
package inputs

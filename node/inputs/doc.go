// Package inputs runs the input bindings of a node and delivers their events to the applications. It decides which
// application gets the events of a binding, and when the delivery begins and ends. Package api delivers each event. The
// package owns both decisions.
//
// Every binding whose events an application receives has a goroutine that starts the binding. It ends when the binding
// has started or the application does not want the events, and at the latest when Update or Close ends the delivery.
package inputs

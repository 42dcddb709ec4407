// Package inputs runs the input bindings of a node and delivers their events to the applications. The package owns two
// decisions: which application gets the events of a binding, and when the delivery begins and ends. Package api
// delivers each event.
//
// Every binding whose events an application receives has a goroutine that starts the binding. The goroutine ends when
// the binding has started, or when the application does not want the events. It ends at the latest when Update or Close
// ends the delivery.
package inputs

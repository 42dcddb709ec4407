// Package inputs runs the input bindings of a node and delivers their events to the applications.
//
// The package decides which application gets the events of a binding, and when this delivery ends. Package api delivers
// the single events.
//
// Goroutines: one for each binding whose events an application receives. The goroutine ends when the binding has
// started, or when the application does not want its events. Otherwise Update or Close ends the goroutine.
package inputs

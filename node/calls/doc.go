// Package calls transports the calls of applications, both to the applications of this node and to other nodes.
//
// It owns the channels to the applications of this node, the client and the server of calls between nodes, the
// traces of calls, and the rules for calls in Configuration and Resiliency documents. Package api makes each call
// and decides whether it is retried; the catalogue of applications chooses the instance.
//
// Goroutines: those of the channels and of the server. Close and CloseServer end them.
package calls

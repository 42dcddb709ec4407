// Package calls carries service invocation: calls to the applications of this node, and calls to applications on
// other nodes.
//
// It owns the channels to the applications of this node, the client and the server of calls between nodes, and the
// traces of calls. It also owns the rules for calls in Configuration and Resiliency documents. Package api/invoke
// makes each call and decides whether it is retried. Package discovery chooses the instance of the application.
//
// Goroutines: the channels and the server have goroutines. Close and CloseServer end them.
package calls

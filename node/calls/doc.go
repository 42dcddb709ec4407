// Package calls carries service invocation: calls to the applications of this node, and calls to applications on other
// nodes.
//
// It owns the channels to the applications of this node, the client and the server for calls between nodes, and the
// spans of calls. It also reads the rules for calls from Configuration and Resiliency documents. Package api/invoke
// makes each call and decides whether to retry it. Package discovery chooses the instance of the application.
//
// Goroutines: the channels and the server start goroutines. Close ends those of the channels, and CloseServer ends
// those of the server.
package calls

// Package httpserver listens and serves one HTTP handler. It owns the listener, the bounds of its connections, and the
// end of requests when it closes.
//
// A Server starts one goroutine that accepts connections, and net/http starts one for each connection. Close waits for
// all of them.
package httpserver

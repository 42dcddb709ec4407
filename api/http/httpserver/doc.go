// Package httpserver serves one HTTP handler on one listener. It owns the listener, the limits of its connections,
// and the graceful shutdown.
//
// A Server starts one goroutine that accepts connections, and net/http starts one for each connection. Close waits for
// all of them.
package httpserver

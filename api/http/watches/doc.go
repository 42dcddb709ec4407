// Package watches sends the changes of watches to clients of the HTTP API.
//
// It owns the format of the events. It also owns the connections that it takes over from net/http: an idle watch on
// such a connection needs no goroutine and no buffer. Requests are decoded in package api/http.
package watches

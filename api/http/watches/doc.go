// Package watches sends the events of watches to clients of the HTTP API.
//
// It owns the format of the events, and the connections that it takes over from net/http. An idle watch on such a
// connection needs no goroutine and no buffer. Package api/http decodes the requests.
package watches

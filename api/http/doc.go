// Package http serves the API over HTTP. It contains a chi router over the services of package api, and the server
// that listens.
//
// It owns paths, headers, bodies and statuses; routes.go lists every endpoint. A handler decodes the request, calls
// one service, and encodes the answer. The package does not depend on a particular store.
//
// A Face is the handler of one application's API. It starts no goroutines. A Server starts one goroutine that accepts
// connections, and net/http starts one for each connection. Close waits for all of them.
package http

// Package http serves the API over HTTP. It is a chi router over the services of package api.
//
// The package owns paths, headers, bodies and statuses. routes.go lists the blocks of the API. A block has its routes
// and their handlers. A handler decodes the request, calls one service, and encodes the answer. The package does not
// depend on a particular store.
//
// A Face is the http.Handler for the API of one application. It starts no goroutines. Package httpserver listens for
// connections.
package http

// Package http serves the API over HTTP: a chi router over the services of package api.
//
// It owns paths, headers, bodies and statuses. routes.go lists the blocks of the API. A block has its routes and their
// handlers. A handler decodes the request, calls one service, and encodes the answer. The package does not depend on a
// particular store.
//
// A Face is the handler of one application's API. It starts no goroutines. Package httpserver listens.
package http

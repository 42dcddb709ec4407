// Package http is the HTTP face of the API: a chi router over the services of package
// api, and the server that listens.
//
// It owns paths, headers, bodies and statuses; routes.go holds every endpoint. Handlers
// only translate: decode, one service call, encode. It must never know how a service
// does its work, nor a particular store. A Face starts no goroutines; a Server starts one
// that accepts, and net/http's own for connections; Close waits for them.
package http

// Package api is the service layer: what the runtime offers to an application, free of
// any protocol. It validates and bounds requests, turns an application's keys into
// stored keys and back, and gives every failure its public error code.
//
// It owns the public error codes and the limits of requests. It must never know HTTP or
// gRPC, nor a particular store: it sees the contracts in component/state and asks its
// caller for the rest through small interfaces. Services are immutable or guard
// themselves and are safe for concurrent use. The only goroutines are those that read a
// bulk from a store without that ability; they end before BulkGet returns.
package api

// App is the application a service acts for. Every application has its own services and
// its own listener: the listener is its identity.
type App struct {
	ID        string // as state.ValidateAppID allows
	Namespace string // empty = none
}

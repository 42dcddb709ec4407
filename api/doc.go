// Package api is the service layer: the building blocks that an application can use, independent of the protocol. It
// validates and bounds requests, translates between the keys of an application and stored keys, and gives every
// failure its public error code.
//
// It owns the public error codes and the limits of requests. It does not depend on HTTP, on gRPC or on a particular
// store: it uses the contracts in component/state, and small interfaces for everything else. All services are safe
// for concurrent use. The only goroutines read the keys of a bulk read, if the store has no bulk reads; they end
// before BulkGet returns.
package api

import "github.com/quorate/quorate/discovery"

// App is the application that a service acts for. Every application has its own services and its own listener, which
// identifies it.
type App = discovery.App

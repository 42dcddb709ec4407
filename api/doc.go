// Package api is the service layer: the building blocks that an application can use, independent of the protocol. It
// validates and bounds requests, translates between the keys of an application and stored keys, and maps every failure
// to a public error code.
//
// It owns the public error codes and the limits of requests. It does not depend on HTTP, on gRPC or on a particular
// store. It uses the interfaces of component/state and small interfaces of its own. All services are safe for
// concurrent use. Its only goroutines are those of a bulk read from a store without bulk reads; they end before
// BulkGet returns.
package api

import "github.com/quorate/quorate/discovery"

// App is the application on whose behalf a service acts. Every application has its own services and its own listener.
// The node identifies the application by the listener that a request arrives on.
type App = discovery.App

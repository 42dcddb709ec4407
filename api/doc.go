// Package api is the service layer: the building blocks that an application can use, independent of the protocol. It
// validates and bounds requests, translates between the keys of an application and stored keys, and maps every failure
// to a public error code.
//
// It owns the public error codes and the limits of requests. It does not depend on HTTP, on gRPC or on a particular
// store. It uses the interfaces of component/state and small interfaces of its own. All services are safe for
// concurrent use. If a store cannot read several keys in one request, BulkGet reads them one by one in several
// goroutines, which end before BulkGet returns. Inputs.Run starts each input binding in a goroutine, and returns after
// these goroutines have ended.
package api

import "github.com/quorate/quorate/discovery"

// App is the application on whose behalf a service acts. Every application has its own services and its own listener.
// The listener of a request identifies the application that sent it.
type App = discovery.App

// Package api is the service layer. It has a service for each building block that an application can use, for example
// State, Secrets and Locks. A service validates and limits requests. It converts between the keys of an application and
// stored keys, and it maps every failure to a public error code.
//
// The package defines the public error codes and the limits of requests. It does not depend on a protocol such as gRPC
// or on a particular store. It uses the interfaces of component/state and small interfaces of its own.
//
// All services are safe for concurrent use. Two functions start goroutines. They return only after these goroutines
// have ended:
//
//   - BulkGet reads keys concurrently if the store cannot read several keys in one request.
//   - Inputs.Run starts the input bindings concurrently.
package api

import "github.com/quorate/quorate/discovery"

// App identifies the application for which a service acts. Every application has its own services and its own listener.
// Therefore the listener that receives a request identifies the application that sent it.
type App = discovery.App

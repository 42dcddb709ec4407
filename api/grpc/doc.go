// Package grpc serves the API over gRPC. It serves the Dapr service dapr.proto.runtime.v1.Dapr, which the Dapr SDKs
// for Go, Python, Java and .NET call, and the service TaskHubSidecarService of the workflow SDKs. It also serves the
// services of quorate.runtime.v1, and the standard services for health checks and reflection.
//
// The package owns the translation between protobuf messages and the types of package api, and the gRPC codes of
// public errors. methods.go lists the building blocks. A handler decodes the message, calls one service of package
// api, and encodes the result. The package does not depend on a store or on Raft. Methods that Quorate does not offer
// fail with Unimplemented. Each call runs in a goroutine of grpc-go. A Server also has one goroutine for each
// listener, and each stream of actors or messages has one or two. Close waits for them.
package grpc

// Package grpc serves the API over gRPC. The package owns the translation between protobuf messages and the types of
// package api, and the gRPC codes of public errors. It serves these services:
//
//   - dapr.proto.runtime.v1.Dapr, for the Dapr SDKs for Go, Python, Java and .NET
//   - TaskHubSidecarService, for the workflow SDKs
//   - the services of quorate.runtime.v1
//   - the standard services for health checks and reflection
//
// A handler decodes the message, calls one service of package api, and encodes the result. methods.go lists the
// building blocks. The package does not depend on a store or on Raft. Methods that Quorate does not offer fail with
// Unimplemented.
//
// Each call runs in a goroutine of grpc-go. A Server has one more goroutine for each listener, and one or two for each
// stream of actors or messages. Close waits for them.
package grpc

// Package grpc serves the API over gRPC: the Dapr service dapr.proto.runtime.v1.Dapr, which the Dapr SDKs for Go,
// Python, Java and .NET call, and the standard services for health checks and reflection.
//
// It owns the translation between messages and services, and from public errors to gRPC codes. A handler decodes,
// calls one service, and encodes. The package does not depend on a store or on raft. Methods that Quorate does not
// offer fail with Unimplemented. All goroutines belong to grpc-go; Close waits for them.
package grpc

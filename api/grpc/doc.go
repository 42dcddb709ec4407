// Package grpc serves the API over gRPC. It serves the Dapr service dapr.proto.runtime.v1.Dapr, which the Dapr SDKs
// for Go, Python, Java and .NET call, and the standard services for health checks and reflection.
//
// It owns the translation between protobuf messages and package api, and from public errors to gRPC codes. methods.go
// lists the building blocks. A handler decodes the message, calls one service of package api, and encodes the result.
// The package does not depend on a store or on raft. Methods that Quorate does not offer fail with Unimplemented. All
// goroutines belong to grpc-go. Close waits for them.
package grpc

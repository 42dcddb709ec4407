// Package grpc is the gRPC face of the service layer: the published service
// dapr.proto.runtime.v1.Dapr, which the SDKs for Go, Python, Java and .NET call, with
// health checks and reflection beside it.
//
// It owns the translation between messages and services, and from public errors to gRPC
// codes. A handler decodes, calls one service, encodes. It must never know a store or
// raft. What this runtime does not offer answers Unimplemented and says so. Goroutines
// are those of the gRPC library; Close waits for them.
package grpc

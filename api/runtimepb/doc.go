// Package runtimepb has the messages and services of quorate.runtime.v1, the gRPC API for features of Quorate that Dapr
// does not have.
//
// It owns runtime.proto. The other files are generated with protoc, protoc-gen-go and protoc-gen-go-grpc:
//
//	M=module=github.com/quorate/quorate/api/runtimepb
//	protoc -Iquorate/runtime/v1=. --go_out=. --go_opt=$M --go-grpc_out=. --go-grpc_opt=$M \
//	  quorate/runtime/v1/runtime.proto
package runtimepb

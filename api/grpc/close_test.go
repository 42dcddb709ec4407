package grpc_test

import (
	"context"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	apigrpc "github.com/quorate/quorate/api/grpc"
)

// A stream without its first message, and a stream for reflection, do not delay the stop of a node.
func TestClose_EndsStreamsWithoutWork(t *testing.T) {
	for name, method := range map[string]string{
		"messages":      "/dapr.proto.runtime.v1.Dapr/SubscribeTopicEventsAlpha1",
		"configuration": "/dapr.proto.runtime.v1.Dapr/SubscribeConfiguration",
		"watch":         "/quorate.runtime.v1.State/Watch",
		"reflection":    grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			server, err := apigrpc.New(f.config)
			must(t, err)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			server.Serve(l)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			conn := dial(t, l.Addr().String())
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
			must(t, err)
			if name == "reflection" {
				must(t, stream.SendMsg(&grpc_reflection_v1.ServerReflectionRequest{
					MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}))
				must(t, stream.RecvMsg(&grpc_reflection_v1.ServerReflectionResponse{}))
			}
			eventually(t, "the call is under way", func() bool {
				return f.metric(t, "quorate_grpc_requests_in_flight") == 1
			})
			must(t, server.Close(ctx)) // with an error, it would have waited until ctx ended
			if err := stream.RecvMsg(&grpc_reflection_v1.ServerReflectionResponse{}); status.Code(err) !=
				codes.Unavailable {
				t.Errorf("the stream ended with %v", err)
			}
		})
	}
}

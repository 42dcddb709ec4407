package grpc

import (
	"context"
	"net/http"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc/metadata"

	"github.com/quorate/quorate/api"
)

// startSpan starts the span of a call about state, secrets, actors, jobs or configuration. The span is nil for other
// calls, or if spans are not exported. request is the message of a unary call, and nil for a stream. If the call
// invokes an actor, the returned context has the new traceparent, so that the actor continues the trace.
func (s *Server) startSpan(ctx context.Context, method string, request any) (context.Context, api.RequestSpan) {
	if s.tracer == nil || !s.tracer.Exports() {
		return ctx, nil
	}
	system, _ := api.GroupOf(methodName(method))
	switch system {
	case "state", "secrets", "actors", "jobs", "configuration":
	default:
		return ctx, nil
	}
	h := http.Header{}
	if parent := parentOf(ctx); parent != "" {
		h["Traceparent"] = []string{parent}
	}
	span := s.tracer.StartRequest(ctx, h, method)
	if span == nil {
		return ctx, nil
	}
	span.Set(api.SpanProtocol, "grpc", api.SpanAPI, method)
	if r, ok := request.(interface{ GetStoreName() string }); ok && system != "configuration" {
		span.Set(append(api.StoreAttributes(system, r.GetStoreName(), method), api.SpanService, "Dapr")...)
	}
	if r, ok := request.(interface {
		GetActorType() string
		GetActorId() string
	}); ok {
		span.Set(api.SpanActor, r.GetActorType()+"."+r.GetActorId())
	}
	if method == runtimev1.Dapr_InvokeActor_FullMethodName {
		span.Inject(h)
		md, _ := metadata.FromIncomingContext(ctx)
		md = md.Copy()
		delete(md, keyTraceBinary)
		md[keyTraceparent] = h["Traceparent"]
		ctx = metadata.NewIncomingContext(ctx, md)
	}
	return ctx, span
}

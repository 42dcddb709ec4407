package grpc

import (
	"context"
	"net/http"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
)

// pubsubMethods serves publishing, and the streams that receive messages of topics.
type pubsubMethods struct {
	*core
	topics     *pubsub.Service
	subscriber *pubsub.Subscriber // subscribes the application to topics
}

// traceHeader returns the trace context of a call as HTTP headers.
func traceHeader(ctx context.Context) http.Header {
	out := http.Header{}
	if v := parentOf(ctx); v != "" {
		out["Traceparent"] = []string{v}
	}
	if v := first(ctx, "tracestate"); v != "" {
		out["Tracestate"] = []string{v}
	}
	return out
}

// PublishEvent publishes one message.
func (s *pubsubMethods) PublishEvent(ctx context.Context, in *runtimev1.PublishEventRequest) (*emptypb.Empty, error) {
	err := s.topics.Publish(ctx, &pubsub.PublishRequest{PubSub: in.GetPubsubName(), Topic: in.GetTopic(),
		Payload: pubsub.Payload{Data: in.GetData(), ContentType: in.GetDataContentType(), Metadata: in.GetMetadata()},
		Trace:   traceHeader(ctx), TraceRaw: true})
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, nil
}

// BulkPublishEvent publishes several messages.
func (s *pubsubMethods) BulkPublishEvent(ctx context.Context,
	in *runtimev1.BulkPublishRequest) (*runtimev1.BulkPublishResponse, error) {
	request := &pubsub.BulkRequest{PubSub: in.GetPubsubName(), Topic: in.GetTopic(), Metadata: in.GetMetadata(),
		Trace: traceHeader(ctx)}
	err := s.topics.PublishBulk(ctx, request, func() ([]pubsub.Entry, *api.Error) {
		out := make([]pubsub.Entry, len(in.GetEntries()))
		for i, e := range in.GetEntries() {
			out[i] = pubsub.Entry{ID: e.GetEntryId(), Payload: pubsub.Payload{Data: e.GetEvent(),
				ContentType: e.GetContentType(), Metadata: e.GetMetadata()}}
		}
		return out, nil
	})
	if err != nil {
		return nil, err
	}
	return &runtimev1.BulkPublishResponse{}, nil
}

// BulkPublishEventAlpha1 is BulkPublishEvent under its older name.
func (s *pubsubMethods) BulkPublishEventAlpha1(ctx context.Context,
	in *runtimev1.BulkPublishRequest) (*runtimev1.BulkPublishResponse, error) {
	return s.BulkPublishEvent(ctx, in)
}

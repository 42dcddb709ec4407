package grpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
)

// fullStream is a stream whose client reads nothing.
type fullStream struct {
	runtimev1.Dapr_SubscribeTopicEventsAlpha1Server
	ended context.Context
}

// Send implements the stream of gRPC, whose Send returns only when the stream has ended.
func (f fullStream) Send(*runtimev1.SubscribeTopicEventsResponseAlpha1) error {
	<-f.ended.Done()
	return context.Cause(f.ended)
}

// If the client reads nothing, the stream ends, so that neither its messages nor the stop of the node wait for it.
func TestTopicStream_EndsIfClientDoesNotRead(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	var running sync.WaitGroup
	s := &topicStream{out: fullStream{ended: ctx}, end: end, running: &running,
		waiting: map[string][]chan pubsub.Verdict{}}
	attempt, over := context.WithCancel(ctx)
	over()
	if _, err := s.Deliver(attempt, &pubsub.Event{ID: "1"}); err == nil {
		t.Error("the message was delivered")
	}
	running.Wait()
	if e := api.AsError(context.Cause(ctx)); e.Kind != api.Unavailable || e.Message == "" {
		t.Errorf("the stream ends with %v", context.Cause(ctx))
	}
}

// scriptedStream is a stream whose client sends the messages of a list.
type scriptedStream struct {
	runtimev1.Dapr_SubscribeTopicEventsAlpha1Server
	sent []*runtimev1.SubscribeTopicEventsRequestAlpha1
}

// Recv implements the stream of gRPC.
func (s *scriptedStream) Recv() (*runtimev1.SubscribeTopicEventsRequestAlpha1, error) {
	if len(s.sent) == 0 {
		return nil, io.EOF
	}
	m := s.sent[0]
	s.sent = s.sent[1:]
	return m, nil
}

// A message of a kind that this version does not know is not an answer, not even to an event with an empty id.
func TestTopicStream_UnknownMessageIsNoAnswer(t *testing.T) {
	answer := make(chan pubsub.Verdict, 1)
	s := &topicStream{out: &scriptedStream{sent: []*runtimev1.SubscribeTopicEventsRequestAlpha1{{}}},
		waiting: map[string][]chan pubsub.Verdict{"": {answer}}}
	if err := s.receive(); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	select {
	case v := <-answer:
		t.Errorf("the event has the verdict %s", v)
	default:
	}
}

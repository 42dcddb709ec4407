package grpc

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/internal/fault"
)

// streamPath is the path of the messages that are delivered over a stream, as in Dapr.
const streamPath = "/"

// topicStream delivers the messages of a topic to a client over a stream. It implements pubsub.Target.
type topicStream struct {
	out     runtimev1.Dapr_SubscribeTopicEventsAlpha1Server
	end     context.CancelCauseFunc // ends the stream
	running *sync.WaitGroup

	sending sync.Mutex // for out.Send

	mu      sync.Mutex
	waiting map[string][]chan pubsub.Verdict // capacity 1; by the id of the event, in sending order
}

// SubscribeTopicEventsAlpha1 delivers the messages of a topic over a stream that the application opens. The stream is a
// member of the consumer group of the application, like its other subscriptions. Several messages may wait for their
// answers. When the stream ends, the messages without an answer are delivered again.
func (s *pubsubMethods) SubscribeTopicEventsAlpha1(out runtimev1.Dapr_SubscribeTopicEventsAlpha1Server) error {
	first, err := out.Recv()
	if err != nil {
		return err
	}
	in := first.GetInitialRequest()
	switch {
	case in == nil:
		return api.MalformedRequest("initial request is required")
	case in.GetPubsubName() == "":
		return api.MalformedRequest("pubsubName is required")
	case in.GetTopic() == "":
		return api.MalformedRequest("topic is required")
	}
	ctx, cancel := context.WithCancelCause(out.Context())
	defer cancel(nil)
	t := &topicStream{out: out, end: cancel, running: &s.running, waiting: map[string][]chan pubsub.Verdict{}}
	s.running.Go(func() { cancel(t.receive()) }) // ends with the stream
	err = s.subscriber.Stream(ctx, pubsub.Definition{PubSub: in.GetPubsubName(), Topic: in.GetTopic(),
		Metadata: in.GetMetadata(), DeadLetter: in.GetDeadLetterTopic(), Default: streamPath}, t, func() error {
		return t.send(ctx, &runtimev1.SubscribeTopicEventsResponseAlpha1{
			SubscribeTopicEventsResponseType: &runtimev1.SubscribeTopicEventsResponseAlpha1_InitialResponse{
				InitialResponse: &runtimev1.SubscribeTopicEventsResponseInitialAlpha1{}}})
	})
	switch cause := context.Cause(ctx); {
	case err != nil:
		return err
	case cause == nil:
		return &api.Error{Kind: api.Unavailable, Code: api.CodeInternal, Message: "the node is stopping",
			Details: api.Details{Reason: api.ReasonClosing}}
	case errors.Is(cause, io.EOF):
		return nil // the client has closed its side
	default:
		return cause
	}
}

// receive reads the answers of the client, and passes each answer to the delivery that waits for it. It runs until the
// stream ends, and returns the reason for the end.
func (t *topicStream) receive() error {
	for {
		m, err := t.out.Recv()
		if err != nil {
			return err
		}
		if m.GetInitialRequest() != nil {
			return api.MalformedRequest("duplicate initial request received")
		}
		answer := m.GetEventProcessed()
		if answer == nil {
			continue // a kind of message that this version does not know
		}
		t.mu.Lock()
		list := t.waiting[answer.GetId()]
		if len(list) > 0 { // an answer to an event that is not waiting is ignored
			list[0] <- streamVerdict(answer.GetStatus().GetStatus())
			t.setLocked(answer.GetId(), list[1:])
		}
		t.mu.Unlock()
	}
}

func streamVerdict(s runtimev1.TopicEventResponse_TopicEventResponseStatus) pubsub.Verdict {
	switch s {
	case runtimev1.TopicEventResponse_SUCCESS:
		return pubsub.Success
	case runtimev1.TopicEventResponse_DROP:
		return pubsub.Drop
	}
	return pubsub.Retry
}

// setLocked replaces the list of deliveries that wait for an answer to the event with the given id. Each delivery is
// represented by its channel. The caller must hold t.mu.
func (t *topicStream) setLocked(id string, list []chan pubsub.Verdict) {
	if len(list) == 0 {
		delete(t.waiting, id)
		return
	}
	t.waiting[id] = list
}

// send sends a message to the client. If the client does not accept the message before ctx ends, send ends the stream,
// because the message would block all further messages and the shutdown of the node.
func (t *topicStream) send(ctx context.Context, m *runtimev1.SubscribeTopicEventsResponseAlpha1) error {
	sent := make(chan error, 1)
	t.running.Go(func() { // ends with the stream
		t.sending.Lock()
		defer t.sending.Unlock()
		sent <- t.out.Send(m)
	})
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		select {
		case err := <-sent:
			return err
		default:
		}
		t.end(&api.Error{Kind: api.Unavailable, Code: api.CodeInternal, Details: api.Details{Reason: api.ReasonTimeout},
			Message: "the client does not read the messages of its stream"})
		return context.Cause(ctx)
	}
}

// Ready implements pubsub.Target.
func (t *topicStream) Ready() bool { return true }

// Deliver implements pubsub.Target.
func (t *topicStream) Deliver(ctx context.Context, e *pubsub.Event) (pubsub.Verdict, error) {
	answer := make(chan pubsub.Verdict, 1)
	t.mu.Lock()
	t.waiting[e.ID] = append(t.waiting[e.ID], answer)
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.setLocked(e.ID, slices.DeleteFunc(t.waiting[e.ID], func(c chan pubsub.Verdict) bool { return c == answer }))
	}()
	err := t.send(ctx, &runtimev1.SubscribeTopicEventsResponseAlpha1{
		SubscribeTopicEventsResponseType: &runtimev1.SubscribeTopicEventsResponseAlpha1_EventMessage{
			EventMessage: streamed(e)}})
	if err != nil {
		return pubsub.Retry, fault.Wrap(err, "grpc.topics", "sending a message over the stream of the application")
	}
	e.Sent()
	select {
	case v := <-answer:
		return v, nil
	case <-ctx.Done():
		return pubsub.Retry, &fault.Error{Code: fault.Indeterminate, Op: "grpc.topics", Err: context.Cause(ctx),
			Msg: "the application did not answer a message of its stream in time"}
	}
}

// extensionAck is the CloudEvent extension that carries the token of the delivery. It is used only in streams, because
// their messages have no metadata. If the publisher has set this extension, the node removes it.
const extensionAck = "quorateack"

func streamed(e *pubsub.Event) *runtimev1.TopicEventRequest {
	out := e.Proto()
	delete(out.GetExtensions().GetFields(), extensionAck)
	if e.Token != "" {
		if out.Extensions == nil {
			out.Extensions = &structpb.Struct{}
		}
		if out.Extensions.Fields == nil {
			out.Extensions.Fields = map[string]*structpb.Value{}
		}
		out.Extensions.Fields[extensionAck] = structpb.NewStringValue(e.Token)
	}
	return out
}

// DeliverBatch implements pubsub.Target. It always returns an error, because a stream takes one message at a time.
func (t *topicStream) DeliverBatch(context.Context, *pubsub.Batch) (map[string]pubsub.Verdict, error) {
	return nil, fault.New(fault.Internal, "grpc.topics", "a stream takes one message at a time")
}

// Retryable implements pubsub.Target.
func (t *topicStream) Retryable(*resiliency.Policy, error) bool { return true }

package node_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	sdk "github.com/dapr/go-sdk/client"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node"
)

// topicReader is the client of a stream of messages.
type topicReader struct {
	t   *testing.T
	out runtimev1.Dapr_SubscribeTopicEventsAlpha1Client
}

// newTopicReader opens a stream and sends the requests in first.
func newTopicReader(t *testing.T, n *node.Node, first ...*runtimev1.SubscribeTopicEventsRequestAlpha1) *topicReader {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	t.Cleanup(cancel)
	out, err := runtimev1.NewDaprClient(connect(t, n.Addresses().GRPC[0])).SubscribeTopicEventsAlpha1(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range first {
		if err := out.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	return &topicReader{t, out}
}

func topicRequest(broker, topic, deadLetter string) *runtimev1.SubscribeTopicEventsRequestAlpha1 {
	in := &runtimev1.SubscribeTopicEventsRequestInitialAlpha1{PubsubName: broker, Topic: topic}
	if deadLetter != "" {
		in.DeadLetterTopic = &deadLetter
	}
	return &runtimev1.SubscribeTopicEventsRequestAlpha1{
		SubscribeTopicEventsRequestType: &runtimev1.SubscribeTopicEventsRequestAlpha1_InitialRequest{
			InitialRequest: in}}
}

// next returns the next message, or nil for the answer to the first request.
func (r *topicReader) next() *runtimev1.TopicEventRequest {
	r.t.Helper()
	m, err := r.out.Recv()
	if err != nil {
		r.t.Fatal(err)
	}
	return m.GetEventMessage()
}

func (r *topicReader) answer(id string, status runtimev1.TopicEventResponse_TopicEventResponseStatus) {
	r.t.Helper()
	err := r.out.Send(&runtimev1.SubscribeTopicEventsRequestAlpha1{
		SubscribeTopicEventsRequestType: &runtimev1.SubscribeTopicEventsRequestAlpha1_EventProcessed{
			EventProcessed: &runtimev1.SubscribeTopicEventsRequestProcessedAlpha1{Id: id,
				Status: &runtimev1.TopicEventResponse{Status: status}}}})
	if err != nil {
		r.t.Fatal(err)
	}
}

func publishTo(t *testing.T, n *node.Node, topic string, data ...string) {
	t.Helper()
	for _, d := range data {
		err := dialSDK(t, n).PublishEvent(t.Context(), "pubsub", topic, []byte(d))
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestTopicStream_DeliversInOrderAndTakesAnswers(t *testing.T) {
	n := open(t, config(t))
	r := newTopicReader(t, n, topicRequest("pubsub", "orders", "dead"))
	if m := r.next(); m != nil {
		t.Fatalf("the first message of the stream is %v", m)
	}
	want := []string{"0", "1", "2", "3", "4", "5", "6", "7"}
	publishTo(t, n, "orders", want...)
	var got, ids []string
	for range want { // no message is answered yet
		m := r.next()
		got, ids = append(got, string(m.GetData())), append(ids, m.GetId())
		if m.GetPath() != "/" || m.GetTopic() != "orders" || m.GetPubsubName() != "pubsub" {
			t.Errorf("message %v", m)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("received %q", got)
	}
	r.answer("an id that no message has", runtimev1.TopicEventResponse_SUCCESS)
	for _, id := range ids[1:] {
		r.answer(id, runtimev1.TopicEventResponse_SUCCESS)
	}
	r.answer(ids[0], runtimev1.TopicEventResponse_DROP)
	dead := newTopicReader(t, n, topicRequest("pubsub", "dead", ""))
	if m := dead.next(); m != nil {
		t.Fatalf("the first message of the stream is %v", m)
	}
	if m := dead.next(); string(m.GetData()) != "0" {
		t.Errorf("the dead-letter topic has %v", m)
	}
}

// Messages without an answer come again when the stream has ended.
func TestTopicStream_DeliversAgainAfterItsEnd(t *testing.T) {
	n := open(t, config(t))
	first := newTopicReader(t, n, topicRequest("pubsub", "orders", ""))
	first.next()
	publishTo(t, n, "orders", "a")
	if m := first.next(); string(m.GetData()) != "a" {
		t.Fatal(m)
	}
	if err := first.out.CloseSend(); err != nil {
		t.Fatal(err)
	}
	second := newTopicReader(t, n, topicRequest("pubsub", "orders", ""))
	second.next()
	m := second.next()
	if string(m.GetData()) != "a" {
		t.Errorf("received %v", m)
	}
	second.answer(m.GetId(), runtimev1.TopicEventResponse_SUCCESS)
}

func TestTopicStream_RefusesWrongRequests(t *testing.T) {
	n := open(t, config(t))
	for text, c := range map[string]struct {
		first []*runtimev1.SubscribeTopicEventsRequestAlpha1
		code  codes.Code
	}{
		"initial request is required": {[]*runtimev1.SubscribeTopicEventsRequestAlpha1{{}}, codes.InvalidArgument},
		"pubsubName is required": {[]*runtimev1.SubscribeTopicEventsRequestAlpha1{topicRequest("", "t", "")},
			codes.InvalidArgument},
		"topic is required": {[]*runtimev1.SubscribeTopicEventsRequestAlpha1{topicRequest("pubsub", "", "")},
			codes.InvalidArgument},
		"pubsub absent is not found": {[]*runtimev1.SubscribeTopicEventsRequestAlpha1{topicRequest("absent", "t", "")},
			codes.InvalidArgument},
		"duplicate initial request received": {[]*runtimev1.SubscribeTopicEventsRequestAlpha1{
			topicRequest("pubsub", "t", ""), topicRequest("pubsub", "t", "")}, codes.InvalidArgument},
	} {
		r := newTopicReader(t, n, c.first...)
		var err error
		for err == nil {
			_, err = r.out.Recv()
		}
		if s := grpcstatus.Convert(err); s.Code() != c.code || !strings.Contains(s.Message(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The client of Dapr's Go SDK receives messages over a stream.
func TestTopicStream_ServesSDK(t *testing.T) {
	n := open(t, config(t))
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	s, err := dialSDK(t, n).Subscribe(ctx, sdk.SubscriptionOptions{PubsubName: "pubsub", Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range 3 {
		publishTo(t, n, "orders", fmt.Sprint(i))
		m, err := s.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if string(m.RawData) != fmt.Sprint(i) {
			t.Errorf("received %q", m.RawData)
		}
		if err := m.Success(); err != nil {
			t.Fatal(err)
		}
	}
}

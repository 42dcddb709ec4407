package node_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/quorate/quorate/node"
)

// topicApp is a gRPC application with subscriptions. It reports the messages that it gets, and answers with the status
// that their data names.
type topicApp struct {
	runtimev1.UnimplementedAppCallbackServer
	subs []*runtimev1.TopicSubscription
	got  chan string

	mu   sync.Mutex
	seen map[string]int
}

func (a *topicApp) ListTopicSubscriptions(context.Context, *emptypb.Empty) (*runtimev1.ListTopicSubscriptionsResponse,
	error) {
	return &runtimev1.ListTopicSubscriptionsResponse{Subscriptions: a.subs}, nil
}

// times counts the deliveries of a message.
func (a *topicApp) times(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen == nil {
		a.seen = map[string]int{}
	}
	a.seen[id]++
	return a.seen[id]
}

func (a *topicApp) OnTopicEvent(ctx context.Context, in *runtimev1.TopicEventRequest) (*runtimev1.TopicEventResponse,
	error) {
	md, _ := metadata.FromIncomingContext(ctx)
	a.got <- strings.Join([]string{in.GetPubsubName(), in.GetTopic(), in.GetPath(), string(in.GetData()),
		in.GetDataContentType(), in.GetExtensions().GetFields()["topic"].GetStringValue(),
		strings.Join(md["color"], "")}, " ")
	out := &runtimev1.TopicEventResponse{}
	if in.GetTopic() == "dead" {
		return out, nil
	}
	switch data := string(in.GetData()); {
	case data == "drop":
		out.Status = runtimev1.TopicEventResponse_DROP
	case data == "fail":
		return nil, grpcstatus.Error(codes.Internal, "no")
	case data == "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	case data == "retry", data == "again" && a.times(in.GetId()) == 1:
		out.Status = runtimev1.TopicEventResponse_RETRY
	}
	return out, nil
}

// bulkApp also takes several messages at once. It answers for the first of them only.
type bulkApp struct{ *topicApp }

func (a bulkApp) OnBulkTopicEvent(_ context.Context, in *runtimev1.TopicEventBulkRequest) (
	*runtimev1.TopicEventBulkResponse, error) {
	return a.take(in), nil
}

// alphaApp takes several messages at once with the older name of the method.
type alphaApp struct {
	runtimev1.UnimplementedAppCallbackAlphaServer
	bulk bulkApp
}

func (a alphaApp) OnBulkTopicEventAlpha1(_ context.Context, in *runtimev1.TopicEventBulkRequest) (
	*runtimev1.TopicEventBulkResponse, error) {
	return a.bulk.take(in), nil
}

func (a bulkApp) take(in *runtimev1.TopicEventBulkRequest) *runtimev1.TopicEventBulkResponse {
	for _, e := range in.GetEntries() {
		a.got <- strings.Join([]string{in.GetTopic(), in.GetPath(), string(e.GetCloudEvent().GetData()),
			e.GetMetadata()["color"]}, " ")
	}
	return &runtimev1.TopicEventBulkResponse{Statuses: []*runtimev1.TopicEventBulkResponseEntry{
		{EntryId: in.GetEntries()[0].GetEntryId()}, {EntryId: "unknown"}}}
}

// onTopics starts a gRPC application, and a node beside it with Resiliency policies.
func onTopics(t *testing.T, policies string, register func(*grpc.Server)) *node.Node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	register(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Stop()
		<-done
	})
	c := config(t)
	c.App.ID, c.App.Port, c.App.Protocol = "app", l.Addr().(*net.TCPAddr).Port, node.ProtocolGRPC
	if policies != "" {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, "resiliency.yaml"), []byte(policies), 0o600); err != nil {
			t.Fatal(err)
		}
		c.Components.Paths = []string{folder}
	}
	return open(t, c)
}

// publishText publishes a text over HTTP. query is the metadata.
func publishText(t *testing.T, n *node.Node, topic, query, data string) {
	t.Helper()
	answer, err := http.Post("http://"+n.Addresses().API[0]+"/v1.0/publish/pubsub/"+topic+"?"+query, "text/plain",
		strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		body, _ := io.ReadAll(answer.Body)
		t.Fatalf("publishing: %s %s", answer.Status, body)
	}
}

// wantAll waits until exactly these texts have come, in any order.
func wantAll(t *testing.T, got chan string, want ...string) {
	t.Helper()
	left := map[string]int{}
	for _, w := range want {
		left[w]++
	}
	for range want {
		select {
		case have := <-got:
			if left[have]--; left[have] < 0 {
				t.Errorf("the application got %q", have)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("of these messages, some did not come: %v", left)
		}
	}
}

func orders(deadLetter string) *runtimev1.TopicSubscription {
	return &runtimev1.TopicSubscription{PubsubName: "pubsub", Topic: "orders", DeadLetterTopic: deadLetter,
		Routes: &runtimev1.TopicRoutes{Default: "/orders", Rules: []*runtimev1.TopicRule{
			{Match: `event.type == "gold"`, Path: "/gold"}}}}
}

func TestTopicsOverGRPC_StatusesRoutesAndMetadata(t *testing.T) {
	app := &topicApp{got: make(chan string, 100), subs: []*runtimev1.TopicSubscription{orders("dead"),
		{PubsubName: "pubsub", Topic: "dead"}, {PubsubName: "pubsub", Topic: "repeated"}}}
	n := onTopics(t, "", func(s *grpc.Server) { runtimev1.RegisterAppCallbackServer(s, app) })
	publishText(t, n, "orders", "metadata.color=red", "ok")
	publishText(t, n, "orders", "metadata.cloudevent.type=gold", "ok")
	wantAll(t, app.got, "pubsub orders /orders ok text/plain orders red", "pubsub orders /gold ok text/plain orders ")
	for _, status := range []string{"drop", "fail", "retry"} { // without a policy, a dead letter at once
		publishText(t, n, "orders", "", status)
		wantAll(t, app.got, "pubsub orders /orders "+status+" text/plain orders ",
			"pubsub dead  "+status+" text/plain orders ")
	}
	publishText(t, n, "repeated", "", "again")
	wantAll(t, app.got, "pubsub repeated  again text/plain repeated ", "pubsub repeated  again text/plain repeated ")
	// Metadata that gRPC cannot carry does not keep a message from its subscriber.
	publishText(t, n, "orders", "metadata.a%2Bb=1&metadata.Caf%C3%A9=2&metadata.x-bin=%FF&metadata.color=%FF%0A", "ok")
	wantAll(t, app.got, "pubsub orders /orders ok text/plain orders ??")
	if len(app.got) > 0 {
		t.Errorf("the application also got %q", <-app.got)
	}
	_, described := askAt(t, n.Addresses().API[0], "GET", "/v1.0/metadata", "", "")
	text := `{"pubsubname":"pubsub","topic":"dead","rules":[{}],"deadLetterTopic":"","type":"PROGRAMMATIC"}`
	if !strings.Contains(described, text) {
		t.Errorf("the metadata lack %s: %s", text, described)
	}
}

// An inbound policy limits the time of a delivery, and repeats the delivery. After that, the message goes to the
// dead-letter topic.
func TestTopicsOverGRPC_PolicyOfDeliveries(t *testing.T) {
	for data, timeout := range map[string]string{"hang": "1s", "retry": "1m"} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			app := &topicApp{got: make(chan string, 100), subs: []*runtimev1.TopicSubscription{orders("dead"),
				{PubsubName: "pubsub", Topic: "dead"}}}
			n := onTopics(t, `
apiVersion: dapr.io/v1alpha1
kind: Resiliency
metadata: {name: policies}
spec:
  policies:
    timeouts: {short: `+timeout+`}
    retries: {twice: {policy: constant, duration: 10ms, maxRetries: 2}}
  targets:
    components:
      pubsub:
        inbound: {timeout: short, retry: twice}
`, func(s *grpc.Server) { runtimev1.RegisterAppCallbackServer(s, app) })
			publishText(t, n, "orders", "", data)
			one := "pubsub orders /orders " + data + " text/plain orders "
			wantAll(t, app.got, one, one, one, "pubsub dead  "+data+" text/plain orders ")
		})
	}
}

// listing is an application that only lists its subscriptions.
type listing struct {
	runtimev1.UnimplementedAppCallbackServer
	subs []*runtimev1.TopicSubscription
}

func (a listing) ListTopicSubscriptions(context.Context, *emptypb.Empty) (*runtimev1.ListTopicSubscriptionsResponse,
	error) {
	return &runtimev1.ListTopicSubscriptionsResponse{Subscriptions: a.subs}, nil
}

// An application without OnTopicEvent has no handler: the message is removed, and is no dead letter.
func TestTopicsOverGRPC_NoHandler(t *testing.T) {
	app := listing{subs: []*runtimev1.TopicSubscription{orders("dead")}}
	n := onTopics(t, "", func(s *grpc.Server) { runtimev1.RegisterAppCallbackServer(s, app) })
	publishText(t, n, "orders", "", "ok")
	deadline := time.Now().Add(30 * time.Second)
	for {
		page := scrape(t, n)
		if strings.Contains(page, `quorate_pubsub_deliveries_total{outcome="dropped",pubsub="pubsub"} 1`) {
			if strings.Contains(page, `outcome="dead_lettered",pubsub=`) {
				t.Error("it became a dead letter")
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the message was not removed")
		}
		<-time.After(20 * time.Millisecond)
	}
}

func TestTopicsOverGRPC_SeveralAtOnce(t *testing.T) {
	for name, register := range map[string]func(*grpc.Server, bulkApp){
		"stable": func(s *grpc.Server, a bulkApp) { runtimev1.RegisterAppCallbackServer(s, a) },
		"alpha": func(s *grpc.Server, a bulkApp) {
			runtimev1.RegisterAppCallbackServer(s, a.topicApp)
			runtimev1.RegisterAppCallbackAlphaServer(s, alphaApp{bulk: a})
		},
	} {
		t.Run(name, func(t *testing.T) {
			app := bulkApp{&topicApp{got: make(chan string, 100), subs: []*runtimev1.TopicSubscription{
				{PubsubName: "pubsub", Topic: "many", Routes: &runtimev1.TopicRoutes{Default: "/many"},
					BulkSubscribe: &runtimev1.BulkSubscribeConfig{Enabled: true, MaxMessagesCount: 2,
						MaxAwaitDurationMs: 30_000}}}}}
			n := onTopics(t, "", func(s *grpc.Server) { register(s, app) })
			publishText(t, n, "many", "metadata.color=%FF", "0")
			publishText(t, n, "many", "metadata.color=red", "1")
			wantAll(t, app.got, "many /many 0 \uFFFD", "many /many 1 red")
			publishText(t, n, "many", "", "2") // arrives together with message 1, which got no answer
			wantAll(t, app.got, "many /many 1 red", "many /many 2 ")
		})
	}
}

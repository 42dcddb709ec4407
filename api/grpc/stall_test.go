package grpc_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/api/runtimepb"
	"github.com/quorate/quorate/component/configuration"
)

// The watch of a client that reads nothing ends with an error after WriteStall. The client continues from its last
// position, and misses nothing.
func TestWatch_StoppedReaderIsCutAndResumes(t *testing.T) {
	const writes = 60
	f := newFixture(t)
	f.config.WriteStall = 300 * time.Millisecond
	conn := f.serve(t)
	d := runtimev1.NewDaprClient(conn)
	w := watch(t, conn, &runtimepb.WatchRequest{})
	w.want(&runtimepb.WatchEvent{Type: "bookmark"})
	for i := range writes { // more than the flow control of a call lets through
		save(t, d, fmt.Sprint("k", i), `"`+strings.Repeat("x", 32<<10)+`"`)
	}
	eventually(t, "the watch is cut", func() bool {
		return f.metric(t, "quorate_grpc_requests_total", "Canceled", "State/Watch") > 0
	})
	seen, position := 0, ""
	receive := func(w watchClient) error {
		e, err := w.Recv()
		if err != nil {
			return err
		}
		if e.GetType() == "put" {
			if want := fmt.Sprint("k", seen); e.GetKey() != want {
				t.Fatalf("got the change of %s, want %s", e.GetKey(), want)
			}
			seen, position = seen+1, e.GetPosition()
		}
		return nil
	}
	var err error
	for err == nil {
		err = receive(w)
	}
	if status.Code(err) != codes.Canceled || seen == 0 || seen == writes {
		t.Fatalf("after %d changes the watch ended with %v", seen, err)
	}
	again := watch(t, conn, &runtimepb.WatchRequest{From: position})
	for seen < writes {
		must(t, receive(again))
	}
}

// A subscriber that reads nothing for a while is not disconnected. Newer values replace those that wait, so the node
// holds at most one value of each key for the subscriber.
func TestConfiguration_SlowSubscriberGetsNewestValues(t *testing.T) {
	const writes = 3000
	f := newFixture(t)
	d := runtimev1.NewDaprClient(f.serve(t))
	writer := f.Configurations.List[0].Store.(configuration.Writer)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := d.SubscribeConfiguration(ctx, &runtimev1.SubscribeConfigurationRequest{StoreName: "items"})
	must(t, err)
	_, err = stream.Recv()
	must(t, err)
	for i := range writes {
		item := configuration.Item{Key: fmt.Sprint("k", i%3), Value: fmt.Sprintf("%d %01000d", i, 0)}
		_, err := writer.Write(ctx, configuration.WriteRequest{Changes: []configuration.Change{{Item: item}}})
		must(t, err)
	}
	newest, got := map[string]string{}, 0
	for newest["k0"] != "2997" || newest["k1"] != "2998" || newest["k2"] != "2999" {
		part, err := stream.Recv()
		must(t, err)
		for key, item := range part.GetItems() {
			number, _, _ := strings.Cut(item.GetValue(), " ")
			newest[key] = number
			got++
		}
	}
	if got > writes/2 {
		t.Errorf("%d of %d values were kept for a subscriber that took nothing", got, writes)
	}
}

// A stopped process does not answer pings, so the server closes its connection and its subscription ends. When the
// process runs again, it finds a broken connection and subscribes again.
func TestConfiguration_StoppedSubscriberIsCut(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.config.PingEvery = time.Second // grpc-go pings at most once a second
	w := knock(t, f.serve(t))
	w.settings()
	must(t, w.WriteSettingsAck())
	w.begin(1, "/dapr.proto.runtime.v1.Dapr/SubscribeConfiguration")
	message, err := proto.Marshal(&runtimev1.SubscribeConfigurationRequest{StoreName: "items"})
	must(t, err)
	must(t, w.WriteData(1, true, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)))
	w.await("the first message", func(f http2.Frame) bool {
		_, ok := f.(*http2.DataFrame)
		return ok
	})
	// The client reads nothing, so it answers no ping.
	eventually(t, "the subscription ends", func() bool {
		return f.calls(t, "SubscribeConfiguration", "DeadlineExceeded") == 1
	})
	if !w.ends() {
		t.Error("the connection stays open")
	}
}

// queued is a configuration store whose only subscription is a queue that the test fills.
type queued struct {
	configuration.Store
	queue *takenQueue
}

func (q queued) Subscribe(context.Context, configuration.SubscribeRequest) (configuration.Subscription, error) {
	return q.queue, nil
}

// takenQueue is a queue that reports when changes were taken.
type takenQueue struct {
	*configuration.Queue
	taken chan struct{} // capacity 1
}

func (q *takenQueue) Next(ctx context.Context) ([]configuration.Item, error) {
	items, err := q.Queue.Next(ctx)
	select {
	case q.taken <- struct{}{}:
	default:
	}
	return items, err
}

// subscribed returns a subscription of a client, and the queue into which the test puts changes for it. The server has
// taken more changes than it can send, because the client reads nothing yet.
func subscribed(t *testing.T, stall time.Duration) (*fixture, *configuration.Queue,
	runtimev1.Dapr_SubscribeConfigurationClient) {
	t.Helper()
	f := newFixture(t)
	f.config.WriteStall = stall
	q := configuration.NewQueue(func() {})
	taken := make(chan struct{}, 1)
	f.Configurations.List[0].Store = queued{queue: &takenQueue{q, taken}}
	// The window has a fixed size. Otherwise gRPC would enlarge it on a slow machine until all values fit.
	conn := f.serve(t, grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10))
	stream, err := runtimev1.NewDaprClient(conn).SubscribeConfiguration(t.Context(),
		&runtimev1.SubscribeConfigurationRequest{StoreName: "items"})
	must(t, err)
	_, err = stream.Recv()
	must(t, err)
	value := strings.Repeat("x", 32<<10)
	var items []configuration.Item
	for i := range 20 { // more than the flow control of a call lets through
		items = append(items, configuration.Item{Key: fmt.Sprint("k", i), Value: value, Version: "1"})
	}
	q.Put(items...)
	<-taken
	// gRPC buffers the first message although it is larger than the buffer. The next message waits for the client.
	q.Put(configuration.Item{Key: "last", Value: value, Version: "1"})
	<-taken // otherwise the overflow of deleted keys would drop this item
	return f, q, stream
}

func deleteMany(q *configuration.Queue) {
	for i := range configuration.MaxWaiting + 1 {
		q.Put(configuration.Item{Key: fmt.Sprint("gone", i)})
	}
}

// A subscriber that reads nothing, but answers pings, is disconnected when more deleted keys wait than the queue
// keeps.
func TestConfiguration_HangingSubscriberIsCut(t *testing.T) {
	f, q, _ := subscribed(t, 10*time.Millisecond)
	eventually(t, "the subscription ends", func() bool {
		deleteMany(q) // the handler may have taken some changes from the queue
		return f.calls(t, "SubscribeConfiguration", "Canceled") == 1
	})
}

// A subscriber that reads again before the stall timeout gets the error that has ended its subscription.
func TestConfiguration_SubscriberLearnsOfDroppedChanges(t *testing.T) {
	_, q, stream := subscribed(t, time.Hour)
	for q.Overflow().Err() == nil {
		deleteMany(q)
	}
	for {
		_, err := stream.Recv()
		if err == nil {
			continue
		}
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "subscribe again") {
			t.Fatal(err)
		}
		return
	}
}

package pluggable_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	components "github.com/dapr/dapr/pkg/proto/components/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/component/pluggable"
	"github.com/quorate/quorate/component/pluggable/pluggabletest"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
	"github.com/quorate/quorate/component/pubsub/pubsubtest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// openPubSub opens a broker whose process is server. change may change the options.
func openPubSub(t *testing.T, server *pluggabletest.PubSub, change func(*pluggable.Options)) (pubsub.Broker,
	*pluggabletest.Process) {
	t.Helper()
	memory := inmemory.Open(inmemory.Options{Concurrency: 20})
	t.Cleanup(func() { testutil.Must(t, memory.Close()) })
	server.Broker = memory
	folder := pluggabletest.Folder(t)
	p := pluggabletest.Start(t, folder, "queue", server.Register)
	o := options(t, folder, "pubsub.queue")
	if change != nil {
		change(&o)
	}
	b, err := pluggable.OpenPubSub(soon(t), o)
	testutil.Must(t, err)
	t.Cleanup(func() { testutil.Must(t, b.Close()) })
	return b, p
}

// logTo returns a function that makes options write their log to out.
func logTo(out *testutil.Output) func(*pluggable.Options) {
	return func(o *pluggable.Options) { o.Logger = slog.New(slog.NewTextHandler(out, nil)) }
}

func TestPubSub_Conformance(t *testing.T) {
	for _, offers := range [][]string{nil, {"BULK_PUBSUB"}} {
		t.Run(fmt.Sprint(offers), func(t *testing.T) {
			pubsubtest.Run(t, func(t *testing.T) pubsub.Broker {
				b, _ := openPubSub(t, &pluggabletest.PubSub{Offers: offers}, nil)
				return b
			})
		})
	}
}

func joinOrders(t *testing.T, b pubsub.Broker) pubsub.Subscription {
	t.Helper()
	s, err := b.Subscribe(soon(t), pubsub.SubscribeRequest{Topic: "orders", Group: "shop"})
	testutil.Must(t, err)
	return s
}

func publishOrders(t *testing.T, b pubsub.Broker, data ...string) ([]pubsub.Failure, error) {
	t.Helper()
	r := pubsub.PublishRequest{Topic: "orders"}
	for _, text := range data {
		r.Messages = append(r.Messages, pubsub.Message{Data: []byte(text), ContentType: "text/plain"})
	}
	return b.Publish(soon(t), r)
}

func wantOrder(t *testing.T, s pubsub.Subscription, data string) {
	t.Helper()
	got, err := s.Receive(soon(t), 1)
	testutil.Must(t, err)
	if string(got[0].Data) != data {
		t.Errorf("received %q, want %q", got[0].Data, data)
	}
	testutil.Must(t, s.Settle(soon(t), &got[0], pubsub.Acknowledged))
}

func TestPubSub_BulkNamesWhatFailed(t *testing.T) {
	b, _ := openPubSub(t, &pluggabletest.PubSub{Offers: []string{"BULK_PUBSUB"}}, nil)
	failures, err := publishOrders(t, b, "1", "refused", "3")
	testutil.Must(t, err)
	if len(failures) != 1 || failures[0].Index != 1 || !strings.Contains(failures[0].Err.Error(), "it was refused") {
		t.Errorf("failures: %v", failures)
	}
	_, err = publishOrders(t, b, "refused", "refused")
	statetest.WantFault(t, err, fault.Unavailable, "it was refused")
}

// TestPubSub_MessageLimit publishes a message of the largest size with the largest metadata, and a message that is
// too large.
func TestPubSub_MessageLimit(t *testing.T) {
	const limit = 1 << 20
	metadata := pairs(pubsub.MaxMessageMetadata, 64<<10)
	message := func(size int) pubsub.Message {
		return pubsub.Message{ID: strings.Repeat("i", 1000), Key: metadata["000"], Metadata: metadata,
			Data: bytes.Repeat([]byte("x"), size), ContentType: "text/plain"}
	}
	for _, offers := range [][]string{nil, {"BULK_PUBSUB"}} {
		t.Run(fmt.Sprint(offers), func(t *testing.T) {
			b, _ := openPubSub(t, &pluggabletest.PubSub{Offers: offers}, func(o *pluggable.Options) {
				o.MaxMessage = limit
			})
			s := joinOrders(t, b)
			const refused = "has 1048577 bytes; the limit is 1048576 (raise --max-body-size)"
			publish := func(sizes ...int) ([]pubsub.Failure, error) {
				r := pubsub.PublishRequest{Topic: "orders"}
				for _, size := range sizes {
					r.Messages = append(r.Messages, message(size))
				}
				return b.Publish(soon(t), r)
			}
			failures, err := publish(1, limit+1, limit)
			testutil.Must(t, err)
			if len(failures) != 1 || failures[0].Index != 1 {
				t.Fatalf("failures: %v", failures)
			}
			statetest.WantFault(t, failures[0].Err, fault.TooLarge, refused)
			for _, sizes := range [][]int{{limit + 1}, {limit + 1, limit + 1}} {
				_, err = publish(sizes...)
				statetest.WantFault(t, err, fault.TooLarge, refused)
			}
			total := 0
			for total < limit+1 {
				list, err := s.Receive(soon(t), 1)
				testutil.Must(t, err)
				if total += len(list[0].Data); len(list[0].Metadata) != len(metadata) {
					t.Errorf("received %d pairs of metadata", len(list[0].Metadata))
				}
				testutil.Must(t, s.Settle(soon(t), &list[0], pubsub.Acknowledged))
			}
		})
	}
}

// TestPubSub_DeadLetterAboveMessageLimit receives a message that is too large to be published by this node. Another
// publisher may have a higher limit.
func TestPubSub_DeadLetterAboveMessageLimit(t *testing.T) {
	const limit = 1 << 20
	server := &pluggabletest.PubSub{Change: func(m *components.PullMessagesResponse) {
		if m.GetTopicName() == "orders" {
			m.Data = make([]byte, limit+1)
		}
	}}
	b, _ := openPubSub(t, server, func(o *pluggable.Options) { o.MaxMessage = limit })
	s := joinOrders(t, b)
	dead, err := b.Subscribe(soon(t), pubsub.SubscribeRequest{Topic: "dead", Group: "shop"})
	testutil.Must(t, err)
	_, err = publishOrders(t, b, "1")
	testutil.Must(t, err)
	list, err := s.Receive(soon(t), 1)
	testutil.Must(t, err)
	testutil.Must(t, s.DeadLetter(soon(t), &list[0], "dead"))
	if list, err = dead.Receive(soon(t), 1); err != nil || len(list[0].Data) != limit+1 {
		t.Errorf("the dead letter: %v", err)
	}
}

// TestPubSub_ProcessEndsStream makes a process end a stream with the status Internal, which gRPC itself uses for a
// request that it cannot encode.
func TestPubSub_ProcessEndsStream(t *testing.T) {
	var log testutil.Output
	streams := 0
	b, _ := openPubSub(t, &pluggabletest.PubSub{Subscribed: func(*components.Topic) error {
		if streams++; streams == 1 {
			return status.Error(codes.Internal, "why")
		}
		return nil
	}}, logTo(&log))
	s := joinOrders(t, b)
	_, err := publishOrders(t, b, "1")
	testutil.Must(t, err)
	wantOrder(t, s, "1") // of the second stream
	s.Close()
	if text := log.String(); !strings.Contains(text, "answered with an error: Internal: why") {
		t.Errorf("logged %s", text)
	}
}

// TestPubSub_GroupIsThatOfTheApplication sets the metadata consumerID in a subscription.
func TestPubSub_GroupIsThatOfTheApplication(t *testing.T) {
	topics := make(chan *components.Topic, 1)
	server := &pluggabletest.PubSub{Subscribed: func(topic *components.Topic) error {
		topics <- topic
		return nil
	}}
	b, _ := openPubSub(t, server, nil)
	for _, name := range []string{"consumerID", "ConsumerId", "CONSUMERID"} {
		metadata := map[string]string{name: "other", "a": "b"}
		s, err := b.Subscribe(soon(t), pubsub.SubscribeRequest{Topic: "orders", Group: "shop", Metadata: metadata})
		testutil.Must(t, err)
		got := (<-topics).GetMetadata()
		if want := map[string]string{"consumerID": "shop", "a": "b"}; !maps.Equal(got, want) {
			t.Errorf("%s: the process got %v, want %v", name, got, want)
		}
		if len(metadata) != 2 {
			t.Errorf("the metadata of the request was changed to %v", metadata)
		}
		s.Close()
	}
}

// TestPubSub_TimeToLive publishes messages with the metadata ttlInSeconds. The service layer sets Message.TTL only for
// brokers that announce it. The metadata of the client is sent in any case, as in Dapr.
func TestPubSub_TimeToLive(t *testing.T) {
	for name, c := range map[string]struct {
		offers, capabilities []string
		ttl                  time.Duration
		metadata, want       string
	}{
		"feature":        {[]string{"MESSAGE_TTL"}, []string{"MESSAGE_TTL"}, 1500 * time.Millisecond, "1500ms", "2"},
		"small letters":  {[]string{"message_ttl"}, []string{"MESSAGE_TTL"}, time.Second, "", "1"},
		"no time":        {[]string{"MESSAGE_TTL"}, []string{"MESSAGE_TTL"}, 0, "", ""},
		"no feature":     {nil, nil, 0, "1500ms", "1500ms"},
		"nothing at all": {nil, nil, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan map[string]string, 1)
			b, _ := openPubSub(t, &pluggabletest.PubSub{Offers: c.offers,
				Published: func(metadata map[string]string) { seen <- metadata }}, nil)
			i := pubsub.Instance{Broker: b}
			if got := i.Capabilities(); !slices.Equal(got, c.capabilities) {
				t.Errorf("capabilities are %v, want %v", got, c.capabilities)
			}
			m := pubsub.Message{Data: []byte("1"), TTL: c.ttl, Metadata: map[string]string{}}
			if c.metadata != "" {
				m.Metadata["ttlInSeconds"] = c.metadata
			}
			_, err := b.Publish(soon(t), pubsub.PublishRequest{Topic: "orders", Messages: []pubsub.Message{m}})
			testutil.Must(t, err)
			if got := (<-seen)["ttlInSeconds"]; got != c.want {
				t.Errorf("the process got %q, want %q", got, c.want)
			}
		})
	}
}

// TestPubSub_ClientsCannotForgeIDs publishes raw messages whose metadata has the names that the node uses for the id
// and the key of a message.
func TestPubSub_ClientsCannotForgeIDs(t *testing.T) {
	forged := map[string]string{"quorate.id": "1", "quorate.key": "k", "QUORATE.ID": "1", "a": "b"}
	want := map[string]string{"a": "b"}
	for _, offers := range [][]string{nil, {"BULK_PUBSUB"}} {
		t.Run(fmt.Sprint(offers), func(t *testing.T) {
			seen := make(chan map[string]string, 3)
			b, _ := openPubSub(t, &pluggabletest.PubSub{Offers: offers,
				Published: func(metadata map[string]string) { seen <- metadata }}, nil)
			s := joinOrders(t, b)
			raw := pubsub.Message{Data: []byte("1"), Metadata: forged}
			_, err := b.Publish(soon(t), pubsub.PublishRequest{Topic: "orders", Messages: []pubsub.Message{raw, raw},
				Metadata: forged})
			testutil.Must(t, err)
			for range 2 + len(offers) {
				if got := <-seen; !maps.Equal(got, want) {
					t.Errorf("the process got %v, want %v", got, want)
				}
			}
			list, err := s.Receive(soon(t), 1)
			testutil.Must(t, err)
			if got := &list[0]; got.ID != "" || got.Key != "" || !maps.Equal(got.Metadata, want) {
				t.Errorf("received %+v", got)
			}
		})
	}
}

// TestPubSub_StreamAndProcessEnd checks that the next stream delivers unsettled messages again, even after a restart
// of the process.
func TestPubSub_StreamAndProcessEnd(t *testing.T) {
	server := &pluggabletest.PubSub{}
	b, p := openPubSub(t, server, nil)
	s := joinOrders(t, b)
	_, err := publishOrders(t, b, "1")
	testutil.Must(t, err)
	for _, interrupt := range []func(){server.EndStreams, func() { p.Kill(); p.Run() }} {
		got, err := s.Receive(soon(t), 1)
		testutil.Must(t, err)
		interrupt()
		again, err := s.Receive(soon(t), 1)
		testutil.Must(t, err)
		if err := s.Settle(soon(t), &got[0], pubsub.Acknowledged); !fault.Is(err, fault.NotFound) {
			t.Errorf("settling a delivery of the earlier stream: %v", err)
		}
		testutil.Must(t, s.Settle(soon(t), &again[0], pubsub.Released))
	}
	wantOrder(t, s, "1")
	s.Close()
	s.Close()
	if _, err := s.Receive(soon(t), 1); !fault.Is(err, fault.Unavailable) {
		t.Errorf("Receive after Close: %v", err)
	}
}

func TestPubSub_HostileMessagesEndTheStream(t *testing.T) {
	for want, change := range map[string]func(*components.PullMessagesResponse){
		"without an id":        func(m *components.PullMessagesResponse) { m.Id = "" },
		"more than 1024 bytes": func(m *components.PullMessagesResponse) { m.Id = strings.Repeat("x", 2000) },
		"is not acknowledged":  func(m *components.PullMessagesResponse) { m.Id = "same" },
	} {
		t.Run(want, func(t *testing.T) {
			var log testutil.Output
			server := &pluggabletest.PubSub{}
			server.Change = func(m *components.PullMessagesResponse) {
				if string(m.GetData()) == "bad" {
					change(m)
					return
				}
				m.Id = "same"
			}
			b, _ := openPubSub(t, server, logTo(&log))
			s := joinOrders(t, b)
			_, err := publishOrders(t, b, "first", "bad")
			testutil.Must(t, err)
			testutil.Eventually(t, func() error {
				if !strings.Contains(log.String(), want) {
					return fmt.Errorf("the log lacks %q: %s", want, log.String())
				}
				return nil
			})
			s.Close()
		})
	}
}

// pairs returns metadata with number pairs and size bytes.
func pairs(number, size int) map[string]string {
	out := map[string]string{}
	for n := range number {
		name := fmt.Sprintf("%03d", n)
		out[name] = ""
		size -= len(name)
	}
	out["000"] = strings.Repeat("x", size)
	return out
}

// TestPubSub_MetadataLimits publishes messages with the largest metadata, to which the node adds its own pairs. It
// also publishes messages with more metadata, as another publisher may.
func TestPubSub_MetadataLimits(t *testing.T) {
	for name, c := range map[string]struct {
		metadata map[string]string
		notice   string
	}{
		"largest":        {metadata: pairs(pubsub.MaxMessageMetadata, 64<<10)},
		"too many pairs": {pairs(129, 1000), "it has 129 pairs of metadata; the limit is 128"},
		"too many bytes": {pairs(1, 64<<10+1), "its metadata has 65537 bytes; the limit is 65536"},
		"long ttl":       {map[string]string{"ttlInSeconds": strings.Repeat("1", 65<<10)}, "the limit is 65536"},
	} {
		t.Run(name, func(t *testing.T) {
			var log testutil.Output
			b, _ := openPubSub(t, &pluggabletest.PubSub{Offers: []string{"MESSAGE_TTL"}}, logTo(&log))
			s := joinOrders(t, b)
			m := pubsub.Message{ID: "1", Data: []byte("1"), ContentType: "text/plain", Metadata: c.metadata, Key: "k"}
			if c.notice == "" {
				m.TTL = time.Hour
			}
			_, err := b.Publish(soon(t), pubsub.PublishRequest{Topic: "orders", Messages: []pubsub.Message{m}})
			testutil.Must(t, err)
			list, err := s.Receive(soon(t), 1)
			testutil.Must(t, err)
			got := &list[0]
			if got.ID != "1" || got.Key != "k" || string(got.Data) != "1" {
				t.Errorf("received %+v", got)
			}
			want := maps.Clone(c.metadata)
			if c.notice == "" {
				want["ttlInSeconds"] = "3600"
			} else if want = nil; !strings.Contains(log.String(), "without its metadata") ||
				!strings.Contains(log.String(), c.notice) {
				t.Errorf("the log lacks %q: %s", c.notice, log.String())
			}
			if !maps.Equal(got.Metadata, want) {
				t.Errorf("received %d pairs of metadata, want %d", len(got.Metadata), len(want))
			}
			testutil.Must(t, s.Settle(soon(t), got, pubsub.Acknowledged))
			if text := log.String(); strings.Contains(text, "has ended") {
				t.Errorf("log: %s", text)
			}
		})
	}
}

func TestPubSub_NeedsTheService(t *testing.T) {
	folder := pluggabletest.Folder(t)
	pluggabletest.Start(t, folder, "queue", (&pluggabletest.Output{}).Register)
	_, err := pluggable.OpenPubSub(soon(t), options(t, folder, "pubsub.queue"))
	statetest.WantFault(t, err, fault.Invalid, "no service dapr.proto.components.v1.PubSub", "spec.type")
}

package redis_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/pubsubtest"
	"github.com/quorate/quorate/component/pubsub/redis"
	"github.com/quorate/quorate/component/state/redis/redistest"
	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBroker_PassesSuite(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t, "--appendfsync", "no")
	pubsubtest.Run(t, func(t *testing.T) pubsub.Broker {
		t.Helper()
		srv.Do("flushall")
		return open(t, "redisHost", srv.Address, "concurrency", "20", "processingTimeout", "2s", "redeliverInterval",
			"100ms")
	})
}

func TestBroker_PassesSuiteInCluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a cluster of servers")
	}
	addresses := redistest.Addresses(redistest.StartCluster(t))
	admin := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: strings.Split(addresses, ","), Protocol: 2})
	t.Cleanup(func() { testutil.Must(t, admin.Close()) })
	pubsubtest.Run(t, func(t *testing.T) pubsub.Broker {
		t.Helper()
		testutil.Must(t, admin.ForEachMaster(t.Context(), func(ctx context.Context, c *goredis.Client) error {
			return c.FlushAll(ctx).Err()
		}))
		return open(t, "redisHost", addresses, "redisType", "cluster", "concurrency", "20", "processingTimeout", "2s",
			"redeliverInterval", "100ms")
	})
}

// patience bounds how long a test may hang. No test depends on the value.
const patience = time.Minute

func message(id string) pubsub.Message {
	return pubsub.Message{ID: id, Data: []byte(`{"id":"` + id + `"}`), ContentType: "application/cloudevents+json"}
}

func publish(t *testing.T, b *redis.Broker, topic string, messages ...pubsub.Message) {
	t.Helper()
	failures, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: topic, Messages: messages})
	if err != nil || len(failures) > 0 {
		t.Fatalf("publishing: %v, %v", failures, err)
	}
}

func subscribe(t *testing.T, b *redis.Broker, topic, group string) pubsub.Subscription {
	t.Helper()
	s, err := b.Subscribe(t.Context(), pubsub.SubscribeRequest{Topic: topic, Group: group})
	testutil.Must(t, err)
	t.Cleanup(s.Close)
	return s
}

func receive(t *testing.T, s pubsub.Subscription) *pubsub.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	list, err := s.Receive(ctx, 1)
	testutil.Must(t, err)
	return &list[0]
}

func settle(t *testing.T, s pubsub.Subscription, d *pubsub.Delivery, o pubsub.Outcome) {
	t.Helper()
	testutil.Must(t, s.Settle(t.Context(), d, o))
}

func wantPending(t *testing.T, srv *redistest.Server, topic, group string, want int64) {
	t.Helper()
	testutil.Eventually(t, func() error {
		if n := pending(srv, topic, group); n != want {
			return fmt.Errorf("%d messages are pending, want %d", n, want)
		}
		return nil
	})
}

func TestBroker_LayoutOfDapr(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address)
	m := message("1")
	m.Metadata, m.Key = map[string]string{"a": "b"}, "k"
	publish(t, b, "orders", m, pubsub.Message{Data: []byte("raw")})
	entries := srv.Admin.XRange(t.Context(), "orders", "-", "+").Val()
	if len(entries) != 2 {
		t.Fatalf("the stream has %v", entries)
	}
	var metadata map[string]string
	testutil.Must(t, json.Unmarshal([]byte(entries[0].Values["metadata"].(string)), &metadata))
	if entries[0].Values["data"] != string(m.Data) || metadata["a"] != "b" || len(entries[1].Values) != 1 {
		t.Errorf("the stream has %v", entries)
	}
	// Entries in the form in which Dapr writes them.
	srv.Do("xadd", "orders", "*", "data", `{"id":"2"}`, "metadata", `{"partitionKey":"p","c":"d"}`)
	srv.Do("xadd", "orders", "*", "data", `{"id":"3"}`, "metadata", `[]`, "other", "x")
	s := subscribe(t, b, "orders", "shop")
	receive(t, s)
	receive(t, s)
	if d := receive(t, s); string(d.Data) != `{"id":"2"}` || d.Key != "p" || d.Metadata["c"] != "d" || d.ID != "" {
		t.Errorf("a message of Dapr is %+v", d)
	}
	if d := receive(t, s); string(d.Data) != `{"id":"3"}` || d.Metadata != nil {
		t.Errorf("a message with metadata of another form is %+v", d)
	}
	consumers := srv.Admin.XInfoConsumers(t.Context(), "orders", "shop").Val()
	if len(consumers) != 1 || consumers[0].Name != "shop" {
		t.Errorf("the consumers are %+v", consumers)
	}
}

func TestPublish_TrimsStream(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t, "--stream-node-max-entries", "1", "--appendfsync", "no")
	for name, pairs := range map[string][]string{"length": {"maxLenApprox", "5"}, "age": {"streamTTL", "10ms"}} {
		b := open(t, append(pairs, "redisHost", srv.Address)...)
		for range 100 {
			publish(t, b, name, message("1"))
		}
		testutil.Eventually(t, func() error {
			publish(t, b, name, message("1"))
			if n := srv.Admin.XLen(t.Context(), name).Val(); n > 10 {
				return fmt.Errorf("%s: the stream has %d entries", name, n)
			}
			return nil
		})
	}
}

func TestPublish_Refuses(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address)
	srv.Do("set", "text", "x")
	late := message("1")
	late.DeliverAt = time.Now().Add(time.Hour)
	for want, r := range map[string]pubsub.PublishRequest{
		"another Redis type than a stream": {Topic: "text", Messages: []pubsub.Message{message("1")}},
		redis.Type:                         {Topic: "orders", Messages: []pubsub.Message{message("0"), late}},
	} {
		_, err := b.Publish(t.Context(), r)
		statetest.WantFault(t, err, fault.Invalid, want)
	}
	if n := srv.Admin.XLen(t.Context(), "orders").Val(); n != 0 {
		t.Errorf("%d messages of a refused request were published", n)
	}
	_, err := b.Subscribe(t.Context(), pubsub.SubscribeRequest{Topic: "text", Group: "shop"})
	statetest.WantFault(t, err, fault.Invalid, "another Redis type than a stream")
}

// TestBroker_FullServer checks that a full server refuses messages, and that subscribers can still handle the stored
// messages.
func TestBroker_FullServer(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t, "--maxmemory-policy", "noeviction")
	b := open(t, "redisHost", srv.Address)
	publish(t, b, "orders", message("0"))
	subscribe(t, b, "orders", "shop").Close()
	used := srv.Admin.InfoMap(t.Context(), "memory").Item("Memory", "used_memory")
	n, err := strconv.Atoi(used)
	testutil.Must(t, err)
	srv.Do("config", "set", "maxmemory", n+2<<20)
	messages := make([]pubsub.Message, 600) // several round trips
	for i := range messages {
		messages[i] = message(strconv.Itoa(i))
		messages[i].Data = []byte(strings.Repeat("x", 16<<10))
	}
	failures, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: "orders", Messages: messages})
	testutil.Must(t, err)
	if len(failures) == 0 || len(failures) == len(messages) {
		t.Fatalf("%d of %d messages were refused", len(failures), len(messages))
	}
	for _, f := range failures {
		statetest.WantFault(t, f.Err, fault.Overloaded, "topic_full", "maxmemory")
	}
	stored := int(srv.Admin.XLen(t.Context(), "orders").Val())
	if stored != 1+len(messages)-len(failures) {
		t.Errorf("%d messages are stored, and %d were refused", stored, len(failures))
	}
	_, err = b.Publish(t.Context(), pubsub.PublishRequest{Topic: "orders", Messages: messages[:1]})
	statetest.WantFault(t, err, fault.Overloaded, "topic_full")
	s := subscribe(t, b, "orders", "shop")
	first := receive(t, s)
	if err := s.DeadLetter(t.Context(), first, "dead"); !fault.Is(err, fault.Overloaded) {
		t.Errorf("a dead letter of a full server: %v", err)
	}
	settle(t, s, first, pubsub.Acknowledged)
	for range stored - 1 {
		settle(t, s, receive(t, s), pubsub.Acknowledged)
	}
	wantPending(t, srv, "orders", "shop", 0)
}

// killedReader receives messages and does not acknowledge them, like a process that is killed.
func killedReader(t *testing.T, srv *redistest.Server, topic, group string) {
	t.Helper()
	testutil.Must(t, srv.Admin.XReadGroup(t.Context(), &goredis.XReadGroupArgs{Group: group, Consumer: group,
		Streams: []string{topic, ">"}, Count: 10}).Err())
}

func TestReceive_MessagesOfKilledProcess(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address, "processingTimeout", "500ms", "redeliverInterval", "50ms")
	s := subscribe(t, b, "orders", "shop")
	s.Close()
	publish(t, b, "orders", message("1"), message("2"))
	killedReader(t, srv, "orders", "shop")
	s = subscribe(t, b, "orders", "shop")
	for _, id := range []string{"1", "2"} {
		d := receive(t, s)
		if d.ID != id || d.Attempt != 2 {
			t.Errorf("received %s, attempt %d", d.ID, d.Attempt)
		}
		settle(t, s, d, pubsub.Acknowledged)
	}
	wantPending(t, srv, "orders", "shop", 0)
}

// TestReceive_DeletedMessage deletes a pending message in Redis. The other message is still delivered, and none stays
// pending.
func TestReceive_DeletedMessage(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address, "processingTimeout", "100ms", "redeliverInterval", "50ms")
	subscribe(t, b, "orders", "shop").Close()
	publish(t, b, "orders", message("1"), message("2"))
	killedReader(t, srv, "orders", "shop")
	srv.Do("xdel", "orders", srv.Admin.XRange(t.Context(), "orders", "-", "+").Val()[0].ID)
	s := subscribe(t, b, "orders", "shop")
	d := receive(t, s)
	if d.ID != "2" {
		t.Errorf("received %s", d.ID)
	}
	settle(t, s, d, pubsub.Acknowledged)
	wantPending(t, srv, "orders", "shop", 0)
}

// TestSettle_FailedIsNeverAcknowledged checks that a failed message stays pending. Dapr's component differs here.
func TestSettle_FailedIsNeverAcknowledged(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	for name, pairs := range map[string][]string{"later": {"processingTimeout", "1h"},
		"off": {"processingTimeout", "0"}, "no interval": {"redeliverInterval", "0"}} {
		b := open(t, append(pairs, "redisHost", srv.Address)...)
		s := subscribe(t, b, name, "shop")
		publish(t, b, name, message("1"))
		settle(t, s, receive(t, s), pubsub.Failed)
		s.Close()
		if n := pending(srv, name, "shop"); n != 1 {
			t.Errorf("%s: %d messages are pending", name, n)
		}
	}
}

func TestClose_GivesMessagesToOtherProcesses(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	one := open(t, "redisHost", srv.Address, "processingTimeout", "1h", "redeliverInterval", "50ms")
	two := open(t, "redisHost", srv.Address, "processingTimeout", "1h", "redeliverInterval", "50ms")
	s := subscribe(t, one, "orders", "shop")
	var messages []pubsub.Message
	for i := range 30 {
		messages = append(messages, message(strconv.Itoa(i)))
	}
	publish(t, one, "orders", messages...)
	receive(t, s)
	wantPending(t, srv, "orders", "shop", 30) // the broker has read ahead
	other := subscribe(t, two, "orders", "shop")
	s.Close()
	seen := map[string]bool{}
	for len(seen) < len(messages) {
		d := receive(t, other)
		if d.Attempt != 1 {
			t.Errorf("message %s has attempt %d", d.ID, d.Attempt)
		}
		seen[d.ID] = true
		settle(t, other, d, pubsub.Acknowledged)
	}
	wantPending(t, srv, "orders", "shop", 0)
}

// TestReceive_HeldMessageStaysWithItsProcess handles a message for longer than processingTimeout. The process renews
// the message, so no other attempt begins.
func TestReceive_HeldMessageStaysWithItsProcess(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	const timeout = time.Second
	b := open(t, "redisHost", srv.Address, "processingTimeout", timeout.String(), "redeliverInterval", "50ms")
	s := subscribe(t, b, "orders", "shop")
	publish(t, b, "orders", message("1"))
	d := receive(t, s)
	renewals, last := 0, time.Duration(0)
	testutil.Eventually(t, func() error {
		p := srv.Admin.XPendingExt(t.Context(), &goredis.XPendingExtArgs{Stream: "orders", Group: "shop", Start: "-",
			End: "+", Count: 10}).Val()
		if len(p) != 1 || p[0].RetryCount != 1 {
			t.Fatalf("pending are %+v", p)
		}
		if p[0].Idle < last {
			renewals++
		}
		if last = p[0].Idle; renewals < 6 {
			return fmt.Errorf("%d renewals", renewals)
		}
		return nil
	})
	settle(t, s, d, pubsub.Acknowledged)
	wantPending(t, srv, "orders", "shop", 0)
}

func TestReceive_IsBounded(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t, "--appendfsync", "no")
	b := open(t, "redisHost", srv.Address, "concurrency", "2", "queueDepth", "5")
	s := subscribe(t, b, "orders", "shop")
	var messages []pubsub.Message
	for i := range 40 {
		messages = append(messages, message(strconv.Itoa(i)))
	}
	publish(t, b, "orders", messages...)
	held := []*pubsub.Delivery{receive(t, s), receive(t, s)}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if d, err := s.Receive(ctx, 1); !fault.Is(err, fault.Timeout) {
		t.Errorf("a third message came: %v, %v", d, err)
	}
	wantPending(t, srv, "orders", "shop", 7)
	for i := range messages {
		if held[0].ID != strconv.Itoa(i) {
			t.Fatalf("message %d is %s", i, held[0].ID)
		}
		settle(t, s, held[0], pubsub.Acknowledged)
		if held = held[1:]; i+2 < len(messages) {
			held = append(held, receive(t, s))
		}
	}
	wantPending(t, srv, "orders", "shop", 0)
}

// TestReceive_LargeMessages publishes more bytes than a group may have in memory.
func TestReceive_LargeMessages(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t, "--appendonly", "no")
	b := open(t, "redisHost", srv.Address, "concurrency", "2")
	s := subscribe(t, b, "orders", "shop")
	const n, size = 40, 2 << 20
	body := []byte(strings.Repeat("x", size))
	for i := range n {
		m := message(strconv.Itoa(i))
		m.Data = body
		publish(t, b, "orders", m)
	}
	for i := range n {
		d := receive(t, s)
		if d.ID != strconv.Itoa(i) || len(d.Data) != size {
			t.Fatalf("message %d is %s with %d bytes", i, d.ID, len(d.Data))
		}
		if p := pending(srv, "orders", "shop"); p > 20 {
			t.Errorf("%d messages of 2 MiB are in memory", p)
		}
		settle(t, s, d, pubsub.Acknowledged)
	}
}

// TestReceive_GroupIsMissing deletes the stream with its group. The broker creates the group again, and receives new
// messages.
func TestReceive_GroupIsMissing(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address)
	s := subscribe(t, b, "orders", "shop")
	publish(t, b, "orders", message("1"))
	settle(t, s, receive(t, s), pubsub.Acknowledged)
	srv.Do("del", "orders")
	publish(t, b, "orders", message("2"))
	if d := receive(t, s); d.ID != "2" {
		t.Errorf("received %s", d.ID)
	}
}

// TestReceive_KeyOfAnotherType checks that Receive returns an error if the key of the topic is no stream. An operator
// has to repair the topic.
func TestReceive_KeyOfAnotherType(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address)
	s := subscribe(t, b, "orders", "shop")
	srv.Do("set", "orders", "text")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := s.Receive(ctx, 1)
	statetest.WantFault(t, err, fault.Invalid, "another Redis type than a stream")
}

func TestBroker_Sentinel(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits until a sentinel takes a master for dead")
	}
	sentinel, master, replica := startSentinel(t)
	b := open(t, "redisHost", sentinel.Address, "failover", "true", "sentinelMasterName", "main", "processingTimeout",
		"1s", "redeliverInterval", "100ms", "readTimeout", "1s")
	s := subscribe(t, b, "orders", "shop")
	publish(t, b, "orders", message("before"))
	settle(t, s, receive(t, s), pubsub.Acknowledged)
	testutil.Eventually(t, func() error { // Redis replicates asynchronously
		if n, err := replica.Admin.XLen(t.Context(), "orders").Result(); err != nil || n != 1 {
			return errors.Join(err, fmt.Errorf("the replica has %d messages", n))
		}
		return nil
	})
	master.Kill()
	testutil.Eventually(t, func() error {
		_, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: "orders",
			Messages: []pubsub.Message{message("after")}})
		return err
	})
	for {
		d := receive(t, s)
		settle(t, s, d, pubsub.Acknowledged)
		if d.ID == "after" {
			break
		}
	}
}

func TestBroker_ACLUserWithDocumentedCommands(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	srv.Do("acl", "setuser", "shop", "on", ">pass", "~orders", "~dead", "+ping", "+info", "+xadd", "+xgroup|create",
		"+xreadgroup", "+xack", "+xpending", "+xclaim", "+xrange")
	b := open(t, "redisHost", srv.Address, "redisUsername", "shop", "redisPassword", "pass", "processingTimeout",
		"200ms", "redeliverInterval", "50ms")
	s := subscribe(t, b, "orders", "shop")
	publish(t, b, "orders", message("1"), message("2"))
	settle(t, s, receive(t, s), pubsub.Acknowledged)
	settle(t, s, receive(t, s), pubsub.Failed)
	if err := s.DeadLetter(t.Context(), receive(t, s), "dead"); err != nil {
		t.Error(err)
	}
	s.Close()
	_, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: "other", Messages: []pubsub.Message{message("1")}})
	statetest.WantFault(t, err, fault.Denied, "may not", "pubsub.redis.md")
}

func TestOpen_Refuses(t *testing.T) {
	t.Parallel()
	address := "127.0.0.1:" + statetest.FreePort(t)
	opening := func(pairs ...string) func(context.Context) error {
		o := options(t, pairs...)
		return func(ctx context.Context) error {
			b, err := redis.Open(ctx, o)
			if err == nil {
				_ = b.Close()
			}
			return err
		}
	}
	statetest.WantOpenFault(t, opening("redisHost", address), fault.Unavailable, address, "check redisHost")
	statetest.WantOpenFault(t, opening("redisHost", "a,b"), fault.Invalid, "several addresses")
	statetest.WantOpenFault(t, opening("redisHost", "a", "failover", "true"), fault.Invalid, "sentinelMasterName")
}

func TestFields_RefuseBadValues(t *testing.T) {
	for want, pairs := range map[string][]string{
		"redisHost":                   {},
		"none of node, cluster":       {"redisHost", "a", "redisType", "sharded"},
		"processingTimeout":           {"redisHost", "a", "processingTimeout", "soon"},
		"redeliverInterval":           {"redisHost", "a", "redeliverInterval", "-1"},
		"from 1 to 10000":             {"redisHost", "a", "queueDepth", "0"},
		"from 1 to 1000":              {"redisHost", "a", "concurrency", "1001"},
		"maxLenApprox":                {"redisHost", "a", "maxLenApprox", "-1"},
		"neither 0 nor at least 10ms": {"redisHost", "a", "processingTimeout", "9"},
		"streamTTL":                   {"redisHost", "a", "streamTTL", "30d"},
		"never acknowledged":          {"redisHost", "a", "ackOnError", "true"},
		"only state.redis has this":   {"redisHost", "a", "replicas", "1"},
		"Entra ID is not supported":   {"redisHost", "a", "useEntraID", "true"},
	} {
		if _, err := checked(pairs...); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q", pairs, err, want)
		}
	}
	if _, err := checked("redisHost", "a", "processingTimeout", "60000", "redeliverInterval", "15s", "streamTTL",
		"720h"); err != nil {
		t.Error(err)
	}
}

func TestOpen_WarnsOfSettings(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	for want, pairs := range map[string][]string{
		"redelivery is switched off": {"processingTimeout", "0"},
		"streamTTL has no effect":    {"maxLenApprox", "10", "streamTTL", "1h"},
	} {
		var log testutil.Output
		o := options(t, append(pairs, "redisHost", srv.Address)...)
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		b, err := redis.Open(t.Context(), o)
		testutil.Must(t, err)
		testutil.Must(t, b.Close())
		if !strings.Contains(log.String(), want) {
			t.Errorf("%v: the log is %q", pairs, log.String())
		}
	}
}

// TestClose_WithPausedServer checks that Close returns although the server does not answer and there is no read
// timeout.
func TestClose_WithPausedServer(t *testing.T) {
	t.Parallel()
	srv := redistest.StartDurable(t)
	b := open(t, "redisHost", srv.Address, "readTimeout", "-1", "writeTimeout", "-1")
	s := subscribe(t, b, "orders", "shop")
	publish(t, b, "orders", message("1"))
	receive(t, s)
	srv.Signal(pause)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := b.Publish(ctx, pubsub.PublishRequest{Topic: "orders", Messages: []pubsub.Message{message("2")}})
	statetest.WantFault(t, err, fault.Indeterminate, srv.Address)
	testutil.Must(t, b.Close())
}

// Package pubsubtest is the conformance suite for publish/subscribe brokers. It tests the rules of the contract in
// package pubsub, and every broker must pass it. Its goroutines end with the test. The package owns these tests.
package pubsubtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// patience is how long a test waits for a message.
const patience = 30 * time.Second

// Run runs the suite. It calls open for each test. open returns a broker without topics, and must arrange that the
// broker is closed when the test ends. An ability is tested only if the broker reports it in Abilities.
func Run(t *testing.T, open func(t *testing.T) pubsub.Broker) {
	t.Helper()
	tests := map[string]func(*testing.T, pubsub.Broker){
		"Delivery": testDelivery, "OldestFirst": testOldestFirst, "GroupsAreIndependent": testGroups,
		"MembersShare": testMembersShare, "FailedComesAgain": testFailed, "ReleasedComesAtOnce": testReleased,
		"SettledOnce": testSettledOnce, "CloseReleases": testCloseReleases, "DeadLetter": testDeadLetter,
		"ContextEndsReceive": testContext, "CloseEndsReceive": testCloseEndsReceive,
		"BrokerCloseEndsReceive": testBrokerClose, "Concurrent": testConcurrent, "OddTopics": testOddTopics,
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
	abilities := open(t).Abilities()
	for name, has := range map[string]struct {
		ability bool
		test    func(*testing.T, pubsub.Broker)
	}{
		"TTL": {abilities.TTL, testTTL}, "Bulk": {abilities.Bulk, testBulk},
		"Ordered":              {abilities.Ordered, testOrdered},
		"OrderSurvivesFailure": {abilities.Ordered, testOrderSurvivesFailure},
		"Delayed":              {abilities.Delayed, testDelayed},
		"Deduplicate":          {abilities.Deduplicate, testDeduplicate},
		"AtomicDeadLetter":     {abilities.Atomic, testAtomicDeadLetter},
	} {
		if has.ability {
			t.Run(name, func(t *testing.T) { has.test(t, open(t)) })
		}
	}
}

func message(id string) pubsub.Message {
	return pubsub.Message{ID: id, Data: []byte(`{"id":"` + id + `"}`), ContentType: "application/cloudevents+json"}
}

func keyed(key, id string) pubsub.Message {
	m := message(id)
	m.Key = key
	return m
}

func publish(t *testing.T, b pubsub.Broker, topic string, messages ...pubsub.Message) {
	t.Helper()
	failures, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: topic, Messages: messages})
	if err != nil || len(failures) > 0 {
		t.Fatalf("publishing to %s: %v, %v", topic, failures, err)
	}
}

func subscribe(t *testing.T, b pubsub.Broker, topic, group string) pubsub.Subscription {
	t.Helper()
	s, err := b.Subscribe(t.Context(), pubsub.SubscribeRequest{Topic: topic, Group: group})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// receive receives exactly n deliveries and does not settle them. The broker must allow n unsettled deliveries.
func receive(t *testing.T, s pubsub.Subscription, n int) []pubsub.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out []pubsub.Delivery
	for len(out) < n {
		got, err := s.Receive(ctx, n-len(out))
		if err != nil {
			t.Fatalf("%d of %d messages were received: %v", len(out), n, err)
		}
		if len(got) == 0 || len(got) > n-len(out) {
			t.Fatalf("Receive with limit %d returned %d deliveries", n-len(out), len(got))
		}
		out = append(out, got...)
	}
	return out
}

func settle(t *testing.T, s pubsub.Subscription, o pubsub.Outcome, deliveries ...pubsub.Delivery) {
	t.Helper()
	for i := range deliveries {
		if err := s.Settle(t.Context(), &deliveries[i], o); err != nil {
			t.Fatalf("settling %s as %s: %v", deliveries[i].ID, o, err)
		}
	}
}

// drain receives and acknowledges messages, up to and including the message with the given id. It returns the ids of
// all these messages in the order of delivery.
func drain(t *testing.T, s pubsub.Subscription, last string) []string {
	t.Helper()
	var out []string
	for !slices.Contains(out, last) {
		for _, d := range receive(t, s, 1) {
			settle(t, s, pubsub.Acknowledged, d)
			out = append(out, d.ID)
		}
	}
	return out
}

func ids(deliveries []pubsub.Delivery) []string {
	out := make([]string, len(deliveries))
	for i := range deliveries {
		out[i] = deliveries[i].ID
	}
	return out
}

func wantIDs(t *testing.T, got []pubsub.Delivery, want ...string) {
	t.Helper()
	if !slices.Equal(ids(got), want) {
		t.Errorf("received %q, want %q", ids(got), want)
	}
}

// sameIDs fails the test unless got and want have the same ids, in any order.
func sameIDs(t *testing.T, got []string, want ...string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
}

func testDelivery(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	want := pubsub.Message{ID: "1", Data: []byte("\x00{\xff"), ContentType: "application/octet-stream",
		Metadata: map[string]string{"a": "b", "ü": "", "empty": " x "}, Key: "k"}
	publish(t, b, "orders", want)
	got := receive(t, s, 1)[0]
	if got.ID != want.ID || !bytes.Equal(got.Data, want.Data) || got.ContentType != want.ContentType ||
		!maps.Equal(got.Metadata, want.Metadata) || got.Key != want.Key {
		t.Errorf("received %+v, want %+v", got.Message, want)
	}
	if got.Topic != "orders" || got.Attempt != 1 || got.Ref == "" {
		t.Errorf("received %+v", got)
	}
	settle(t, s, pubsub.Acknowledged, got)
}

func testOldestFirst(t *testing.T, b pubsub.Broker) {
	publish(t, b, "orders", message("1"))
	publish(t, b, "orders", message("2"))
	s := subscribe(t, b, "orders", "app")
	sameIDs(t, ids(receive(t, s, 2)), "1", "2")
}

func testGroups(t *testing.T, b pubsub.Broker) {
	one, two := subscribe(t, b, "orders", "one"), subscribe(t, b, "orders", "two")
	publish(t, b, "orders", message("1"))
	publish(t, b, "other", message("2"))
	settle(t, one, pubsub.Acknowledged, receive(t, one, 1)...)
	wantIDs(t, receive(t, two, 1), "1")
	publish(t, b, "orders", message("3"))
	wantIDs(t, receive(t, one, 1), "3") // neither the acknowledged message nor that of another topic
}

func testMembersShare(t *testing.T, b pubsub.Broker) {
	const messages = 50
	one, two := subscribe(t, b, "orders", "app"), subscribe(t, b, "orders", "app")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	var group sync.WaitGroup
	for _, s := range []pubsub.Subscription{one, two} {
		group.Go(func() {
			for {
				got, err := s.Receive(ctx, 3)
				if err != nil {
					return
				}
				mu.Lock()
				for i := range got {
					seen[got[i].ID]++
				}
				all := len(seen) == messages
				mu.Unlock()
				for i := range got {
					if err := s.Settle(t.Context(), &got[i], pubsub.Acknowledged); err != nil {
						t.Error(err)
					}
				}
				if all {
					cancel()
				}
			}
		})
	}
	for i := range messages {
		publish(t, b, "orders", message(strconv.Itoa(i)))
	}
	group.Wait()
	if len(seen) != messages {
		t.Errorf("%d of %d messages were received", len(seen), messages)
	}
	for id, times := range seen {
		if times != 1 {
			t.Errorf("message %s was received %d times", id, times)
		}
	}
}

func testFailed(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	publish(t, b, "orders", message("1"))
	settle(t, s, pubsub.Failed, receive(t, s, 1)...)
	again := receive(t, s, 1)
	wantIDs(t, again, "1")
	if again[0].Attempt != 2 {
		t.Errorf("the second attempt has the number %d", again[0].Attempt)
	}
	settle(t, s, pubsub.Acknowledged, again...)
	publish(t, b, "orders", message("2"))
	wantIDs(t, receive(t, s, 1), "2")
}

func testReleased(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	publish(t, b, "orders", message("1"))
	settle(t, s, pubsub.Released, receive(t, s, 1)...)
	again := receive(t, s, 1)
	wantIDs(t, again, "1")
	if again[0].Attempt != 1 {
		t.Errorf("a release counted as attempt: the number is %d", again[0].Attempt)
	}
}

func testSettledOnce(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	publish(t, b, "orders", message("1"))
	d := receive(t, s, 1)[0]
	settle(t, s, pubsub.Acknowledged, d)
	for _, o := range []pubsub.Outcome{pubsub.Acknowledged, pubsub.Failed, pubsub.Released} {
		if err := s.Settle(t.Context(), &d, o); !fault.Is(err, fault.NotFound) {
			t.Errorf("settling twice, as %s: %v, want not_found", o, err)
		}
	}
	if err := s.DeadLetter(t.Context(), &d, "dead"); !fault.Is(err, fault.NotFound) {
		t.Errorf("dead-lettering what was settled: %v, want not_found", err)
	}
	d.Ref = "no such delivery"
	if err := s.Settle(t.Context(), &d, pubsub.Acknowledged); err == nil {
		t.Error("an unknown delivery was settled")
	}
}

func testCloseReleases(t *testing.T, b pubsub.Broker) {
	one := subscribe(t, b, "orders", "app")
	publish(t, b, "orders", message("1"), message("2"))
	first := receive(t, one, 1)
	settle(t, one, pubsub.Acknowledged, first...)
	held := receive(t, one, 1)
	two := subscribe(t, b, "orders", "app")
	one.Close()
	one.Close()
	wantIDs(t, receive(t, two, 1), held[0].ID)
}

func testDeadLetter(t *testing.T, b pubsub.Broker) {
	s, dead := subscribe(t, b, "orders", "app"), subscribe(t, b, "dead", "app")
	want := message("1")
	want.Metadata = map[string]string{"a": "b"}
	publish(t, b, "orders", want)
	d := receive(t, s, 1)[0]
	if err := s.DeadLetter(t.Context(), &d, "dead"); err != nil {
		t.Fatal(err)
	}
	got := receive(t, dead, 1)[0]
	if got.ID != "1" || got.Topic != "dead" || !bytes.Equal(got.Data, want.Data) || got.Metadata["a"] != "b" ||
		got.ContentType != want.ContentType {
		t.Errorf("the dead letter is %+v", got)
	}
	publish(t, b, "orders", message("2"))
	wantIDs(t, receive(t, s, 1), "2")
}

func testContext(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Receive(ctx, 1); !fault.Is(err, fault.Timeout) {
		t.Errorf("Receive after the end of its context: %v, want timeout", err)
	}
	request := pubsub.PublishRequest{Topic: "orders", Messages: []pubsub.Message{message("1")}}
	if _, err := b.Publish(ctx, request); err == nil {
		t.Error("Publish ignored that its context had ended")
	}
	publish(t, b, "orders", message("2"))
	if got := drain(t, s, "2"); len(got) > 2 {
		t.Errorf("received %q", got)
	}
}

// waits checks that a waiting Receive returns fault.Unavailable when its subscription ends. While Receive waits, it
// calls the given function, which ends the subscription.
func waits(t *testing.T, s pubsub.Subscription, end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	done := make(chan error)
	go func() {
		_, err := s.Receive(ctx, 1)
		done <- err
	}()
	end()
	if err := <-done; !fault.Is(err, fault.Unavailable) {
		t.Errorf("Receive ended with %v, want unavailable", err)
	}
}

func testCloseEndsReceive(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	waits(t, s, s.Close)
}

func testBrokerClose(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	waits(t, s, func() {
		for range 2 {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	request := pubsub.PublishRequest{Topic: "orders", Messages: []pubsub.Message{message("1")}}
	if _, err := b.Publish(t.Context(), request); err == nil {
		t.Error("a closed broker accepted a message")
	}
	if _, err := b.Subscribe(t.Context(), pubsub.SubscribeRequest{Topic: "orders", Group: "app"}); err == nil {
		t.Error("a closed broker accepted a subscription")
	}
}

// testConcurrent publishes messages from several goroutines. Meanwhile, several members of a group receive the
// messages, and acknowledge or release them. Every message must be acknowledged exactly once.
func testConcurrent(t *testing.T, b pubsub.Broker) {
	const publishers, each, members = 4, 25, 3
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	acknowledged := map[string]int{}
	var group sync.WaitGroup
	for n := range members {
		s := subscribe(t, b, "orders", "app")
		group.Go(func() {
			for turn := n; ; turn++ {
				got, err := s.Receive(ctx, 4)
				if err != nil {
					return
				}
				for i := range got {
					outcome := pubsub.Acknowledged
					if turn%7 == 3 {
						outcome = pubsub.Released
					}
					if err := s.Settle(ctx, &got[i], outcome); err != nil && ctx.Err() == nil {
						t.Error(err)
					}
					mu.Lock()
					if outcome == pubsub.Acknowledged {
						acknowledged[got[i].ID]++
					}
					if len(acknowledged) == publishers*each {
						cancel()
					}
					mu.Unlock()
				}
			}
		})
	}
	for p := range publishers {
		group.Go(func() {
			for i := range each {
				m := []pubsub.Message{keyed(strconv.Itoa(p), fmt.Sprint(p, "-", i))}
				if _, err := b.Publish(ctx, pubsub.PublishRequest{Topic: "orders", Messages: m}); err != nil &&
					ctx.Err() == nil { // all messages may be acknowledged before the last Publish returns
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if err := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%d of %d messages were acknowledged in time", len(acknowledged), publishers*each)
	}
	for id, times := range acknowledged {
		if times != 1 {
			t.Errorf("message %s was acknowledged %d times", id, times)
		}
	}
}

func testOddTopics(t *testing.T, b pubsub.Broker) {
	for _, topic := range []string{"/", "a/b", "ü", "a||b", "a b", "..", "%2F"} {
		s := subscribe(t, b, topic, "app/ü")
		publish(t, b, topic, message(topic))
		if got := drain(t, s, topic); len(got) != 1 {
			t.Errorf("topic %q has %q", topic, got)
		}
	}
}

func testTTL(t *testing.T, b pubsub.Broker) {
	short := message("short")
	short.TTL = time.Second
	publish(t, b, "orders", short, message("long"))
	// A new group receives the messages that the topic still has. The expired message may stay for a while, but not
	// forever.
	for n, deadline := 0, time.Now().Add(patience); ; n++ {
		s := subscribe(t, b, "orders", strconv.Itoa(n))
		got := drain(t, s, "long")
		s.Close()
		if !slices.Contains(got, "short") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a message does not expire")
		}
		<-time.After(20 * time.Millisecond) // each attempt creates a group
	}
}

func testBulk(t *testing.T, b pubsub.Broker) {
	const n = 100
	s := subscribe(t, b, "orders", "app")
	messages := make([]pubsub.Message, n)
	want := make([]string, n)
	for i := range messages {
		messages[i] = keyed("k", strconv.Itoa(i))
		want[i] = messages[i].ID
	}
	publish(t, b, "orders", messages...)
	got := drain(t, s, want[n-1])
	if b.Abilities().Ordered {
		if !slices.Equal(got, want) {
			t.Errorf("received %q", got)
		}
		return
	}
	sameIDs(t, got, want...)
}

func testOrdered(t *testing.T, b pubsub.Broker) {
	const n = 30
	s := subscribe(t, b, "orders", "app")
	for i := range n {
		publish(t, b, "orders", keyed("a", fmt.Sprint("a", i)), keyed("b", fmt.Sprint("b", i)))
	}
	seen := map[string]int{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for seen["a"]+seen["b"] < 2*n {
		got, err := s.Receive(ctx, 5)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if want := fmt.Sprint(got[i].Key, seen[got[i].Key]); got[i].ID != want {
				t.Fatalf("received %s, want %s", got[i].ID, want)
			}
			if got[i].Sequence == "" {
				t.Errorf("delivery %s has no sequence", got[i].ID)
			}
			seen[got[i].Key]++
			settle(t, s, pubsub.Acknowledged, got[i])
		}
	}
}

func testOrderSurvivesFailure(t *testing.T, b pubsub.Broker) {
	one := subscribe(t, b, "orders", "app")
	publish(t, b, "orders", keyed("k", "1"), keyed("k", "2"), message("other"))
	// The receiver settles the first message of the sequence as failed, and gives back the rest of
	// the sequence.
	var first pubsub.Delivery
	for first.ID == "" {
		for _, d := range receive(t, one, 1) {
			if d.Key == "k" {
				first = d
			} else {
				settle(t, one, pubsub.Acknowledged, d)
			}
		}
	}
	if first.ID != "1" {
		t.Fatalf("received %s first", first.ID)
	}
	settle(t, one, pubsub.Failed, first)
	two := subscribe(t, b, "orders", "app")
	one.Close()
	var got []string
	for !slices.Contains(got, "2") {
		for _, d := range receive(t, two, 1) {
			if d.Key == "k" {
				got = append(got, d.ID)
			}
			settle(t, two, pubsub.Acknowledged, d)
		}
	}
	if !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("after a failure, the order is %q", got)
	}
}

func testDelayed(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	far, late := message("far"), message("late")
	at := time.Now().Add(time.Second)
	far.DeliverAt, late.DeliverAt = at.Add(time.Hour), at
	publish(t, b, "orders", far, late, message("now"))
	var came []string
	for range 2 { // in any order, because a busy machine may publish both after the time of the second
		got := receive(t, s, 1)
		if early := time.Until(at); got[0].ID == "late" && early > 100*time.Millisecond { // clocks differ a little
			t.Errorf("the message came %s too early", early)
		}
		settle(t, s, pubsub.Acknowledged, got...)
		came = append(came, got[0].ID)
	}
	sameIDs(t, came, "now", "late")
}

func testDeduplicate(t *testing.T, b pubsub.Broker) {
	s := subscribe(t, b, "orders", "app")
	publish(t, b, "orders", message("1"))
	publish(t, b, "orders", message("1"), message("2"))
	publish(t, b, "other", message("1")) // the same id in another topic is no duplicate
	publish(t, b, "orders", message(""), message(""), message("end"))
	sameIDs(t, drain(t, s, "end"), "1", "2", "", "", "end")
	wantIDs(t, receive(t, subscribe(t, b, "other", "app"), 1), "1")
}

// testAtomicDeadLetter calls DeadLetter twice at the same time for each message. Each message must be received exactly
// once from the original topic, and exactly once from the dead-letter topic.
func testAtomicDeadLetter(t *testing.T, b pubsub.Broker) {
	const n = 40
	s, dead := subscribe(t, b, "orders", "app"), subscribe(t, b, "dead", "app")
	var want []string
	for i := range n {
		publish(t, b, "orders", message(strconv.Itoa(i)))
		want = append(want, strconv.Itoa(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var moved []string
	for len(moved) < n {
		got, err := s.Receive(ctx, 8)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for i := range got {
			moved = append(moved, got[i].ID)
			for range 2 { // only one of the two calls may have an effect
				group.Go(func() {
					if err := s.DeadLetter(ctx, &got[i], "dead"); err != nil && !fault.Is(err, fault.NotFound) {
						t.Error(err)
					}
				})
			}
		}
		group.Wait()
	}
	publish(t, b, "dead", message("end"))
	var found []string
	for len(found) < n+1 {
		got, err := dead.Receive(ctx, 8)
		if err != nil {
			t.Fatal(err)
		}
		settle(t, dead, pubsub.Acknowledged, got...)
		found = append(found, ids(got)...)
	}
	sameIDs(t, moved, want...)
	sameIDs(t, found, append(want, "end")...)
}

package inmemory_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
	"github.com/quorate/quorate/component/pubsub/pubsubtest"
	"github.com/quorate/quorate/internal/fault"
)

func open(t *testing.T, o inmemory.Options) *inmemory.Broker {
	t.Helper()
	b := inmemory.Open(o)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestBroker_Conformance(t *testing.T) {
	pubsubtest.Run(t, func(t *testing.T) pubsub.Broker {
		t.Helper()
		return open(t, inmemory.Options{Concurrency: 20, RedeliverInterval: time.Millisecond})
	})
}

func publish(t *testing.T, b *inmemory.Broker, messages ...pubsub.Message) error {
	t.Helper()
	_, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: "orders", Messages: messages})
	return err
}

func subscribe(t *testing.T, b *inmemory.Broker, topic string) pubsub.Subscription {
	t.Helper()
	s, err := b.Subscribe(t.Context(), pubsub.SubscribeRequest{Topic: topic, Group: "app"})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func receive(t *testing.T, s pubsub.Subscription, limit int) []pubsub.Delivery {
	t.Helper()
	d, err := s.Receive(t.Context(), limit)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func large(id string) pubsub.Message {
	return pubsub.Message{ID: id, Data: []byte(strings.Repeat("x", 1000))}
}

func TestPublish_RefusesWhenFull(t *testing.T) {
	b := open(t, inmemory.Options{MaxBytes: 10_000})
	s := subscribe(t, b, "orders")
	n := 0
	for ; n < 100; n++ {
		if err := publish(t, b, large(fmt.Sprint(n))); err != nil {
			if !fault.Is(err, fault.Overloaded) || !strings.Contains(err.Error(), "topic_full") {
				t.Fatal(err)
			}
			break
		}
	}
	if n < 5 || n == 100 {
		t.Fatalf("%d messages of 1,000 bytes were stored in 10,000 bytes", n)
	}
	if err := publish(t, b, large("a"), large("b")); !fault.Is(err, fault.Overloaded) {
		t.Fatalf("a bulk that does not fit: %v", err)
	}
	first := receive(t, s, 1)[0]
	if first.ID != "0" {
		t.Errorf("the first message is %s: a message that was not acknowledged was removed", first.ID)
	}
	if err := s.Settle(t.Context(), &first, pubsub.Acknowledged); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, b, large("again")); err != nil {
		t.Errorf("there was room after an acknowledgement: %v", err)
	}
}

func TestPublish_WithoutGroupKeepsTheNewest(t *testing.T) {
	b := open(t, inmemory.Options{MaxBytes: 10_000})
	for n := range 100 {
		if err := publish(t, b, large(fmt.Sprint(n))); err != nil {
			t.Fatal(err)
		}
	}
	s := subscribe(t, b, "orders")
	var last pubsub.Delivery
	for last.ID != "99" {
		last = receive(t, s, 1)[0]
		if last.ID == "0" {
			t.Fatal("the oldest message is still there")
		}
		if err := s.Settle(t.Context(), &last, pubsub.Acknowledged); err != nil {
			t.Fatal(err)
		}
	}
}

func TestDeadLetter_OfFullBroker(t *testing.T) {
	b := open(t, inmemory.Options{MaxBytes: 3000})
	s, dead := subscribe(t, b, "orders"), subscribe(t, b, "dead")
	for _, id := range []string{"1", "2"} {
		if err := publish(t, b, large(id)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // each dead letter takes the room of its original
		d := receive(t, s, 1)[0]
		if err := s.DeadLetter(t.Context(), &d, "dead"); err != nil {
			t.Fatal(err)
		}
	}
	if err := publish(t, b, large("3")); !fault.Is(err, fault.Overloaded) {
		t.Errorf("dead letters lost their room: %v", err)
	}
	var got []string
	for range 2 {
		d := receive(t, dead, 1)[0]
		got = append(got, d.ID)
		if err := dead.Settle(t.Context(), &d, pubsub.Acknowledged); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("dead letters %q", got)
	}
	if err := publish(t, b, large("4"), large("5")); err != nil {
		t.Errorf("acknowledged dead letters keep their room: %v", err)
	}
}

func TestReceive_ConcurrencyOneKeepsEveryOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, inmemory.Options{Concurrency: 1})
		s := subscribe(t, b, "orders")
		if err := publish(t, b, pubsub.Message{ID: "1"}, pubsub.Message{ID: "2", Key: "k"}); err != nil {
			t.Fatal(err)
		}
		first := receive(t, s, 1)[0]
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if d, err := s.Receive(ctx, 1); !fault.Is(err, fault.Timeout) {
			t.Fatalf("a second message came before the first was settled: %v %v", d, err)
		}
		if err := s.Settle(t.Context(), &first, pubsub.Failed); err != nil {
			t.Fatal(err)
		}
		got := receive(t, s, 2)
		if len(got) != 2 || got[0].ID != "1" || got[1].ID != "2" || got[0].Sequence != got[1].Sequence {
			t.Errorf("after a failure: %+v", got)
		}
	})
}

func TestSettle_FailedWaitsLongerEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, inmemory.Options{})
		s := subscribe(t, b, "orders")
		if err := publish(t, b, pubsub.Message{ID: "1"}); err != nil {
			t.Fatal(err)
		}
		var waits []time.Duration
		for range 9 {
			start := time.Now()
			d := receive(t, s, 1)[0]
			waits = append(waits, time.Since(start))
			if err := s.Settle(t.Context(), &d, pubsub.Failed); err != nil {
				t.Fatal(err)
			}
		}
		want := []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(waits, want) {
			t.Errorf("waits %v, want %v", waits, want)
		}
	})
}

func TestPublish_ExpiredMessagesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, inmemory.Options{MaxBytes: 3000})
		subscribe(t, b, "orders")
		brief := large("brief")
		brief.TTL = time.Minute
		if err := publish(t, b, brief, brief); err != nil {
			t.Fatal(err)
		}
		if err := publish(t, b, large("1")); !fault.Is(err, fault.Overloaded) {
			t.Fatalf("a full topic: %v", err)
		}
		<-time.After(time.Minute)
		if err := publish(t, b, large("1")); err != nil {
			t.Errorf("expired messages keep their room: %v", err)
		}
	})
}

// A new message takes the place of all earlier messages of its topic. A group that subscribes later receives the new
// message.
func TestPublish_TakesPlaceOfAllMessagesOfTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, inmemory.Options{MaxBytes: 2000})
		for _, id := range []string{"first", "second"} {
			if err := publish(t, b, large(id)); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		list, err := subscribe(t, b, "orders").Receive(ctx, 10)
		if err != nil || len(list) != 1 || list[0].ID != "second" {
			t.Errorf("a new group receives %v, %v; want the second message", list, err)
		}
	})
}

// The number of topics has reached its limit. A new topic takes the place of the oldest topic without groups.
func TestPublish_NewTopicTakesPlaceOfUnusedOne(t *testing.T) {
	b := open(t, inmemory.Options{})
	send := func(topic string) {
		t.Helper()
		_, err := b.Publish(t.Context(), pubsub.PublishRequest{Topic: topic, Messages: []pubsub.Message{{ID: topic}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	used := subscribe(t, b, "used")
	send("used")
	for n := range 10_000 {
		send(fmt.Sprint(n))
	}
	receive(t, used, 1)
	for _, topic := range []string{"9999", "1"} {
		receive(t, subscribe(t, b, topic), 1)
	}
}

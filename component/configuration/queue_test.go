package configuration_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

func TestQueue_KeepsNewestValueOfEachKeyInOrder(t *testing.T) {
	q := configuration.NewQueue(func() {})
	for i := range 1000 {
		q.Put(configuration.Item{Key: fmt.Sprint(i % 2), Value: fmt.Sprint(i)})
	}
	items, err := q.Next(t.Context())
	if err != nil || len(items) != 2 || items[0].Value != "998" || items[1].Value != "999" {
		t.Fatalf("%v, %v", items, err)
	}
}

// Deleted items do not count towards MaxItems, so more than MaxWaiting keys can wait.
func TestQueue_OverflowEndsTheSubscription(t *testing.T) {
	q := configuration.NewQueue(func() {})
	for i := range configuration.MaxWaiting {
		q.Put(configuration.Item{Key: fmt.Sprint(i)})
	}
	if q.Overflow().Err() != nil {
		t.Fatal("the queue overflowed at its bound")
	}
	q.Put(configuration.Item{Key: "one more"})
	<-q.Overflow().Done()
	q.Put(configuration.Item{Key: "later"})
	if items, err := q.Next(t.Context()); len(items) > 0 || !fault.Is(err, fault.Overloaded) {
		t.Fatalf("%d items, %v", len(items), err)
	}
}

// An empty queue accepts any number of items, such as the initial items of a large store.
func TestQueue_AcceptsAnyNumberAtOnce(t *testing.T) {
	q := configuration.NewQueue(func() {})
	items := make([]configuration.Item, configuration.MaxWaiting+10)
	for i := range items {
		items[i].Key = fmt.Sprint(i)
	}
	q.Put(items...)
	if got, err := q.Next(t.Context()); err != nil || len(got) != len(items) {
		t.Fatalf("%d items, %v", len(got), err)
	}
}

func TestQueue_EndDeliversWhatWaits(t *testing.T) {
	ends := 0
	q := configuration.NewQueue(func() { ends++ })
	q.Put(configuration.Item{Key: "a", Version: "1"})
	q.Close()
	q.Close()
	if items, err := q.Next(t.Context()); err != nil || len(items) != 1 {
		t.Fatalf("%v, %v", items, err)
	}
	if _, err := q.Next(t.Context()); !fault.Is(err, fault.Unavailable) || ends != 1 {
		t.Fatalf("%v after %d ends", err, ends)
	}
}

func TestQueue_NextEndsWithItsContext(t *testing.T) {
	q := configuration.NewQueue(func() {})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := q.Next(ctx); !fault.Is(err, fault.Timeout) {
		t.Fatal(err)
	}
}

// Package configurationtest is the conformance suite for configuration stores. It tests the rules of the contract in
// package configuration, and every store must pass it. It starts no goroutines. The package owns these tests.
package configurationtest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

// Subject changes the items in the store under test, as a program other than the node would. Set creates or replaces
// items. Stores that implement configuration.Writer can use Written as their Subject.
type Subject interface {
	Set(t *testing.T, items ...configuration.Item) // items have no version
	Delete(t *testing.T, keys ...string)
}

// Traits describe what a store can do.
type Traits struct {
	Metadata    bool // items have metadata
	EmptyValues bool // a value may be empty
	NoVersions  bool // the store does not make versions
	Writes      bool // the store implements configuration.Writer
}

// Written is a Subject that changes items by calling the store's method Write.
type Written struct{ configuration.Writer }

// Set implements Subject.
func (w Written) Set(t *testing.T, items ...configuration.Item) {
	t.Helper()
	changes := make([]configuration.Change, len(items))
	for i := range items {
		changes[i] = configuration.Change{Item: items[i]}
	}
	w.write(t, changes)
}

// Delete implements Subject.
func (w Written) Delete(t *testing.T, keys ...string) {
	t.Helper()
	changes := make([]configuration.Change, len(keys))
	for i := range keys {
		changes[i] = configuration.Change{Item: configuration.Item{Key: keys[i]}, Delete: true}
	}
	w.write(t, changes)
}

func (w Written) write(t *testing.T, changes []configuration.Change) {
	t.Helper()
	if _, err := w.Write(t.Context(), configuration.WriteRequest{Changes: changes}); err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits for a change.
const patience = 30 * time.Second

// Run runs the suite. For each test, the function open must return an empty store, and a Subject that changes the items
// of this store. It must also arrange that the store is closed when the test ends.
func Run(t *testing.T, traits Traits, open func(t *testing.T) (configuration.Store, Subject)) {
	t.Helper()
	for name, test := range map[string]func(*testing.T, configuration.Store, Subject){
		"Get": testGet, "GetAll": testGetAll, "Subscribe": testSubscribe, "SubscribeAll": testSubscribeAll,
		"Unsubscribe": testUnsubscribe, "NewestValueWins": testNewest, "CloseEndsSubscriptions": testClose,
		"ContextEnds": testContext, "InitialAtOnce": testInitialAtOnce,
	} {
		t.Run(name, func(t *testing.T) {
			store, subject := open(t)
			test(t, store, subject)
		})
	}
	if traits.Metadata {
		t.Run("Metadata", func(t *testing.T) {
			store, subject := open(t)
			testMetadata(t, store, subject)
		})
	}
	if traits.EmptyValues {
		t.Run("EmptyValue", func(t *testing.T) {
			store, subject := open(t)
			testEmptyValue(t, store, subject)
		})
	}
	if !traits.NoVersions {
		t.Run("VersionsDiffer", func(t *testing.T) {
			store, subject := open(t)
			testVersions(t, store, subject)
		})
	}
	if traits.Writes {
		runWrites(t, open)
	}
}

func item(key, value string) configuration.Item { return configuration.Item{Key: key, Value: value} }

// values reads items and returns their values by key.
func values(t *testing.T, s configuration.Store, keys ...string) map[string]string {
	t.Helper()
	found, err := s.Get(t.Context(), configuration.GetRequest{Keys: keys, Strong: true})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, i := range found.Items {
		out[i.Key] = i.Value
	}
	return out
}

func expect(t *testing.T, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// Seen has the changes that a subscription has delivered.
type Seen struct {
	sub     configuration.Subscription
	Values  map[string]string
	Deleted map[string]bool
	All     []configuration.Item
}

// Listen subscribes to keys. Without keys, it subscribes to all items.
func Listen(t *testing.T, s configuration.Store, keys ...string) *Seen {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sub, err := s.Subscribe(ctx, configuration.SubscribeRequest{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sub.Close)
	return &Seen{sub: sub, Values: map[string]string{}, Deleted: map[string]bool{}}
}

// Until reads changes until done returns true. It fails the test if this takes longer than patience. The parameter what
// describes the expected changes in the error message.
func (s *Seen) Until(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !done() {
		items, err := s.sub.Next(ctx)
		if err != nil {
			t.Fatalf("waiting for %s: %v; seen %v", what, err, s.All)
		}
		for _, i := range items {
			s.All = append(s.All, i)
			if s.Deleted[i.Key] = i.Deleted(); i.Deleted() {
				delete(s.Values, i.Key)
			} else {
				s.Values[i.Key] = i.Value
			}
		}
	}
}

// Value reads changes until key has the given value.
func (s *Seen) Value(t *testing.T, key, value string) {
	t.Helper()
	s.Until(t, key+"="+value, func() bool { return s.Values[key] == value })
}

func testGet(t *testing.T, s configuration.Store, subject Subject) {
	subject.Set(t, item("a", "1"), item("b/c.d_e-f", "2"))
	expect(t, values(t, s, "a", "b/c.d_e-f", "absent"), map[string]string{"a": "1", "b/c.d_e-f": "2"})
	expect(t, values(t, s, "a", "a"), map[string]string{"a": "1"})
	expect(t, values(t, s, "absent"), map[string]string{})
	subject.Set(t, item("a", "3"))
	expect(t, values(t, s, "a"), map[string]string{"a": "3"})
	subject.Delete(t, "a")
	expect(t, values(t, s, "a"), map[string]string{})
}

func testGetAll(t *testing.T, s configuration.Store, subject Subject) {
	expect(t, values(t, s), map[string]string{})
	want := map[string]string{}
	var items []configuration.Item
	for i := range 70 {
		items = append(items, item(fmt.Sprintf("key%d", i), fmt.Sprint(i)))
		want[items[i].Key] = items[i].Value
	}
	subject.Set(t, items...)
	expect(t, values(t, s), want)
}

func testSubscribe(t *testing.T, s configuration.Store, subject Subject) {
	subject.Set(t, item("a", "old"), item("b", "old"))
	seen := Listen(t, s, "a", "new")
	subject.Set(t, item("b", "unseen"))
	subject.Set(t, item("a", "1"))
	seen.Value(t, "a", "1")
	subject.Set(t, item("new", "2"))
	seen.Value(t, "new", "2")
	subject.Delete(t, "a")
	seen.Until(t, "the end of a", func() bool { return seen.Deleted["a"] })
	for _, i := range seen.All {
		if i.Key == "b" || i.Value == "old" {
			t.Errorf("delivered %+v, which was not requested", i)
		}
	}
}

func testSubscribeAll(t *testing.T, s configuration.Store, subject Subject) {
	subject.Set(t, item("a", "old"))
	seen, second := Listen(t, s), Listen(t, s)
	subject.Set(t, item("later", "1"))
	subject.Set(t, item("a", "2"))
	for _, one := range []*Seen{seen, second} {
		one.Value(t, "later", "1")
		one.Value(t, "a", "2")
	}
}

func testUnsubscribe(t *testing.T, s configuration.Store, subject Subject) {
	gone, stays := Listen(t, s), Listen(t, s)
	gone.sub.Close()
	gone.sub.Close()
	subject.Set(t, item("a", "1"))
	stays.Value(t, "a", "1")
	if items, err := gone.sub.Next(t.Context()); err == nil {
		t.Errorf("a closed subscription delivered %v", items)
	}
}

// testNewest writes a key faster than the subscription is read. The subscription may skip values, but it must never
// deliver an older value after a newer one, and it must deliver the newest value.
func testNewest(t *testing.T, s configuration.Store, subject Subject) {
	seen := Listen(t, s, "a", "b")
	for i := range 50 {
		subject.Set(t, item("a", fmt.Sprint(i)))
	}
	subject.Set(t, item("b", "end"))
	seen.Value(t, "b", "end")
	seen.Value(t, "a", "49")
	last := -1
	for _, i := range seen.All {
		var n int
		if i.Key != "a" {
			continue
		}
		if _, err := fmt.Sscan(i.Value, &n); err != nil || n <= last {
			t.Fatalf("%q came after %d", i.Value, last)
		}
		last = n
	}
}

func testClose(t *testing.T, s configuration.Store, _ Subject) {
	seen := Listen(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := seen.sub.Next(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("the subscription ended with %v", err)
	}
	if _, err := s.Subscribe(t.Context(), configuration.SubscribeRequest{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a closed store answers %v", err)
	}
}

func testContext(t *testing.T, s configuration.Store, subject Subject) {
	seen := Listen(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := seen.sub.Next(ctx); !fault.Is(err, fault.Timeout) {
		t.Errorf("Next returned %v", err)
	}
	subject.Set(t, item("a", "1")) // the subscription must still work
	seen.Value(t, "a", "1")
}

func testMetadata(t *testing.T, s configuration.Store, subject Subject) {
	want := map[string]string{"owner": "shop", "unit": "Grüße"}
	seen := Listen(t, s)
	i := item("a", "1")
	i.Metadata = want
	subject.Set(t, i)
	found, err := s.Get(t.Context(), configuration.GetRequest{Keys: []string{"a"}, Strong: true})
	if err != nil || len(found.Items) != 1 || !maps.Equal(found.Items[0].Metadata, want) {
		t.Errorf("%+v, %v", found, err)
	}
	seen.Value(t, "a", "1")
	if got := seen.All[len(seen.All)-1].Metadata; !maps.Equal(got, want) {
		t.Errorf("delivered with %v", got)
	}
}

func testEmptyValue(t *testing.T, s configuration.Store, subject Subject) {
	subject.Set(t, item("a", ""))
	expect(t, values(t, s, "a"), map[string]string{"a": ""})
}

func testVersions(t *testing.T, s configuration.Store, subject Subject) {
	var versions []string
	for i := range 3 {
		subject.Set(t, item("a", fmt.Sprint(i)))
		found, err := s.Get(t.Context(), configuration.GetRequest{Keys: []string{"a"}, Strong: true})
		if err != nil || len(found.Items) != 1 {
			t.Fatal(found, err)
		}
		if v := found.Items[0].Version; v == "" || slices.Contains(versions, v) {
			t.Errorf("version %q after %q", v, versions)
		}
		versions = append(versions, found.Items[0].Version)
	}
}

func testInitialAtOnce(t *testing.T, s configuration.Store, subject Subject) {
	subject.Set(t, configuration.Item{Key: "a", Value: "1"}, configuration.Item{Key: "b", Value: "1"})
	sub, err := s.Subscribe(t.Context(), configuration.SubscribeRequest{Initial: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sub.Close)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if items, err := sub.Next(ended); err != nil || len(items) != 2 {
		t.Errorf("present at once: %v, %v", items, err)
	}
}

package configurations

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

// emptied is a configuration store whose items were all deleted after the first subscription.
type emptied struct {
	first   *configuration.Queue
	current *configuration.Queue // of the last subscription
}

func (e *emptied) ConfigurationStore(string) (*configuration.Instance, bool) {
	return e.ConfigurationStores()[0], true
}
func (e *emptied) ConfigurationStores() []*configuration.Instance {
	return []*configuration.Instance{{Name: "configstore", Store: e}}
}
func (e *emptied) Loaded() bool                       { return true }
func (e *emptied) Outbound(string) *resiliency.Policy { return nil }
func (e *emptied) Inbound(string) *resiliency.Policy  { return nil }
func (e *emptied) Close() error                       { return nil }
func (e *emptied) Get(context.Context, configuration.GetRequest) (configuration.Found, error) {
	return configuration.Found{}, nil
}
func (e *emptied) Subscribe(context.Context, configuration.SubscribeRequest) (configuration.Subscription, error) {
	e.current = configuration.NewQueue(func() {})
	if e.first == nil {
		e.first = e.current
	}
	return e.current, nil
}

// If an application takes no changes, its subscription overflows. Afterwards, the subscription still reports every
// deletion that it dropped.
func TestCallbacks_KeepDeletionsThroughOverflow(t *testing.T) {
	const keys = 2*configuration.MaxWaiting + 1
	store := &emptied{}
	c := New(Options{App: api.App{ID: "a"}, Stores: store, Policies: store,
		Metrics: NewMetrics(), Logger: slog.New(slog.DiscardHandler)})
	s, failure := c.subscribe(t.Context(), Request{Store: "configstore"}, subscribedHTTP)
	if failure != nil {
		t.Fatal(failure)
	}
	defer s.Close()
	s.expect()
	items := make([]configuration.Item, keys)
	for i := range items {
		items[i] = configuration.Item{Key: fmt.Sprint("key-", i), Value: "1", Version: "1"}
	}
	store.first.Put(items...) // all at once, which never overflows
	if got, err := s.next(t.Context()); err != nil || len(got) != keys {
		t.Fatalf("got %d items, %v", len(got), err)
	}
	overflow := store.first.Overflow()
	for i := range items {
		store.first.Put(configuration.Item{Key: items[i].Key})
	}
	if overflow.Err() == nil {
		t.Fatal("the queue did not overflow, so the test shows nothing")
	}
	deleted, err := s.next(t.Context())
	for i := range deleted {
		if !deleted[i].Deleted() {
			t.Fatalf("%+v is no deletion", deleted[i])
		}
	}
	if err != nil || len(deleted) != keys || len(s.known) != 0 {
		t.Errorf("got %d deletions of %d, %v; %d keys are still expected", len(deleted), keys, err, len(s.known))
	}
}

// deletedLate is a configuration store in which the key k is deleted after a subscription has its current items, and
// before they are read.
type deletedLate struct{ emptied }

func (d *deletedLate) ConfigurationStore(string) (*configuration.Instance, bool) {
	return &configuration.Instance{Name: "configstore", Store: d}, true
}
func (d *deletedLate) Subscribe(ctx context.Context, r configuration.SubscribeRequest) (configuration.Subscription,
	error) {
	sub, err := d.emptied.Subscribe(ctx, r)
	d.current.Put(configuration.Item{Key: "k", Value: "old", Version: "1"})
	return sub, err
}
func (d *deletedLate) Get(context.Context, configuration.GetRequest) (configuration.Found, error) {
	d.current.Put(configuration.Item{Key: "k"})
	return configuration.Found{}, nil
}

// A renewed subscription must not report a deletion and then an older value of the key.
func TestStream_RenewedSubscriptionReportsDeletionLast(t *testing.T) {
	store := &deletedLate{}
	c := New(Options{App: api.App{ID: "a"}, Stores: store, Policies: store,
		Metrics: NewMetrics(), Logger: slog.New(slog.DiscardHandler)})
	s, failure := c.subscribe(t.Context(), Request{Store: "configstore"}, subscribedHTTP)
	if failure != nil {
		t.Fatal(failure)
	}
	defer s.Close()
	s.expect()
	if _, err := s.next(t.Context()); err != nil { // k exists
		t.Fatal(err)
	}
	s.known["gone"] = true // another key, which no longer exists
	store.current.Fail(fault.New(fault.Unavailable, "test.Next", "the component was replaced"))
	var got []configuration.Item
	for len(got) < 3 {
		items, err := s.next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, items...)
	}
	want := []configuration.Item{{Key: "gone"}, {Key: "k", Value: "old", Version: "1"}, {Key: "k"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the subscription reports %+v, want %+v", got, want)
	}
}

// While too many changes wait for the application, callbacks take no more from the subscription.
func TestCallbacks_TakeNoMoreWhileManyWait(t *testing.T) {
	p := &callbacks{waiting: map[string]*callback{}}
	changes := make(chan []configuration.Item)
	if p.source(changes) == nil {
		t.Error("no changes are taken at the start")
	}
	for i := range configuration.MaxWaiting {
		p.waiting[fmt.Sprint(i)] = &callback{}
	}
	if p.source(changes) != nil {
		t.Error("more changes are taken")
	}
}

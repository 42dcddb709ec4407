package pubsub_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
	broker "github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
	"github.com/quorate/quorate/component/state"
	stateinmemory "github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// outsideStore is a store that cannot take part in transactions. A test changes what its transactions do.
type outsideStore struct {
	*stateinmemory.Store
	transact func(ctx context.Context, r state.TransactRequest) (state.Written, error)
	// partition is the value of the metadata partitionKey that all requests must have, as for a store that finds a key
	// only in its partition.
	partition string
	// behind makes reads of keys return nothing, as for a replica that is behind.
	behind atomic.Bool
}

// in returns fault.Invalid unless the metadata names the partition of the store.
func (s *outsideStore) in(metadata map[string]string) error {
	if s.partition != "" && metadata["partitionKey"] != s.partition {
		return fault.New(fault.Invalid, "test", "the request is for another partition")
	}
	return nil
}

func (s *outsideStore) Get(ctx context.Context, r state.GetRequest) (state.Item, error) {
	if s.in(r.Metadata) != nil || s.behind.Load() {
		return state.Item{Key: r.Key}, nil
	}
	return s.Store.Get(ctx, r)
}

func (s *outsideStore) Set(ctx context.Context, r state.SetRequest) (state.Written, error) {
	for i := range r.Items {
		if err := s.in(r.Items[i].Metadata); err != nil {
			return state.Written{}, err
		}
	}
	return s.Store.Set(ctx, r)
}

func (s *outsideStore) Delete(ctx context.Context, r state.DeleteRequest) (state.Written, error) {
	if s.in(r.Metadata) != nil {
		return state.Written{}, nil
	}
	return s.Store.Delete(ctx, r)
}

func (s *outsideStore) Transact(ctx context.Context, r state.TransactRequest) (state.Written, error) {
	if s.transact != nil {
		return s.transact(ctx, r)
	}
	if err := s.in(r.Metadata); err != nil {
		return state.Written{}, err
	}
	return s.Store.Transact(ctx, r)
}

// forgetful is a broker that stores only the data and the key of a message.
type forgetful struct {
	broker.Broker
	rig *markedRig
}

func (f forgetful) Publish(ctx context.Context, r broker.PublishRequest) ([]broker.Failure, error) {
	r.Messages = slices.Clone(r.Messages)
	for i := range r.Messages {
		r.Messages[i] = broker.Message{Data: r.Messages[i].Data, Key: r.Messages[i].Key}
	}
	if f.rig.forge != nil {
		forged := make([]broker.Message, len(r.Messages))
		for i := range forged {
			forged[i] = broker.Message{Data: f.rig.forge(r.Messages[i].Data), Key: r.Messages[i].Key}
		}
		r.Messages = append(forged, r.Messages...)
	}
	if !f.rig.full {
		return f.Broker.Publish(ctx, r)
	}
	r.Messages = r.Messages[:1]
	_, err := f.Broker.Publish(ctx, r)
	return []broker.Failure{{Index: 1, Err: fault.New(fault.Overloaded, "test", "there is no room")}}, err
}

// markedRig has an application whose store and broker cannot take part in transactions.
type markedRig struct {
	*api.State
	store      *outsideStore
	target     *outside
	internal   *inmemory.Broker
	instance   *state.Instance
	full       bool                // the internal topic stores only the first message of a request
	forge      func([]byte) []byte // returns a message that an attacker publishes before each one; nil = none
	subscriber *pubsub.Subscriber
}

func newMarked(t *testing.T) *markedRig {
	t.Helper()
	r := &markedRig{store: &outsideStore{Store: stateinmemory.Open(stateinmemory.Options{})}, target: &outside{},
		internal: inmemory.Open(inmemory.Options{})}
	all := source{{Name: "redis", Type: "pubsub.x", Broker: r.target},
		{Name: "log", Broker: forgetful{r.internal, r}}}
	stores := ledgers{{Name: "store", Type: "state.x", Store: r.store, Features: state.FeaturesOf(r.store),
		Outbox: &state.Outbox{PubSub: "redis", Topic: "orders", Internal: "log"}}}
	r.instance = stores[0]
	app := api.App{ID: "shop"}
	r.State = api.NewState(app, stores, api.Limits{}).Publish(pubsub.New(pubsub.Options{App: app, Source: all}))
	r.subscriber = pubsub.NewSubscriber(pubsub.SubscriberOptions{App: app, Source: all,
		Outboxes: func() []*state.Instance { return stores }, Logger: slog.New(slog.DiscardHandler)})
	r.subscriber.Open(nil)
	t.Cleanup(func() {
		testutil.Must(t, r.subscriber.Close(context.Background()))
		testutil.Must(t, r.internal.Close())
		testutil.Must(t, r.store.Close())
	})
	return r
}

func (r *markedRig) set(t *testing.T, key, value string) error {
	t.Helper()
	_, err := r.Transact(t.Context(), api.TransactRequest{Store: "store", Operations: []api.Operation{
		upsert(key, `"`+value+`"`, map[string]string{"partitionKey": "k"})},
		StoreMetadata: map[string]string{"partitionKey": "p"}})
	return err
}

// keys returns the stored keys.
func (r *markedRig) keys(t *testing.T) (out []string) {
	t.Helper()
	page, err := r.store.List(t.Context(), state.ListRequest{})
	testutil.Must(t, err)
	for _, item := range page.Items {
		out = append(out, item.Key)
	}
	return out
}

func (r *markedRig) want(t *testing.T, events, keys []string) {
	t.Helper()
	if got := r.target.data(); !slices.Equal(got, events) {
		t.Errorf("published %q, want %q", got, events)
	}
	if got := r.keys(t); !slices.Equal(got, keys) {
		t.Errorf("the store has %q, want %q", got, keys)
	}
}

func TestMarker_EventsOfCommittedTransactionsArePublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		testutil.Must(t, r.set(t, "a", "1"))
		testutil.Must(t, r.set(t, "b", "2"))
		<-time.After(time.Second)
		r.want(t, []string{"1", "2"}, []string{"shop||a", "shop||b"})
		if m := r.target.got[0]; m.Metadata != nil || m.Key != "k" || !strings.HasPrefix(m.ID, "outbox-") {
			t.Errorf("the event is %+v", m)
		}
	})
}

func TestMarker_RefusedTransactionPublishesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.store.transact = func(context.Context, state.TransactRequest) (state.Written, error) {
			return state.Written{}, fault.New(fault.Conflict, "test", "the item has another ETag")
		}
		if err := r.set(t, "a", "1"); err == nil {
			t.Error("the transaction succeeded")
		}
		r.store.transact = nil
		begun := time.Now()
		testutil.Must(t, r.set(t, "b", "2")) // has the same sequence, and does not wait for the first one
		synctest.Wait()
		for len(r.target.data()) == 0 && time.Since(begun) < time.Minute {
			<-time.After(time.Millisecond)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the next event waited %s", took)
		}
		<-time.After(2 * time.Hour) // markers of discarded events expire
		r.want(t, []string{"2"}, []string{"shop||b"})
	})
}

// A transaction that fails the checks of the node has no event in the internal topic. Otherwise the store would have
// the marker of a discarded event.
func TestMarker_ChecksComeBeforeEvents(t *testing.T) {
	locked := map[string]string{api.MetadataLock: "no token"}
	for name, request := range map[string]api.TransactRequest{
		"acknowledgement":             {Acks: []string{"log/token"}},
		"acknowledgement in metadata": {StoreMetadata: map[string]string{api.MetadataAck: "log/token"}},
		"lock":                        {WriteOptions: api.WriteOptions{Locks: []string{"no token"}}},
		"unknown lock":                {WriteOptions: api.WriteOptions{Locks: []string{"locks/a@1"}}},
		"lock in metadata":            {StoreMetadata: locked},
		"lock of an operation":        {Operations: []api.Operation{upsert("b", "2", locked)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newMarked(t)
				request.Store = "store"
				request.Operations = append(request.Operations, upsert("a", "1", nil))
				_, err := r.Transact(t.Context(), request)
				if failure := api.AsError(err); err == nil || failure.Kind != api.Malformed {
					t.Errorf("%v", err)
				}
				r.want(t, nil, nil)
			})
		})
	}
}

// A node that ends between the publish to the internal topic and the commit leaves an event without a transaction. The
// relay discards the event, and a late transaction fails.
func TestMarker_EventWithoutTransactionIsDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		var late state.TransactRequest
		r.store.transact = func(_ context.Context, q state.TransactRequest) (state.Written, error) {
			late = q
			return state.Written{}, fault.New(fault.Indeterminate, "test", "the connection was lost")
		}
		if err := r.set(t, "a", "1"); err == nil {
			t.Error("the transaction succeeded")
		}
		<-time.After(time.Minute)
		if _, err := r.store.Store.Transact(t.Context(), late); !fault.Is(err, fault.Conflict) {
			t.Errorf("a transaction whose event was discarded: %v", err)
		}
		<-time.After(2 * time.Hour)
		r.want(t, nil, nil)
	})
}

func TestMarker_TransactionWithUnknownOutcomeIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.store.transact = func(ctx context.Context, q state.TransactRequest) (state.Written, error) {
			<-time.After(doubtTime - time.Second)
			_, err := r.store.Store.Transact(ctx, q)
			testutil.Must(t, err)
			return state.Written{}, fault.New(fault.Indeterminate, "test", "the connection was lost")
		}
		if err := r.set(t, "a", "1"); err == nil {
			t.Error("the transaction succeeded")
		}
		<-time.After(time.Minute)
		r.want(t, []string{"1"}, []string{"shop||a"})
	})
}

// doubtTime is how long the relay of an event waits for its transaction.
const doubtTime = 10 * time.Second

func TestMarker_SlowTransactionIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.store.transact = func(ctx context.Context, q state.TransactRequest) (state.Written, error) {
			<-time.After(2 * doubtTime)
			return r.store.Store.Transact(ctx, q)
		}
		err := r.set(t, "a", "1")
		if err == nil || !strings.Contains(err.Error(), "took so long") {
			t.Errorf("a transaction that took %s: %v", 2*doubtTime, err)
		}
		<-time.After(2 * time.Hour)
		r.want(t, nil, nil)
	})
}

// While the target broker refuses events, they stay in the internal topic. Later, each of them is published once.
func TestMarker_RepeatedEventsWaitForTheBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.target.refuse = func(n int, _ *broker.Message) error {
			if n < 4 {
				return fault.New(fault.Unavailable, "test", "the broker is away")
			}
			return nil
		}
		testutil.Must(t, r.set(t, "a", "1"))
		testutil.Must(t, r.set(t, "b", "2"))
		<-time.After(time.Minute)
		r.want(t, []string{"1", "2"}, []string{"shop||a", "shop||b"})
	})
}

func TestMarker_NoTransactionWithoutInternalTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		testutil.Must(t, r.internal.Close())
		if err := r.set(t, "a", "1"); err == nil || !strings.Contains(err.Error(), "outbox") {
			t.Errorf("without the broker of the internal topic: %v", err)
		}
		<-time.After(2 * time.Hour) // the marker of the event, which the broker may have, expires
		r.want(t, nil, nil)
	})
}

// Requests about markers carry the metadata of the transaction. Cosmos DB finds a key only in the partition that the
// metadata names.
func TestMarker_StoreWithPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.store.partition = "p"
		testutil.Must(t, r.set(t, "a", "1"))
		<-time.After(time.Second)
		r.want(t, []string{"1"}, []string{"shop||a"})
		r.store.transact = func(context.Context, state.TransactRequest) (state.Written, error) {
			return state.Written{}, fault.New(fault.Conflict, "test", "the item has another ETag")
		}
		if err := r.set(t, "b", "2"); err == nil {
			t.Error("the transaction succeeded")
		}
		<-time.After(2 * time.Hour)
		r.want(t, []string{"1"}, []string{"shop||a"})
	})
}

// Any program with access to the broker can write to the internal topic. Such messages neither publish events nor name
// keys of the application.
func TestMarker_ForeignMessagesAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		_, err := r.store.Store.Set(t.Context(), state.SetRequest{Items: []state.Write{
			{Key: "shop||quorate||outbox-", Value: []byte(`"committed"`)},
			{Key: "shop||quorate||../a", Value: []byte(`"committed"`)}}})
		testutil.Must(t, err)
		before := r.keys(t)
		for _, text := range []string{"", "x", "null", "[]", `{"id":1}`, `{"id":"outbox-","store":"store"}`,
			`{"id":"../a","store":"store"}`,
			`{"id":"outbox-urn:uuid:f47ac10b-58cc-4372-8567-0e02b2c3d4","store":"store"}`,
			`{"id":"outbox-f47ac10b-58cc-4372-8567-0e02b2c3d479","store":"store","begun":"2999-01-01T00:00:00Z",` +
				`"event":"e30="}`} {
			_, err := r.internal.Publish(t.Context(), broker.PublishRequest{Topic: markedTopic,
				Messages: []broker.Message{{Data: []byte(text)}}})
			testutil.Must(t, err)
		}
		testutil.Must(t, r.set(t, "a", "1"))
		<-time.After(2 * time.Hour)
		r.want(t, []string{"1"}, append([]string{"shop||a"}, before...))
	})
}

const markedTopic = "quorate||marked||||shop||redis||orders"

func TestMarker_KeyWithAnotherValue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.store.transact = func(ctx context.Context, q state.TransactRequest) (state.Written, error) {
			for i := range q.Operations {
				q.Operations[i].Value = []byte(`"changed"`)
			}
			return r.store.Store.Transact(ctx, q)
		}
		testutil.Must(t, r.set(t, "a", "1"))
		<-time.After(time.Minute)
		if got := r.target.data(); got != nil {
			t.Errorf("published %q", got)
		}
		if keys := r.keys(t); len(keys) != 2 { // the operator can look at it
			t.Errorf("the store has %q", keys)
		}
	})
}

func TestMarker_BrokerWithoutRoomForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.full = true
		_, err := r.Transact(t.Context(), api.TransactRequest{Store: "store", Operations: []api.Operation{
			upsert("a", `"1"`, nil), upsert("b", `"2"`, nil)}})
		if err == nil || !strings.Contains(err.Error(), "no room") {
			t.Errorf("one of two events was stored: %v", err)
		}
		r.full = false
		begun := time.Now()
		testutil.Must(t, r.set(t, "c", "3"))
		for len(r.target.data()) == 0 && time.Since(begun) < time.Minute {
			<-time.After(time.Millisecond)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the next event waited %s", took)
		}
		<-time.After(2 * time.Hour)
		r.want(t, []string{"3"}, []string{"shop||c"})
	})
}

func TestMarker_StoreWithoutETags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.instance.Features = nil
		if err := r.set(t, "a", "1"); err == nil || !strings.Contains(err.Error(), "no ETags") {
			t.Errorf("a store without ETags: %v", err)
		}
		<-time.After(time.Minute)
		r.want(t, nil, nil)
	})
}

// A program that reads the internal topic can send another event with the id of a real one. Only the real event is
// published.
func TestMarker_AnotherEventWithTheSameID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.forge = func(data []byte) []byte {
			var fields map[string]any
			testutil.Must(t, json.Unmarshal(data, &fields))
			fields["event"] = []byte(`{"data":"forged"}`)
			out, err := json.Marshal(fields)
			testutil.Must(t, err)
			return out
		}
		testutil.Must(t, r.set(t, "a", "1"))
		<-time.After(2 * time.Hour)
		r.want(t, []string{"1"}, []string{"shop||a"})
	})
}

// The reads of a store may be behind its writes. An event waits until a read returns its marker.
func TestMarker_StoreWithReadsThatAreBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newMarked(t)
		r.store.behind.Store(true)
		testutil.Must(t, r.set(t, "a", "1"))
		<-time.After(2 * doubtTime)
		r.want(t, nil, []string{"shop||a", "shop||quorate||" + r.marker(t)})
		r.store.behind.Store(false)
		<-time.After(time.Minute)
		r.want(t, []string{"1"}, []string{"shop||a"})
	})
}

// marker returns the id of the event of the only marker in the store.
func (r *markedRig) marker(t *testing.T) string {
	t.Helper()
	for _, key := range r.keys(t) {
		if id, ok := strings.CutPrefix(key, "shop||quorate||"); ok {
			return id
		}
	}
	t.Error("the store has no marker")
	return ""
}

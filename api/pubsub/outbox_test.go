package pubsub_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
	broker "github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// staging is a broker that takes part in transactions. It keeps what was staged.
type staging struct {
	broker.Broker
	topic  string
	staged []broker.Message
	acked  []string
}

func (s *staging) StagePublish(_ context.Context, r broker.PublishRequest) (state.Effect, error) {
	s.topic, s.staged = r.Topic, r.Messages
	return stagedEffect{}, nil
}

func (s *staging) StageAck(_ context.Context, r broker.AckRequest) (state.Effect, error) {
	if r.Token == "old" {
		return nil, fault.New(fault.DeliverySettled, "topics.Acknowledge", "the message of the token is settled")
	}
	if !r.Allowed("orders") || r.Allowed("hidden") {
		return nil, fault.New(fault.Internal, "test", "the scopes of subscriptions do not count")
	}
	s.acked = append(s.acked, r.Group+" "+r.Token)
	return stagedEffect{}, nil
}

type stagedEffect struct{}

func (stagedEffect) Effect() string { return "events" }

// ledger is a state store that keeps the last transaction.
type ledger struct {
	state.Store
	got state.TransactRequest
	err error
}

func (l *ledger) Transact(_ context.Context, r state.TransactRequest) (state.Written, error) {
	l.got = r
	return state.Written{}, l.err
}

type ledgers []*state.Instance

func (l ledgers) StateStore(name string) (*state.Instance, bool) {
	for _, i := range l {
		if i.Name == name {
			return i, true
		}
	}
	return nil, false
}

func (l ledgers) StateStores() []*state.Instance      { return l }
func (l ledgers) ActorStore() (*state.Instance, bool) { return nil, false }
func (l ledgers) Loaded() bool                        { return true }
func upsert(key, value string, metadata map[string]string) api.Operation {
	return api.Operation{Name: api.OperationUpsert, Item: api.Item{Key: key, Value: []byte(value), JSON: true,
		Metadata: metadata}}
}

type outboxRig struct {
	*api.State
	store  *ledger
	broker *staging
}

func newOutbox(t *testing.T) *outboxRig {
	t.Helper()
	r := &outboxRig{store: &ledger{}, broker: &staging{Broker: newRig(t).messages}}
	box := func(name, topic string) *state.Outbox {
		return &state.Outbox{PubSub: name, Topic: topic}
	}
	topics := pubsub.New(pubsub.Options{App: api.App{ID: "shop"}, Source: source{
		{Name: "messages", Broker: r.broker, Topics: broker.Topics{Protected: []string{"secret"},
			Subscribed: map[string][]string{"shop": {"orders"}}}},
		{Name: "simple", Type: "pubsub.simple", Broker: simple{r.broker.Broker}}},
		Now: func() time.Time { return time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC) }})
	r.State = api.NewState(api.App{ID: "shop"}, ledgers{
		{Name: "store", Store: r.store, Effects: true, Outbox: box("messages", "orders")},
		{Name: "plain", Store: r.store, Effects: true},
		{Name: "secret", Store: r.store, Effects: true, Outbox: box("messages", "secret")},
		{Name: "nowhere", Store: r.store, Effects: true, Outbox: box("unknown", "orders")},
		{Name: "simple", Type: "state.x", Store: r.store, Effects: true,
			Outbox: &state.Outbox{PubSub: "simple", Topic: "orders", Internal: "unknown"}},
		{Name: "outside", Type: "state.x", Store: r.store}},
		api.Limits{}).Publish(topics)
	return r
}

func (r *outboxRig) transact(t *testing.T, store string, ops ...api.Operation) error {
	t.Helper()
	_, err := r.Transact(t.Context(), api.TransactRequest{Store: store, Operations: ops,
		Header: http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}})
	return err
}

// events checks the attributes that every event has, and returns the staged events without them.
func (r *outboxRig) events(t *testing.T) (out []map[string]any) {
	t.Helper()
	for _, m := range r.broker.staged {
		var e map[string]any
		if err := json.Unmarshal(m.Data, &e); err != nil {
			t.Fatal(err)
		}
		id, _ := e["id"].(string)
		if !strings.HasPrefix(id, "outbox-") || id != m.ID || m.ContentType != "application/cloudevents+json" {
			t.Errorf("the message %s of type %s has the event %s", m.ID, m.ContentType, id)
		}
		for name, want := range map[string]string{"source": "shop", "specversion": "1.0", "topic": "orders",
			"pubsubname": "messages", "time": "2030-01-02T03:04:05Z", "tracestate": "",
			"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"} {
			if e[name] != want {
				t.Errorf("%s is %v instead of %s", name, e[name], want)
			}
			delete(e, name)
		}
		delete(e, "id")
		delete(e, "traceid")
		if m.Key != "" {
			e["(key)"] = m.Key
		}
		out = append(out, e)
	}
	return out
}

func TestOutbox_Events(t *testing.T) {
	r := newOutbox(t)
	err := r.transact(t, "store",
		upsert("a", `{"n":12345678901234567890}`, map[string]string{"contentType": "application/json",
			"type": "mine", "id": "x", "data": "y", "data_base64": "z", "topic": "other", "partitionKey": "k",
			"outbox.cloudevent.myapp": "m"}),
		upsert("text", `"hello"`, nil),
		upsert("projected", `1`, map[string]string{"subject": "s"}),
		upsert("projected", `{"public":1}`, map[string]string{"outbox.projection": "true", "subject": "no",
			"contentType": "application/json"}),
		upsert("binary", `"AAEC"`, map[string]string{"contentType": "application/octet-stream"}),
		api.Operation{Name: api.OperationDelete, Item: api.Item{Key: "gone"}})
	if err != nil {
		t.Fatal(err)
	}
	const typ = "com.dapr.event.sent"
	want := []map[string]any{
		{"type": "mine", "datacontenttype": "application/json", "contentType": "application/json",
			"data": map[string]any{"n": 12345678901234567890.0}, "partitionKey": "k", "(key)": "k",
			"outbox.cloudevent.myapp": "m"},
		{"type": typ, "datacontenttype": "text/plain", "data": "hello"},
		{"type": typ, "datacontenttype": "application/json", "data": map[string]any{"public": 1.0}, "subject": "s"},
		{"type": typ, "datacontenttype": "application/octet-stream", "contentType": "application/octet-stream",
			"data_base64": "AAEC"},
	}
	if diff := cmp.Diff(want, r.events(t)); diff != "" {
		t.Errorf("events (-want +got)\n%s", diff)
	}
	var stored []string
	for _, o := range r.store.got.Operations {
		stored = append(stored, o.Key+"="+string(o.Value))
	}
	if diff := cmp.Diff([]string{`shop||a={"n":12345678901234567890}`, `shop||text="hello"`, "shop||projected=1",
		"shop||binary=\x00\x01\x02", "shop||gone="}, stored); diff != "" {
		t.Errorf("operations (-want +got)\n%s", diff)
	}
	if len(r.store.got.Effects) != 1 || r.broker.topic != "orders" {
		t.Errorf("%d effects, topic %s", len(r.store.got.Effects), r.broker.topic)
	}
	if !strings.Contains(string(r.broker.staged[0].Data), `{"n":12345678901234567890}`) {
		t.Error("the number has lost digits")
	}
}

func TestOutbox_Nothing(t *testing.T) {
	r := newOutbox(t)
	if err := r.transact(t, "store", api.Operation{Name: api.OperationDelete, Item: api.Item{Key: "a"}}); err != nil ||
		len(r.store.got.Effects) != 0 || len(r.store.got.Operations) != 1 {
		t.Errorf("a deletion: %v, %+v", err, r.store.got)
	}
	if err := r.transact(t, "plain", upsert("a", "1", map[string]string{"outbox.projection": "true"})); err != nil ||
		len(r.store.got.Effects) != 0 || len(r.store.got.Operations) != 1 {
		t.Errorf("a store without an outbox: %v, %+v", err, r.store.got)
	}
	r.store.got = state.TransactRequest{}
	if err := r.transact(t, "store", upsert("a", "1", map[string]string{"outbox.projection": "1"})); err != nil ||
		len(r.store.got.Operations) != 0 {
		t.Errorf("only a projection: %v, %+v", err, r.store.got)
	}
}

func TestOutbox_Errors(t *testing.T) {
	r := newOutbox(t)
	large := map[string]string{"a": strings.Repeat("x", 65<<10)}
	for store, want := range map[string]string{
		"secret":  "ERR_PUBSUB_FORBIDDEN topic secret is not allowed for app id shop",
		"nowhere": "ERR_PUBLISH_OUTBOX error while publishing outbox message: pubsub unknown is not found",
		"simple":  "ERR_PUBLISH_OUTBOX error while publishing outbox message: the events of state store simple of type",
		"store":   "ERR_PUBLISH_OUTBOX error while publishing outbox message: the metadata has",
	} {
		err := r.transact(t, store, upsert("a", "1", large))
		var failure *api.Error
		if !errors.As(err, &failure) || !strings.HasPrefix(failure.Code+" "+failure.Message, want) ||
			r.store.got.Operations != nil {
			t.Errorf("%s: %v; operations: %v", store, err, r.store.got.Operations)
		}
	}
	r.store.err = fault.New(fault.Overloaded, "topics.Publish", "topic_full: topic orders has as much as it may have")
	err := r.transact(t, "store", upsert("a", "1", nil))
	var failure *api.Error
	if !errors.As(err, &failure) || failure.Kind != api.Unavailable ||
		!strings.Contains(failure.Message, "topic_full") {
		t.Errorf("a full topic: %v", err)
	}
}

func TestAcknowledge_InTransaction(t *testing.T) {
	many := "messages/a"
	for i := range api.MaxAcks {
		many += ",messages/" + strings.Repeat("b", i+1)
	}
	for name, c := range map[string]struct {
		store, failure string
		kind           api.Kind
		acks           []string
		metadata       map[string]string
		none           bool // no operations
		want           []string
	}{
		"header": {store: "plain", acks: []string{"messages/a, messages/b", "messages/a"},
			want: []string{"shop a", "shop b"}},
		"metadata": {store: "plain", metadata: map[string]string{"quorateAck": "messages/a"},
			want: []string{"shop a"}},
		"stale": {store: "plain", acks: []string{"messages/old"}, kind: api.Conflict,
			failure: "state transaction in state store plain: the message of the token is settled"},
		"unknown": {store: "plain", acks: []string{"x/a"}, kind: api.Malformed, failure: "pubsub x of the token"},
		"other broker": {store: "plain", acks: []string{"simple/a"}, kind: api.Malformed,
			failure: "state store plain and pubsub simple"},
		"other store": {store: "outside", acks: []string{"messages/a"}, kind: api.Malformed,
			failure: "transactions of state store outside cannot acknowledge"},
		"too many": {store: "plain", acks: []string{many}, kind: api.Malformed,
			failure: "a transaction may acknowledge at most 16"},
		"empty header": {store: "plain", acks: []string{""}, kind: api.Malformed,
			failure: "Quorate-Ack is present and has no token"},
		"one of two headers empty": {store: "plain", acks: []string{"messages/a", " , "}, kind: api.Malformed,
			failure: "Quorate-Ack is present and has no token"},
		"empty metadata": {store: "plain", metadata: map[string]string{"quorateAck": ""}, kind: api.Malformed,
			failure: "Quorate-Ack is present and has no token"},
		"no operations": {store: "plain", acks: []string{"messages/a"}, none: true, kind: api.Malformed,
			failure: "a transaction that acknowledges a delivery needs an operation"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newOutbox(t)
			ops := []api.Operation{upsert("k", "1", nil)}
			if c.none {
				ops = nil
			}
			if c.store == "outside" {
				ops = []api.Operation{{Name: api.OperationDelete, Item: api.Item{Key: "k"}}}
			}
			_, err := r.Transact(t.Context(), api.TransactRequest{Store: c.store, Operations: ops, Acks: c.acks,
				StoreMetadata: c.metadata})
			var failure *api.Error
			switch errors.As(err, &failure); {
			case c.failure == "" && err != nil, c.failure != "" && failure == nil:
				t.Errorf("%v instead of %q", err, c.failure)
			case c.failure == "":
			case failure.Kind != c.kind, !strings.Contains(failure.Message, c.failure), r.store.got.Operations != nil:
				t.Errorf("kind %d, %q; operations: %v", failure.Kind, failure.Message, r.store.got.Operations)
			}
			if diff := cmp.Diff(c.want, r.broker.acked); diff != "" || len(r.store.got.Effects) != len(c.want) {
				t.Errorf("%d effects; acknowledged (-want +got)\n%s", len(r.store.got.Effects), diff)
			}
		})
	}
}

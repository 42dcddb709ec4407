package pubsub_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
	broker "github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
)

// committing is a broker that takes part in transactions, which are committed at once.
type committing struct{ broker.Broker }

func (c committing) StagePublish(ctx context.Context, r broker.PublishRequest) (state.Effect, error) {
	_, err := c.Publish(ctx, r)
	return stagedEffect{}, err
}

func (committing) StageAck(context.Context, broker.AckRequest) (state.Effect, error) { return nil, nil }

// outside is a broker that cannot take part in transactions. It refuses what the test wants.
type outside struct {
	broker.Broker
	mu     sync.Mutex
	hangs  bool                                 // until the context of a request ends
	refuse func(n int, m *broker.Message) error // nil = nothing; n counts the requests
	calls  int
	topic  string
	got    []broker.Message
}

func (o *outside) Publish(ctx context.Context, r broker.PublishRequest) (failures []broker.Failure, err error) {
	if o.hangs {
		<-ctx.Done()
		return nil, fault.Wrap(ctx.Err(), "test", "publishing")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls++
	o.topic = r.Topic
	for i := range r.Messages {
		if o.refuse != nil {
			if err := o.refuse(o.calls, &r.Messages[i]); err != nil {
				failures = append(failures, broker.Failure{Index: i, Err: err})
				continue
			}
		}
		o.got = append(o.got, r.Messages[i])
	}
	if len(failures) == len(r.Messages) {
		return nil, failures[0].Err
	}
	return failures, nil
}

// data returns what was published, in its order.
func (o *outside) data() (out []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.got {
		_, text, _ := strings.Cut(string(m.Data), `"data":"`)
		text, _, _ = strings.Cut(text, `"`)
		out = append(out, text)
	}
	return out
}

type relayRig struct {
	*api.State
	target     *outside
	subscriber *pubsub.Subscriber
}

// newRelay opens a subscriber whose application has a store with an outbox for another broker.
func newRelay(t *testing.T, refuse func(int, *broker.Message) error, topics broker.Topics) *relayRig {
	t.Helper()
	r := &relayRig{target: &outside{refuse: refuse}}
	internal := committing{inmemory.Open(inmemory.Options{})}
	all := source{{Name: "redis", Type: "pubsub.x", Broker: r.target, Topics: topics}, {Name: "log", Broker: internal}}
	box := &state.Outbox{PubSub: "redis", Topic: "orders", Internal: "log"}
	app := api.App{ID: "shop"}
	stores := ledgers{{Name: "store", Store: &ledger{}, Effects: true, Outbox: box}}
	r.State = api.NewState(app, stores, api.Limits{}).
		Publish(pubsub.New(pubsub.Options{App: app, Source: all}))
	r.subscriber = pubsub.NewSubscriber(pubsub.SubscriberOptions{App: app, Source: all,
		Outboxes: func() []*state.Instance { return stores }, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		if err := r.subscriber.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *relayRig) set(t *testing.T, keyed string, values ...string) {
	t.Helper()
	for _, v := range values {
		_, err := r.Transact(t.Context(), api.TransactRequest{Store: "store", Operations: []api.Operation{
			upsert("k", `"`+v+`"`, map[string]string{"partitionKey": keyed})}})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestRelay_PublishesEventsOfAnOutbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, nil, broker.Topics{})
		r.set(t, "k", "1", "2") // before the relay runs
		r.subscriber.Open(nil)
		<-time.After(5 * time.Second)
		r.set(t, "k", "3")
		synctest.Wait()
		if got := r.target.data(); !slices.Equal(got, []string{"1", "2", "3"}) || r.target.topic != "orders" {
			t.Errorf("published %q to %s", got, r.target.topic)
		}
		if m := r.target.got[0]; !strings.HasPrefix(m.ID, "outbox-") || m.Key != "k" ||
			!strings.Contains(string(m.Data), `"pubsubname":"redis"`) || !strings.Contains(string(m.Data),
			`"topic":"orders"`) {
			t.Errorf("the event is %+v, %s", m, m.Data)
		}
	})
}

func TestRelay_RepeatsWhatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, func(n int, m *broker.Message) error {
			if n <= 3 && strings.Contains(string(m.Data), `"data":"2"`) {
				return fault.New(fault.Unavailable, "test", "the broker is away")
			}
			return nil
		}, broker.Topics{})
		r.set(t, "", "1", "2", "3")
		r.subscriber.Open(nil)
		<-time.After(time.Minute)
		got := r.target.data()
		slices.Sort(got)
		if !slices.Equal(got, []string{"1", "2", "3"}) {
			t.Errorf("published %q", got)
		}
	})
}

// The target refuses an event. Later events of its key wait for it, while those of other keys are published at once.
func TestRelay_KeepsOrderOfAKeyAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := 0
		r := newRelay(t, func(_ int, m *broker.Message) error {
			if strings.Contains(string(m.Data), `"data":"a2"`) && refused < 3 {
				refused++
				return fault.New(fault.Unavailable, "test", "the broker is away")
			}
			return nil
		}, broker.Topics{})
		for _, v := range []string{"a1", "a2", "b1", "a3", "b2", "a4"} {
			r.set(t, v[:1], v)
		}
		r.subscriber.Open(nil)
		synctest.Wait()
		if got := r.target.data(); !slices.Equal(got, []string{"a1", "b1", "b2"}) {
			t.Errorf("published at once: %q", got)
		}
		<-time.After(time.Minute)
		if got := r.target.data(); !slices.Equal(got, []string{"a1", "b1", "b2", "a2", "a3", "a4"}) {
			t.Errorf("published %q", got)
		}
	})
}

func TestRelay_CloseCutsPublishThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, nil, broker.Topics{})
		r.target.hangs = true
		r.set(t, "", "1")
		r.subscriber.Open(nil)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := r.subscriber.Close(ctx); err == nil || time.Since(began) != time.Second {
			t.Errorf("Close: %v after %s", err, time.Since(began))
		}
	})
}

func TestRelay_KeepsScopesOfTheTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, nil, broker.Topics{Protected: []string{"orders"}})
		r.subscriber.Open(nil)
		_, err := r.Transact(t.Context(), api.TransactRequest{Store: "store",
			Operations: []api.Operation{upsert("k", "1", nil)}})
		if err == nil || !strings.Contains(err.Error(), "not allowed") {
			t.Errorf("a topic that the application may not publish to: %v", err)
		}
		<-time.After(time.Minute)
		if got := r.target.data(); got != nil {
			t.Errorf("published %q", got)
		}
	})
}

func TestRelay_InternalTopicsAreReserved(t *testing.T) {
	for _, topic := range []string{"quorate||outbox||||shop||redis||orders", markedTopic, "prefix-" + markedTopic} {
		for _, d := range []pubsub.Definition{to(topic, "/", ""), to("orders", "/", topic)} {
			if _, err := d.Check(); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "reserved") {
				t.Errorf("a subscription to %s: %v", topic, err)
			}
		}
		err := newRig(t).Publish(t.Context(), &pubsub.PublishRequest{PubSub: "messages", Topic: topic})
		if err == nil || !strings.Contains(err.Error(), "reserved") {
			t.Errorf("a publish to %s: %v", topic, err)
		}
	}
}

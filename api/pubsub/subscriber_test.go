package pubsub_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/api/resiliency"
	broker "github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/pubsub/inmemory"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// fakeApp records what it gets and answers by script.
type fakeApp struct {
	mu     sync.Mutex
	away   bool
	got    []string // path, topic and id, in the order of arrival
	answer func(ctx context.Context, e *pubsub.Event, n int) (pubsub.Verdict, error)
	batch  func(b *pubsub.Batch) (map[string]pubsub.Verdict, error)
	sizes  []int // of batches
}

func (a *fakeApp) Ready() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.away
}

func (a *fakeApp) Deliver(ctx context.Context, e *pubsub.Event) (pubsub.Verdict, error) {
	a.mu.Lock()
	a.got = append(a.got, e.Path+" "+e.Topic+" "+e.ID)
	n := len(a.got)
	a.mu.Unlock()
	if a.answer == nil {
		return pubsub.Success, nil
	}
	return a.answer(ctx, e, n)
}

func (a *fakeApp) DeliverBatch(_ context.Context, b *pubsub.Batch) (map[string]pubsub.Verdict, error) {
	a.mu.Lock()
	a.sizes = append(a.sizes, len(b.Entries))
	a.mu.Unlock()
	return a.batch(b)
}

func (a *fakeApp) Retryable(*resiliency.Policy, error) bool { return true }

func (a *fakeApp) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.got)
}

// desk is one application with a broker.
type desk struct {
	*pubsub.Subscriber
	*fakeApp
	broker broker.Broker
	policy *resiliency.Policy
	topics broker.Topics
	log    testutil.Output
}

// newDesk opens a subscriber with declared subscriptions, in a bubble of synctest.
func newDesk(t *testing.T, answer func(context.Context, *pubsub.Event, int) (pubsub.Verdict, error),
	definitions ...pubsub.Definition) *desk {
	t.Helper()
	d := &desk{fakeApp: &fakeApp{answer: answer}, broker: inmemory.Open(inmemory.Options{})}
	d.open(t, definitions...)
	return d
}

func (d *desk) open(t *testing.T, definitions ...pubsub.Definition) {
	t.Helper()
	d.Subscriber = pubsub.NewSubscriber(pubsub.SubscriberOptions{App: api.App{ID: "shop"},
		Source: source{{Name: "messages", Broker: d.broker, Topics: d.topics}}, Target: d.fakeApp,
		Policy: func(string) *resiliency.Policy { return d.policy },
		Logger: slog.New(slog.NewTextHandler(&d.log, nil))})
	d.Open(definitions)
	s := d.Subscriber
	t.Cleanup(func() { _ = s.Close(context.Background()) })
}

func (d *desk) publish(t *testing.T, topic, key string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m := broker.Message{ID: id, Key: key, Data: []byte(`{"id":"` + id + `","type":"` + id + `"}`)}
		if _, err := d.broker.Publish(t.Context(), broker.PublishRequest{Topic: topic,
			Messages: []broker.Message{m}}); err != nil {
			t.Fatal(err)
		}
	}
}

func to(topic, path, dead string) pubsub.Definition {
	return pubsub.Definition{PubSub: "messages", Topic: topic, Default: path, DeadLetter: dead,
		Kind: pubsub.Declarative}
}

func (d *desk) want(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := d.seen(); !slices.Equal(got, want) {
		t.Errorf("delivered %q, want %q", got, want)
	}
}

var errRefused = fault.New(fault.Internal, "test", "POST answered 500")

func TestSubscriber_Answers(t *testing.T) {
	for name, c := range map[string]struct {
		verdict pubsub.Verdict
		err     error
		dead    string
		want    []string // within ten seconds
	}{
		"success":              {pubsub.Success, nil, "dead", []string{"/a a 1"}},
		"retry":                {pubsub.Retry, nil, "", []string{"/a a 1", "/a a 1", "/a a 1", "/a a 1"}},
		"failure":              {pubsub.Success, errRefused, "", []string{"/a a 1", "/a a 1", "/a a 1", "/a a 1"}},
		"drop":                 {pubsub.Drop, nil, "", []string{"/a a 1"}},
		"drop, dead letter":    {pubsub.Drop, nil, "dead", []string{"/a a 1", "/dead dead 1"}},
		"retry, dead letter":   {pubsub.Retry, nil, "dead", []string{"/a a 1", "/dead dead 1"}},
		"no handler":           {pubsub.Ignored, nil, "dead", []string{"/a a 1"}},
		"failure, dead letter": {pubsub.Success, errRefused, "dead", []string{"/a a 1", "/dead dead 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t, func(_ context.Context, e *pubsub.Event, _ int) (pubsub.Verdict, error) {
					if e.Topic == "dead" {
						return pubsub.Success, nil
					}
					return c.verdict, c.err
				}, to("a", "/a", c.dead), to("dead", "/dead", ""))
				d.publish(t, "a", "", "1")
				<-time.After(10 * time.Second)
				d.want(t, c.want...)
			})
		})
	}
}

func TestSubscriber_LogsWhyAMessageIsDropped(t *testing.T) {
	rules := to("a", "", "")
	rules.Rules = []pubsub.RuleDefinition{{Match: `event.type == "x"`, Path: "/x"}}
	for name, c := range map[string]struct {
		definition pubsub.Definition
		verdict    pubsub.Verdict
		want       []string
	}{
		"DROP": {to("a", "/a", ""), pubsub.Drop, []string{"route=/a", `"the application answered DROP"`}},
		"404":  {to("a", "/a", ""), pubsub.Missing, []string{"route=/a", "it answered 404"}},
		"Unimplemented": {to("a", "/a", ""), pubsub.Ignored,
			[]string{"route=/a", "it answered Unimplemented"}},
		"no rule":            {rules, pubsub.Success, []string{`"no routing rule matches`}},
		"DROP, dead letter":  {to("a", "/a", "dead"), pubsub.Drop, []string{"dead_letter=dead", "answered DROP"}},
		"404, dead letter":   {to("a", "/a", "dead"), pubsub.Missing, []string{"dead_letter=dead", "answered 404"}},
		"handled, no reason": {to("a", "/a", ""), pubsub.Success, nil},
	} {
		for _, bulk := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", bulk ", bulk), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c.definition.Bulk.Enabled = bulk
					d := newDesk(t, func(context.Context, *pubsub.Event, int) (pubsub.Verdict, error) {
						return c.verdict, nil
					}, c.definition)
					d.batch = func(b *pubsub.Batch) (map[string]pubsub.Verdict, error) {
						return map[string]pubsub.Verdict{b.Entries[0].EntryID: c.verdict}, nil
					}
					for range 3 { // similar ones are logged once within the interval
						d.publish(t, "a", "", "1")
						<-time.After(time.Second + time.Millisecond)
					}
					var got []string
					for line := range strings.Lines(d.log.String()) {
						if strings.Contains(line, "level=WARN") {
							got = append(got, line)
						}
					}
					if len(c.want) == 0 {
						if len(got) > 0 {
							t.Errorf("logged %q", got)
						}
						return
					}
					for _, part := range append(c.want, "pubsub=messages topic=a") {
						if len(got) != 1 || !strings.Contains(got[0], part) {
							t.Errorf("logged %q, want one line with %s", got, part)
						}
					}
				})
			})
		}
	}
}

func TestSubscriber_Routes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rules := to("a", "", "dead")
		rules.Rules = []pubsub.RuleDefinition{{Match: `event.type == "x"`, Path: "/x"},
			{Match: `event.type == "y"`, Path: "/y"}}
		d := newDesk(t, nil, rules, to("dead", "/dead", ""))
		d.publish(t, "a", "k", "y", "x", "other")
		<-time.After(time.Second)
		got := d.seen()
		slices.Sort(got)
		if want := []string{"/dead dead other", "/x a x", "/y a y"}; !slices.Equal(got, want) {
			t.Errorf("delivered %q, want %q", got, want)
		}
	})
}

func TestSubscriber_ApplicationAwayIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ context.Context, e *pubsub.Event, n int) (pubsub.Verdict, error) {
			if n <= 5 {
				return pubsub.Retry, fault.New(fault.Unavailable, "test", "cannot be reached")
			}
			if e.Attempt != 1 {
				return pubsub.Retry, fmt.Errorf("attempt %d", e.Attempt)
			}
			return pubsub.Success, nil
		}, to("a", "/a", "dead"), to("dead", "/dead", ""))
		d.publish(t, "a", "", "1")
		<-time.After(10 * time.Second)
		d.want(t, slices.Repeat([]string{"/a a 1"}, 6)...)
	})
}

func TestSubscriber_OrderSurvivesFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := map[string]bool{}
		d := newDesk(t, func(_ context.Context, e *pubsub.Event, _ int) (pubsub.Verdict, error) {
			if e.ID == "2" && !failed["2"] {
				failed["2"] = true
				return pubsub.Retry, nil
			}
			return pubsub.Success, nil
		}, to("a", "/a", ""))
		d.publish(t, "a", "k", "1", "2", "3", "4")
		<-time.After(10 * time.Second)
		d.want(t, "/a a 1", "/a a 2", "/a a 2", "/a a 3", "/a a 4")
	})
}

func TestSubscriber_PolicyRepeatsBeforeDeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ context.Context, e *pubsub.Event, _ int) (pubsub.Verdict, error) {
			if e.Topic == "dead" {
				return pubsub.Success, nil
			}
			return pubsub.Retry, nil
		})
		d.policy = &resiliency.Policy{Retry: &resiliency.Retry{Pause: time.Second, Max: 2}}
		d.Update(t.Context(), []pubsub.Definition{to("a", "/a", "dead"), to("dead", "/dead", "")})
		d.publish(t, "a", "", "1")
		<-time.After(10 * time.Second)
		d.want(t, "/a a 1", "/a a 1", "/a a 1", "/dead dead 1")
	})
}

func TestSubscriber_HandlerThatNeverAnswersIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(ctx context.Context, e *pubsub.Event, _ int) (pubsub.Verdict, error) {
			if e.Topic == "dead" {
				return pubsub.Success, nil
			}
			<-ctx.Done()
			return pubsub.Retry, fault.New(fault.Indeterminate, "test", "no answer")
		}, to("a", "/a", "dead"), to("dead", "/dead", ""))
		d.publish(t, "a", "", "1")
		<-time.After(59 * time.Second)
		d.want(t, "/a a 1")
		<-time.After(5 * time.Second)
		d.want(t, "/a a 1", "/dead dead 1")
	})
}

func TestSubscriber_CloseWaitsForHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(ctx context.Context, _ *pubsub.Event, _ int) (pubsub.Verdict, error) {
			select {
			case <-time.After(20 * time.Second):
				return pubsub.Success, nil
			case <-ctx.Done():
				return pubsub.Retry, ctx.Err()
			}
		}, to("a", "/a", "dead"))
		d.publish(t, "a", "k", "1", "2")
		<-time.After(time.Second)
		start := time.Now()
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < 19*time.Second {
			t.Errorf("Close did not wait: %s", took)
		}
	})
}

func TestSubscriber_CloseInTimeReleasesWhatIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := func(ctx context.Context, _ *pubsub.Event, _ int) (pubsub.Verdict, error) {
			<-ctx.Done()
			return pubsub.Retry, ctx.Err()
		}
		d := newDesk(t, hang, to("a", "/a", "dead"), to("dead", "/dead", ""))
		d.publish(t, "a", "k", "1", "2")
		<-time.After(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := d.Close(ctx); err == nil {
			t.Error("Close did not report what was cut")
		}
		d.want(t, "/a a 1")
		d.fakeApp = &fakeApp{} // the next start of the application
		d.open(t, to("a", "/a", "dead"), to("dead", "/dead", ""))
		<-time.After(time.Second)
		d.want(t, "/a a 1", "/a a 2")
	})
}

func TestSubscriber_Update(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil, to("a", "/a", ""))
		d.publish(t, "a", "", "1")
		<-time.After(time.Second)
		d.Update(t.Context(), []pubsub.Definition{to("a", "/changed", ""), to("b", "/b", "")})
		d.publish(t, "a", "", "2")
		<-time.After(time.Second)
		d.publish(t, "b", "", "3")
		<-time.After(time.Second)
		d.Update(t.Context(), nil)
		d.publish(t, "a", "", "4")
		<-time.After(time.Second)
		d.want(t, "/a a 1", "/changed a 2", "/b b 3")
	})
}

func TestSubscriber_AwayApplicationGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil, to("a", "/a", ""))
		set := func(away bool) {
			d.mu.Lock()
			d.away = away
			d.mu.Unlock()
			<-time.After(time.Second)
		}
		set(true)
		d.publish(t, "a", "", "1")
		<-time.After(time.Minute)
		d.want(t)
		set(false)
		d.want(t, "/a a 1")
	})
}

func TestSubscriber_Bulk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bulk := to("a", "/a", "dead")
		bulk.Bulk = pubsub.BulkDefinition{Enabled: true, MaxMessages: 15, MaxAwaitMs: 100}
		d := newDesk(t, nil, bulk, to("dead", "/dead", ""))
		d.batch = func(b *pubsub.Batch) (map[string]pubsub.Verdict, error) {
			out := map[string]pubsub.Verdict{"nosuch": pubsub.Drop}
			for _, e := range b.Entries {
				switch e.ID {
				case "drop":
					out[e.EntryID] = pubsub.Drop
				case "silent": // no answer is a failure
				default:
					out[e.EntryID] = pubsub.Success
				}
			}
			return out, nil
		}
		var ids []string
		for i := range 18 {
			ids = append(ids, fmt.Sprint(i))
		}
		d.publish(t, "a", "", append(ids, "drop", "silent")...)
		<-time.After(5 * time.Second)
		got := d.seen()
		slices.Sort(got)
		if want := []string{"/dead dead drop", "/dead dead silent"}; !slices.Equal(got, want) {
			t.Errorf("dead letters %q, want %q", got, want)
		}
		if !slices.Equal(d.sizes, []int{15, 5}) {
			t.Errorf("batches of %v messages", d.sizes)
		}
	})
}

// slowDead is a broker that takes ten seconds to move a message to the dead-letter topic.
type slowDead struct{ broker.Broker }

func (s slowDead) Subscribe(ctx context.Context, r broker.SubscribeRequest) (broker.Subscription, error) {
	m, err := s.Broker.Subscribe(ctx, r)
	return slowMember{m}, err
}

type slowMember struct{ broker.Subscription }

func (m slowMember) DeadLetter(ctx context.Context, d *broker.Delivery, topic string) error {
	<-time.After(10 * time.Second)
	return m.Subscription.DeadLetter(ctx, d, topic)
}

// The timeout of a delivery does not limit what follows the answer of the application.
func TestSubscriber_BulkIsConcludedAfterTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bulk := to("a", "/a", "dead")
		bulk.Bulk = pubsub.BulkDefinition{Enabled: true, MaxMessages: 3, MaxAwaitMs: 100}
		d := &desk{fakeApp: &fakeApp{}, broker: slowDead{inmemory.Open(inmemory.Options{})},
			policy: &resiliency.Policy{Timeout: 15 * time.Second}}
		d.batch = func(b *pubsub.Batch) (map[string]pubsub.Verdict, error) {
			out := map[string]pubsub.Verdict{}
			for _, e := range b.Entries {
				out[e.EntryID] = pubsub.Drop
			}
			return out, nil
		}
		d.open(t, bulk, to("dead", "/dead", ""))
		d.publish(t, "a", "", "1", "2", "3")
		<-time.After(5 * time.Minute)
		d.want(t, "/dead dead 1", "/dead dead 2", "/dead dead 3")
		if !slices.Equal(d.sizes, []int{3}) {
			t.Errorf("batches of %v messages", d.sizes)
		}
	})
}

func TestSubscriber_Discovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{fakeApp: &fakeApp{away: true}, broker: inmemory.Open(inmemory.Options{})}
		asked := 0
		d.Subscriber = pubsub.NewSubscriber(pubsub.SubscriberOptions{App: api.App{ID: "shop"},
			Source: source{{Name: "messages", Broker: d.broker}}, Target: d.fakeApp,
			Logger: slog.New(slog.DiscardHandler),
			Discover: func(context.Context) ([]pubsub.Definition, error) {
				asked++
				found := to("a", "/found", "")
				found.Kind = pubsub.Programmatic
				bad := to("b", "", "")
				bad.Rules = []pubsub.RuleDefinition{{Match: "event ==", Path: "/"}}
				return []pubsub.Definition{found, bad}, nil
			}})
		d.Open([]pubsub.Definition{to("a", "/declared", "")})
		defer d.Close(context.Background()) //nolint:errcheck // nothing is in progress
		<-time.After(time.Second)
		if asked != 0 {
			t.Error("an application that is away got a question")
		}
		d.mu.Lock()
		d.away = false
		d.mu.Unlock()
		d.publish(t, "a", "", "1")
		<-time.After(time.Minute)
		d.want(t, "/found a 1")
		if asked != 1 {
			t.Errorf("the application got %d questions", asked)
		}
		if list := d.Subscriptions(); len(list) != 1 || list[0].Kind != pubsub.Programmatic {
			t.Errorf("subscriptions %+v", list)
		}
	})
}

func TestStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		client, opened, ended := &fakeApp{}, false, make(chan error, 1)
		go func() {
			ended <- d.Stream(ctx, to("a", "", ""), client, func() error { opened = true; return nil })
		}()
		d.publish(t, "a", "", "1")
		synctest.Wait()
		if got := client.seen(); !opened || !slices.Equal(got, []string{" a 1"}) {
			t.Errorf("opened %t, delivered %q", opened, got)
		}
		if list := d.Subscriptions(); len(list) != 1 || list[0].Kind != pubsub.Streaming {
			t.Errorf("subscriptions %+v", list)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		var e *api.Error
		err := d.Stream(t.Context(), pubsub.Definition{PubSub: "nosuch", Topic: "a"}, client, nil)
		if !errors.As(err, &e) || e.Code != api.CodePubSubNotFound ||
			!strings.Contains(e.Message, "nosuch is not found") {
			t.Errorf("a stream of an unknown component: %v", err)
		}
	})
}

// An application that drops messages publishes them to the dead-letter topic, so it needs the permission for that.
func TestSubscriber_ScopesHoldForDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &desk{fakeApp: &fakeApp{}, broker: inmemory.Open(inmemory.Options{}),
			topics: broker.Topics{Protected: []string{"secret"}}}
		d.open(t, to("a", "/a", "secret"), to("b", "/b", "dead"))
		d.publish(t, "a", "", "1")
		d.publish(t, "b", "", "2")
		d.want(t, "/b b 2")
		var e *api.Error
		err := d.Stream(t.Context(), to("a", "", "secret"), &fakeApp{}, nil)
		if !errors.As(err, &e) || e.Code != api.CodePubSubForbidden || !strings.Contains(e.Message, "secret") {
			t.Errorf("a stream with a dead-letter topic of others: %v", err)
		}
	})
}

func TestStream_NumberIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		var streams sync.WaitGroup
		for range 100 {
			streams.Go(func() { _ = d.Stream(ctx, to("a", "", ""), &fakeApp{}, func() error { return nil }) })
		}
		synctest.Wait()
		var e *api.Error
		err := d.Stream(ctx, to("a", "", ""), &fakeApp{}, func() error { return nil })
		if !errors.As(err, &e) || !strings.Contains(e.Message, "100 streams") {
			t.Errorf("the stream after the last one: %v", err)
		}
		cancel()
		streams.Wait()
	})
}

// A policy may repeat a delivery without limit. The end of such a subscription does not block other changes.
func TestSubscriber_EndOfSubscriptionWithEndlessDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t, func(_ context.Context, e *pubsub.Event, _ int) (pubsub.Verdict, error) {
			if e.Topic == "a" {
				return pubsub.Retry, nil
			}
			return pubsub.Success, nil
		})
		d.policy = &resiliency.Policy{Retry: &resiliency.Retry{Pause: time.Second, Max: -1}}
		d.Update(t.Context(), []pubsub.Definition{to("a", "/a", "")})
		d.publish(t, "a", "", "1")
		d.publish(t, "b", "", "2")
		<-time.After(time.Minute)
		d.Update(t.Context(), []pubsub.Definition{to("b", "/b", "")})
		<-time.After(time.Minute)
		if got := d.seen(); !slices.Contains(got, "/b b 2") {
			t.Errorf("%d deliveries, and none of the new subscription", len(got))
		}
	})
}

// leavingBroker is a broker whose subscriptions a test can end.
type leavingBroker struct {
	broker.Broker
	mu   sync.Mutex
	subs []broker.Subscription
}

func (b *leavingBroker) Subscribe(ctx context.Context, r broker.SubscribeRequest) (broker.Subscription, error) {
	s, err := b.Broker.Subscribe(ctx, r)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.subs = append(b.subs, s)
	return s, err
}

// joined returns the subscriptions so far, the earliest first.
func (b *leavingBroker) joined() []broker.Subscription {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.subs)
}

// The broker fails while a policy repeats a delivery without limit. The delivery ends, and the subscription or the
// stream joins its group again.
func TestSubscriber_JoinsAgainDespiteEndlessDelivery(t *testing.T) {
	for name, stream := range map[string]bool{"subscription": false, "stream": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var over atomic.Bool // the delivery no longer fails, so that Close returns
				defer over.Store(true)
				left := &leavingBroker{Broker: inmemory.Open(inmemory.Options{})}
				answer := func(_ context.Context, e *pubsub.Event, _ int) (pubsub.Verdict, error) {
					e.Sent()
					if e.ID == "1" && !over.Load() {
						return pubsub.Retry, nil
					}
					return pubsub.Success, nil
				}
				d := &desk{fakeApp: &fakeApp{answer: answer}, broker: left,
					policy: &resiliency.Policy{Retry: &resiliency.Retry{Pause: time.Second, Max: -1}}}
				if stream {
					d.open(t)
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error)
					go func() {
						ended <- d.Stream(ctx, to("a", "/a", ""), d.fakeApp, func() error { return nil })
					}()
					defer func() {
						cancel()
						<-ended
					}()
				} else {
					d.open(t, to("a", "/a", ""))
				}
				d.publish(t, "a", "", "1")
				<-time.After(2 * time.Second)
				left.joined()[0].Close()
				d.publish(t, "a", "", "2")
				<-time.After(29 * time.Second)
				if n := len(left.joined()); n != 1 {
					t.Errorf("joined %d times while the delivery has time to end", n)
				}
				<-time.After(10 * time.Second)
				if n := len(left.joined()); n != 2 || !slices.Contains(d.seen(), "/a a 2") {
					t.Errorf("joined %d times; the second message is not delivered", n)
				}
			})
		})
	}
}

// A definition may move within its file, so that only its Source changes.
func TestSubscriber_MovedDefinitionIsTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := &leavingBroker{Broker: inmemory.Open(inmemory.Options{})}
		d := &desk{fakeApp: &fakeApp{}, broker: left}
		definition := to("a", "/a", "")
		definition.Source = "a.yaml:1"
		d.open(t, definition)
		<-time.After(time.Second)
		definition.Source = "a.yaml:7"
		d.Update(t.Context(), []pubsub.Definition{definition})
		<-time.After(time.Second)
		if len(left.joined()) != 1 {
			t.Errorf("joined %d times", len(left.joined()))
		}
		if log := d.log.String(); strings.Contains(log, "level=WARN") {
			t.Errorf("logged %s", log)
		}
		if got := d.Subscriptions(); len(got) != 1 || got[0].Source != "a.yaml:7" {
			t.Errorf("the subscriptions are %+v", got)
		}
	})
}

// failingBroker is a broker whose Subscribe returns the errors in errs one after the other. For a nil error, Subscribe
// succeeds, and Receive fails with the error receive.
type failingBroker struct {
	broker.Broker
	errs    []error
	receive error
}

func (b *failingBroker) Subscribe(ctx context.Context, r broker.SubscribeRequest) (broker.Subscription, error) {
	if len(b.errs) == 0 {
		return b.Broker.Subscribe(ctx, r)
	}
	err := b.errs[0]
	if b.errs = b.errs[1:]; err != nil {
		return nil, err
	}
	s, err := b.Broker.Subscribe(ctx, r)
	return failingSubscription{s, b.receive}, err
}

type failingSubscription struct {
	broker.Subscription
	err error
}

func (s failingSubscription) Receive(context.Context, int) ([]broker.Delivery, error) {
	return nil, s.err
}

// expectReasons compares the logged reasons why subscriptions do not receive with want.
func (d *desk) expectReasons(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for line := range strings.Lines(d.log.String()) {
		if strings.Contains(line, "a subscription does not receive") {
			_, reason, _ := strings.Cut(line, "error=")
			got = append(got, strings.Trim(strings.TrimSpace(reason), `"`))
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("logged the reasons %q, want %q", got, want)
	}
}

func TestSubscriber_LogsAReasonOnce(t *testing.T) {
	t.Run("forbidden", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d := &desk{fakeApp: &fakeApp{}, broker: inmemory.Open(inmemory.Options{}),
				topics: broker.Topics{Subscribed: map[string][]string{"shop": {"b"}}}}
			d.open(t, to("a", "/a", ""), to("b", "/b", ""), to("c", "/c", ""))
			<-time.After(time.Hour)
			d.expectReasons(t, "ERR_PUBSUB_FORBIDDEN: topic a is not allowed for app id shop",
				"ERR_PUBSUB_FORBIDDEN: topic c is not allowed for app id shop")
		})
	})
	t.Run("broker", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			first, second := errors.New("away"), errors.New("full")
			d := &desk{fakeApp: &fakeApp{}, broker: &failingBroker{inmemory.Open(inmemory.Options{}),
				[]error{first, first, first, second, second, nil, nil, first, first}, first}}
			d.open(t, to("a", "/a", ""))
			d.publish(t, "a", "", "1")
			<-time.After(time.Hour)
			d.expectReasons(t, "away", "away", "away", "full") // at first, and twice after it had joined
			d.want(t, "/a a 1")
		})
	})
	for _, bulk := range []bool{false, true} {
		t.Run(fmt.Sprint("Receive that timed out, bulk ", bulk), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &desk{fakeApp: &fakeApp{}, broker: &failingBroker{inmemory.Open(inmemory.Options{}), []error{nil},
					fault.New(fault.Timeout, "test", "the broker is slow")}}
				definition := to("a", "/a", "")
				definition.Bulk.Enabled = bulk
				d.open(t, definition)
				<-time.After(time.Minute)
				d.expectReasons(t, "test: the broker is slow")
			})
		})
	}
}

// The messages of one key go to several paths, and one of them fails. Each is delivered after the earlier ones are
// handled.
func TestSubscriber_BulkKeepsOrderOfKey(t *testing.T) {
	for name, c := range map[string]struct {
		fails string // once
		want  []string
	}{
		"success": {"", []string{"/a 1", "/b 2", "/a 3 4"}},
		"failure": {"1", []string{"/a 1", "/a 1", "/b 2", "/a 3 4"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bulk := to("a", "/a", "")
				bulk.Rules = []pubsub.RuleDefinition{{Match: `event.type == "2"`, Path: "/b"}}
				bulk.Bulk = pubsub.BulkDefinition{Enabled: true, MaxMessages: 4, MaxAwaitMs: 100}
				d := newDesk(t, nil, bulk)
				var got []string
				d.batch = func(b *pubsub.Batch) (map[string]pubsub.Verdict, error) {
					text, out := b.Path, map[string]pubsub.Verdict{}
					for _, e := range b.Entries {
						text += " " + e.ID
						if out[e.EntryID] = pubsub.Success; e.ID == c.fails {
							c.fails, out[e.EntryID] = "", pubsub.Retry
						}
					}
					got = append(got, text)
					return out, nil
				}
				d.publish(t, "a", "k", "1", "2", "3", "4")
				<-time.After(10 * time.Second)
				if synctest.Wait(); !slices.Equal(got, c.want) {
					t.Errorf("delivered %q, want %q", got, c.want)
				}
			})
		})
	}
}

func TestSubscriber_ReportsSubscriptionsThatCannotReceive(t *testing.T) {
	from := func(name, topic, source string) pubsub.Definition {
		return pubsub.Definition{PubSub: name, Topic: topic, Default: "/a", Kind: pubsub.Declarative, Source: source}
	}
	listed := func(context.Context) ([]pubsub.Definition, error) {
		out, _, err := pubsub.ParseDefinitions([]byte(`[{"pubsubname":"mesages","topic":"b","route":"/b"},
			{"pubsubname":"messages","topic":"c","route":"/c"}]`))
		return out, err
	}
	const own = `source="the list of the application" `
	for name, c := range map[string]struct {
		port     bool
		declared []pubsub.Definition
		want     []string
	}{
		"all receive": {true, []pubsub.Definition{from("messages", "a", "a.yaml:1")},
			[]string{`pubsub=mesages topic=b ` + own + `reason="this node has no pubsub component \"mesages\"" ` +
				`hint="did you mean \"messages\"?"`}},
		"file": {true, []pubsub.Definition{from("nope", "a", "a.yaml:1"), from("messages", "c", "b.yaml:1")},
			[]string{`pubsub=mesages topic=b ` + own,
				`pubsub=messages topic=c source=b.yaml:1 reason="another subscription to the topic has ` +
					`precedence: that of the list of the application"`,
				`pubsub=nope topic=a source=a.yaml:1 reason="this node has no pubsub component \"nope\"" ` +
					`hint="correct pubsubname`}},
		"no port": {false, []pubsub.Definition{from("messages", "a", "a.yaml:1")},
			[]string{`pubsub=messages topic=a source=a.yaml:1 reason="the application has no port, so messages ` +
				`cannot be delivered to it" hint="start the node with --app-port"`}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log testutil.Output
				o := pubsub.SubscriberOptions{App: api.App{ID: "shop"},
					Logger: slog.New(slog.NewTextHandler(&log, nil)),
					Source: source{{Name: "messages", Broker: inmemory.Open(inmemory.Options{})}}}
				if c.port {
					o.Target, o.Discover = &fakeApp{}, listed
				}
				s := pubsub.NewSubscriber(o)
				s.Open(c.declared)
				t.Cleanup(func() { _ = s.Close(context.Background()) })
				<-time.After(time.Minute)
				s.Update(t.Context(), c.declared)
				<-time.After(time.Minute)
				var got []string
				for line := range strings.Lines(log.String()) {
					if _, about, ok := strings.Cut(line, `"a subscription does not receive" `); ok {
						got = append(got, about)
					}
				}
				slices.Sort(got)
				if !slices.EqualFunc(got, c.want, strings.HasPrefix) {
					t.Errorf("logged %q, want %q", got, c.want)
				}
			})
		})
	}
}

func TestSubscriber_ReadsTheListAgainWhenTheApplicationIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		app, messages := &fakeApp{}, inmemory.Open(inmemory.Options{})
		topic, failure := "a", error(nil)
		s := pubsub.NewSubscriber(pubsub.SubscriberOptions{App: api.App{ID: "shop"}, Target: app,
			Source: source{{Name: "messages", Broker: messages}}, Logger: slog.New(slog.DiscardHandler),
			Discover: func(context.Context) ([]pubsub.Definition, error) {
				return []pubsub.Definition{to(topic, "/"+topic, "")}, failure
			}})
		s.Open(nil)
		t.Cleanup(func() { _ = s.Close(context.Background()) })
		for _, c := range []struct {
			lists   string
			failure error
			want    string
		}{{"a", nil, "a"}, {"b", nil, "b"}, {"c", errRefused, "b"}} {
			topic, failure = c.lists, c.failure
			for _, away := range []bool{true, false} {
				app.mu.Lock()
				app.away = away
				app.mu.Unlock()
				<-time.After(5 * time.Second)
			}
			if got := s.Subscriptions(); len(got) != 1 || got[0].Topic != c.want {
				t.Errorf("lists %s, %v: the subscriptions are %v, want one to %s", c.lists, c.failure, got, c.want)
			}
		}
	})
}

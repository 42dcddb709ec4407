// Package subscriptions delivers the messages of topics to the applications of a node. The package owns the delivery
// from the subscribers of package api/pubsub to the channels of applications, and the selection of the Subscription
// documents that apply to each application.
//
// The only lasting goroutines are those of the subscribers.
package subscriptions

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/pubsub"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/appchannel"
	"github.com/quorate/quorate/internal/fault"
)

// Applications are the applications that this node calls.
type Applications interface {
	// Channel returns the channel to an application, or nil if the node does not call the application.
	Channel(id string) *appchannel.Channel
	// Inbound returns the policy for the messages of a component; nil = none.
	Inbound(component string) *resiliency.Policy
}

// Options configure a Runner. All are required except Silent and Observer.
type Options struct {
	Namespace string
	Source    pubsub.Source
	Apps      Applications
	// Silent reports whether an application does not get the request for its subscriptions; nil = all get it.
	Silent func(app string) bool
	// Stores are the state stores of the node, whose outboxes publish events.
	Stores   interface{ StateStores() []*state.Instance }
	Observer func(app string) pubsub.Observer // nil = none
	Logger   *slog.Logger
}

// Runner has the subscribers of all applications of a node. It is safe for concurrent use.
type Runner struct {
	o Options

	mu  sync.Mutex
	all map[string]*pubsub.Subscriber
}

// New returns a Runner that receives nothing before Open.
func New(o Options) *Runner { return &Runner{o: o, all: map[string]*pubsub.Subscriber{}} }

// For returns the subscriber of an application.
func (r *Runner) For(id string) *pubsub.Subscriber {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.all[id]; s != nil {
		return s
	}
	o := pubsub.SubscriberOptions{App: api.App{ID: id, Namespace: r.o.Namespace}, Source: r.o.Source,
		Policy: r.o.Apps.Inbound, Logger: r.o.Logger.With("app_id", id),
		Outboxes: func() []*state.Instance { return outboxes(r.o.Stores.StateStores(), id) }}
	if c := r.o.Apps.Channel(id); c != nil {
		o.Target = target{c}
		if r.o.Silent == nil || !r.o.Silent(id) {
			o.Discover = func(ctx context.Context) ([]pubsub.Definition, error) {
				return discover(ctx, c, id, o.Logger)
			}
		}
	}
	if r.o.Observer != nil {
		o.Observer = r.o.Observer(id)
	}
	s := pubsub.NewSubscriber(o)
	r.all[id] = s
	return s
}

// outboxes returns the stores with an outbox that an application may use.
func outboxes(stores []*state.Instance, id string) (out []*state.Instance) {
	for _, i := range stores {
		if i.Outbox != nil && i.VisibleTo(id) {
			out = append(out, i)
		}
	}
	return out
}

// Check returns fault.Invalid for the first Subscription document that is not valid, or nil if all are valid.
func Check(documents []component.Subscription) error {
	for i := range documents {
		for _, d := range definitions(documents[i:i+1], "") {
			if _, err := d.Check(); err != nil {
				return &fault.Error{Code: fault.Invalid, Op: "subscriptions.Check", Key: documents[i].Name,
					Msg: documents[i].Pos.String(), Err: err}
			}
		}
	}
	return nil
}

// Open starts to deliver messages. documents are the Subscription documents of the node.
func (r *Runner) Open(documents []component.Subscription) {
	for id, s := range r.list() {
		s.Open(definitions(documents, id))
	}
}

// Update replaces the Subscription documents and adapts the subscriptions to the present components. It returns when
// the deliveries of all removed subscriptions have ended, or when ctx ends.
func (r *Runner) Update(ctx context.Context, documents []component.Subscription) {
	var all sync.WaitGroup
	for id, s := range r.list() {
		all.Go(func() { s.Update(ctx, definitions(documents, id)) })
	}
	all.Wait()
}

// Close stops receiving messages. It waits until the messages that are being handled are settled, or until ctx ends.
func (r *Runner) Close(ctx context.Context) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, s := range r.list() {
		all.Go(func() {
			err := s.Close(ctx)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func (r *Runner) list() map[string]*pubsub.Subscriber {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]*pubsub.Subscriber, len(r.all))
	for id, s := range r.all {
		out[id] = s
	}
	return out
}

// definitions returns the declared subscriptions of the application with the given id. If id is empty, it returns those
// of all applications.
func definitions(documents []component.Subscription, id string) (out []pubsub.Definition) {
	for _, s := range documents {
		if id != "" && len(s.Scopes) > 0 && !slices.Contains(s.Scopes, id) {
			continue
		}
		d := pubsub.Definition{PubSub: s.PubSub, Topic: s.Topic, Metadata: s.Metadata, Default: s.Default,
			DeadLetter: s.DeadLetter, Kind: pubsub.Declarative, Source: s.Pos.String(),
			Bulk: pubsub.BulkDefinition{Enabled: s.Bulk,
				MaxMessages: int32(s.MaxMessages), //nolint:gosec // parsed as 32 bits
				MaxAwaitMs:  int32(s.MaxAwaitMs)}} //nolint:gosec // parsed as 32 bits
		for _, rule := range s.Rules {
			d.Rules = append(d.Rules, pubsub.RuleDefinition(rule))
		}
		out = append(out, d)
	}
	return out
}

// The attempts to request the subscriptions of an application.
const (
	questions     = 4                      // maximum number of attempts
	questionPause = 500 * time.Millisecond // pause before the second attempt; doubles with each attempt
	questionTime  = 30 * time.Second       // timeout of one attempt
)

// discover requests the subscriptions of an application. If the application does not answer, discover retries up to
// three times.
func discover(ctx context.Context, c *appchannel.Channel, id string, log *slog.Logger) ([]pubsub.Definition, error) {
	for pause, n := questionPause, 1; ; pause, n = 2*pause, n+1 {
		bounded, cancel := context.WithTimeout(ctx, questionTime)
		body, list, err := c.Subscriptions(bounded, id)
		cancel()
		if err == nil {
			if list != nil {
				return pubsub.DefinitionsOf(list)
			}
			out, dropped, err := pubsub.ParseDefinitions(body)
			for _, topic := range dropped {
				log.Warn("a subscription has no route and receives nothing", "topic", topic)
			}
			return out, err
		}
		if n == questions || fault.Is(err, fault.Internal) || fault.Is(err, fault.Corrupt) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(pause):
		}
	}
}

// target is an application that gets messages.
type target struct{ *appchannel.Channel }

// Ready implements pubsub.Target.
func (t target) Ready() bool {
	ok, _ := t.Healthy()
	return ok
}

// Deliver implements pubsub.Target.
func (t target) Deliver(ctx context.Context, e *pubsub.Event) (pubsub.Verdict, error) {
	parent, state := e.Trace()
	answer, err := t.TakeMessage(ctx, &appchannel.TopicMessage{Path: e.Path, PubSub: e.PubSub, Body: e.Data,
		Metadata: e.Metadata, Parent: parent, State: state, Token: e.Token, Proto: e.Proto})
	return verdict(answer), err
}

// DeliverBatch implements pubsub.Target.
func (t target) DeliverBatch(ctx context.Context, b *pubsub.Batch) (map[string]pubsub.Verdict, error) {
	answers, known, err := t.TakeBatch(ctx, &appchannel.TopicBatch{Path: b.Path, PubSub: b.PubSub, Body: b.JSON,
		Proto: b.Proto})
	if err != nil {
		return nil, err
	}
	out := make(map[string]pubsub.Verdict, len(b.Entries))
	for i := range b.Entries { // answers with other ids are ignored
		id := b.Entries[i].EntryID
		if a, ok := answers[id]; ok {
			out[id] = verdict(a)
		} else if !known {
			out[id] = pubsub.Missing
		}
	}
	return out, nil
}

// Retryable implements pubsub.Target.
func (t target) Retryable(p *resiliency.Policy, err error) bool {
	answer := appchannel.AnswerOf(err)
	return answer == nil || p.RetryStatus(answer)
}

func verdict(a appchannel.TopicAnswer) pubsub.Verdict {
	switch a {
	case appchannel.TopicSuccess:
		return pubsub.Success
	case appchannel.TopicDrop:
		return pubsub.Drop
	case appchannel.TopicNotFound:
		return pubsub.Missing
	case appchannel.TopicUnknown:
		return pubsub.Ignored
	}
	return pubsub.Retry
}

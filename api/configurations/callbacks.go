package configurations

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/configuration"
	"github.com/quorate/quorate/internal/fault"
)

// Item is a configuration item in the form of the HTTP API. Empty fields are left out.
type Item struct {
	Value    string            `json:"value,omitempty"`
	Version  string            `json:"version,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// ItemOf converts an item of a store to the form of the HTTP API.
func ItemOf(i *configuration.Item) Item {
	return Item{Value: i.Value, Version: i.Version, Metadata: i.Metadata}
}

// Pauses and limits of the calls that deliver changes to an application.
const (
	firstCallback  = time.Second // before the first repetition of a failed call; doubles
	lastCallback   = 30 * time.Second
	callbackHealth = 200 * time.Millisecond // between checks of the application's health
	callbackTime   = time.Minute            // limit of one call
)

// SubscribeCallback starts a subscription over HTTP and returns its id. The node then calls the application for each
// change of an item.
//
// If the application already has an HTTP subscription to the same keys with the same metadata, SubscribeCallback renews
// or replaces this subscription. The old id then becomes invalid. A subscription lasts until UnsubscribeCallback is
// called, the store is removed, or the node stops.
func (c *Service) SubscribeCallback(ctx context.Context, r Request) (string, error) {
	if _, failure := c.store(r.Store); failure != nil {
		return "", failure
	}
	if c.options.Receiver == nil {
		return "", &api.Error{Kind: api.Failed, Code: api.CodeConfigurationSubscribe,
			Details: api.Details{Reason: api.ReasonNotConfigured},
			Message: "app channel is not initialized: start the node with --app-port, so that it can call the " +
				"application, or subscribe over gRPC"}
	}
	if r.Metadata[metadataInitial] == "" { // a renewed subscription keeps the changes that wait, a new one does not
		if id := c.subscriptions.renew(&r); id != "" {
			return id, nil
		}
	}
	s, failure := c.subscribe(ctx, r, subscribedHTTP)
	if failure != nil {
		return "", failure
	}
	s.expect()
	p := &callbacks{stream: s, receiver: c.options.Receiver, waiting: map[string]*callback{},
		log: c.options.Logger.With("app_id", c.options.App.ID, "store", s.store)}
	id := c.subscriptions.idOf(s)
	if !c.subscriptions.running.Go(func() {
		defer s.Close()
		p.run(s.ctx)
	}) { // the node has begun to stop while the store subscribed
		s.Close()
		return "", errStopping(s.store)
	}
	return id, nil
}

// renew gives an existing HTTP subscription a new id and returns this id. The subscription must have the same store,
// keys and metadata as r. If there is none, or if the store has not accepted it yet, renew returns "".
func (s *subscriptions) renew(r *Request) string {
	identity := identityOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, one := range s.open {
		if one.protocol == subscribedHTTP && one.identity == identity && one.works {
			delete(s.open, id)
			one.ID = uuid.NewString()
			s.open[one.ID] = one
			return one.ID
		}
	}
	return ""
}

// idOf returns the present id of a subscription.
func (s *subscriptions) idOf(one *Stream) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return one.ID
}

// UnsubscribeCallback ends a subscription that SubscribeCallback has started. It returns an error if the store has no
// such subscription with the given id.
func (c *Service) UnsubscribeCallback(store, id string) error {
	ok, err := c.unsubscribe(store, id, subscribedHTTP)
	if err != nil || ok {
		return err
	}
	return &api.Error{Kind: api.Failed, Code: api.CodeConfigurationUnsubscribe,
		Details: api.Details{Reason: api.ReasonNotFound},
		Message: "failed to unsubscribe: configuration store " + store + " has no subscription " + api.ShortenName(id)}
}

// maxCallbacks is the maximum number of calls to the application that one subscription makes at the same time.
const maxCallbacks = 16

// callbacks delivers the changes of one subscription to the application. A slow or failing call for one key does not
// delay the calls for other keys. Only the goroutine that executes run changes the fields.
type callbacks struct {
	stream   *Stream
	receiver Receiver
	log      *slog.Logger
	waiting  map[string]*callback // by key
	calling  int
	done     chan finished
	calls    sync.WaitGroup
}

// callback is a change that the application has not taken yet.
type callback struct {
	item    configuration.Item
	due     time.Time
	pause   time.Duration // pause before the next attempt
	order   int
	calling bool // the application is being called with this or an older value
	// stopRetries ends the retries of that call; nil = the application was not called with a value of the key yet
	stopRetries context.CancelFunc
}

// finished is the result of one call to the application.
type finished struct {
	key     string
	version *callback
	err     error
}

func (p *callbacks) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	changes := make(chan []configuration.Item)
	p.done = make(chan finished, maxCallbacks)
	p.calls.Go(func() { p.read(ctx, changes) })
	defer p.calls.Wait()
	defer cancel()
	order := 0
	for {
		timer := time.NewTimer(p.start(ctx))
		select {
		case <-ctx.Done():
		case items, open := <-p.source(changes):
			if !open {
				timer.Stop()
				return
			}
			for i := range items {
				order++
				c := &callback{item: items[i], pause: firstCallback, order: order}
				if older := p.waiting[items[i].Key]; older != nil && older.calling {
					c.calling, c.stopRetries = true, older.stopRetries
					c.stopRetries() // otherwise an unlimited policy would repeat the older value forever
				}
				p.waiting[items[i].Key] = c
			}
		case f := <-p.done:
			p.finish(&f)
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// source returns the channel from which run receives changes, or nil while too many changes wait for the application.
// Meanwhile new changes stay in the queue of the subscription. If this queue overflows, its changes are dropped, and
// the subscription later reports the current items and the deleted keys.
func (p *callbacks) source(changes <-chan []configuration.Item) <-chan []configuration.Item {
	if len(p.waiting) >= configuration.MaxWaiting {
		return nil
	}
	return changes
}

// read forwards the changes of the subscription to the given channel. When the subscription or ctx ends, read closes
// the channel and returns.
func (p *callbacks) read(ctx context.Context, to chan<- []configuration.Item) {
	defer close(to)
	for {
		items, err := p.stream.next(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			p.log.Warn("a subscription to configuration items ended", "error", err)
			return
		}
		select {
		case to <- items:
		case <-ctx.Done():
			return
		}
	}
}

// start calls the application for the changes that are due, the oldest first. It returns how long its caller may wait
// before it calls start again.
func (p *callbacks) start(ctx context.Context) time.Duration {
	now := time.Now()
	next := time.Hour
	var due []*callback
	for _, c := range p.waiting {
		switch {
		case c.calling:
		case c.due.After(now):
			next = min(next, c.due.Sub(now))
		default:
			due = append(due, c)
		}
	}
	if len(due) == 0 || p.calling >= maxCallbacks { // the end of a call wakes run
		return next
	}
	if ok, _ := p.receiver.Healthy(); !ok {
		return callbackHealth
	}
	slices.SortFunc(due, func(a, b *callback) int { return a.order - b.order })
	for _, c := range due[:min(len(due), maxCallbacks-p.calling)] {
		c.calling = true
		p.calling++
		retrying, stop := context.WithCancel(ctx)
		c.stopRetries = stop
		item := c.item
		p.calls.Go(func() { p.done <- finished{item.Key, c, p.notify(ctx, retrying, &item)} })
	}
	return next
}

// finish handles the result of a call to the application. If a newer change of the same key waits, it is sent at once.
// Otherwise a change that the application did not take is sent again after a pause.
func (p *callbacks) finish(f *finished) {
	p.calling--
	now := p.waiting[f.key] // a newer change, if the item changed during the call
	now.calling = false
	now.stopRetries()
	if f.err == nil {
		p.count("ok")
		if now == f.version {
			delete(p.waiting, f.key)
		}
		return
	}
	p.count("failed")
	if now != f.version {
		return // the newer value is sent at once
	}
	p.log.Warn("the application did not take a change of a configuration item; it is sent again", "key", f.key, "after",
		now.pause, "error", fault.Text(f.err))
	now.due, now.pause = time.Now().Add(now.pause), min(2*now.pause, lastCallback)
}

func (p *callbacks) count(outcome string) {
	p.stream.service.options.Metrics.events.WithLabelValues(p.stream.store, outcome).Inc()
}

// notify sends a changed item to the application, with the retries of the resiliency policy. The context ctx bounds the
// calls, and the context retrying bounds only the retries. When the context retrying ends, a call in progress
// continues, because the application must not get two values of a key at the same time.
func (p *callbacks) notify(ctx, retrying context.Context, i *configuration.Item) error {
	body, err := json.Marshal(struct {
		ID    string          `json:"id"`
		Items map[string]Item `json:"items"`
	}{p.stream.service.subscriptions.idOf(p.stream), map[string]Item{i.Key: ItemOf(i)}})
	if err != nil {
		return err
	}
	policy := p.stream.service.options.Policies.Inbound(p.stream.store)
	return policy.Repeat(retrying, func(attempt context.Context) error {
		end := time.Now().Add(callbackTime)
		if timeout, ok := attempt.Deadline(); ok && timeout.Before(end) {
			end = timeout
		}
		call, cancel := context.WithDeadline(ctx, end)
		defer cancel()
		return p.receiver.Notify(call, p.stream.store, i.Key, body)
	})
}

package pubsub

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
)

// The events of an outbox are in an internal topic first if its store or its broker cannot take part in transactions.
// A relay of the application publishes them from there, and then acknowledges them in the internal topic. So each
// event is published at least once.

// reservedTopics is a text that the names of all internal topics contain. Applications can neither publish nor
// subscribe to a topic whose name contains this text.
const reservedTopics = "quorate||"

// relayGroup is the consumer group of all relays. The relays of an application on several nodes divide the events
// among themselves.
const relayGroup = "quorate||relay"

// relayTopic returns the name of the internal topic for the events of a store's outbox. The name contains the
// namespace, because applications with the same id in different namespaces may share a broker but not their markers.
func relayTopic(app api.App, store *state.Instance) string {
	kind := "marked"
	if store.Effects {
		kind = "outbox"
	}
	return reservedTopics + strings.Join([]string{kind, app.Namespace, app.ID, store.Outbox.PubSub,
		store.Outbox.Topic}, "||")
}

// relayed returns the component for the internal topic of a store's outbox, or nil if there is none. If the outbox
// names a component, relayed considers only that one. Otherwise, it returns the first of these that exists:
//
//   - a component that can take part in transactions, preferably the one named pubsub
//   - the component to which the events are published, as in Dapr
//
// If store.Effects is true, relayed considers only components that can take part in transactions.
func relayed(source Source, app string, store *state.Instance) *pubsub.Instance {
	o := store.Outbox
	fits := func(i *pubsub.Instance, ok bool) bool {
		return ok && i.VisibleTo(app) && (!store.Effects || pubsub.StagerOf(i.Broker) != nil)
	}
	if o.Internal != "" {
		if i, ok := source.PubSub(o.Internal); fits(i, ok) {
			return i
		}
		return nil
	}
	if i, ok := source.PubSub(builtIn); fits(i, ok) && pubsub.StagerOf(i.Broker) != nil {
		return i
	}
	for _, i := range source.PubSubs() {
		if fits(i, true) && pubsub.StagerOf(i.Broker) != nil {
			return i
		}
	}
	if i, ok := source.PubSub(o.PubSub); fits(i, ok) {
		return i
	}
	return nil
}

// builtIn is the name of a component that every node has by default. A component file can replace it with another
// component of this name.
const builtIn = "pubsub"

// relaying is the task of a relay: to publish the events in an internal topic to the topic of an outbox. Two stores of
// an application with the same task share one relay.
type relaying struct {
	from          *pubsub.Instance
	internal      string // topic of from
	pubsub, topic string // component and topic to which the events are published
	marked        bool   // the store cannot take part in transactions
}

// relay is a running relay.
type relay struct {
	relaying
	end  context.CancelFunc
	done chan struct{}
}

// reconcileRelays ends the relays that no outbox needs, and starts those that are missing.
func (s *Subscriber) reconcileRelays(stores []*state.Instance) {
	wanted := map[relaying]bool{}
	for _, store := range stores {
		o := store.Outbox
		if i, ok := s.o.Source.PubSub(o.PubSub); ok && store.Effects && pubsub.StagerOf(i.Broker) != nil {
			continue // its transactions publish the events themselves
		}
		if from := relayed(s.o.Source, s.o.App.ID, store); from != nil {
			wanted[relaying{from, relayTopic(s.o.App, store), o.PubSub, o.Topic, !store.Effects}] = true
		}
	}
	var kept, ending []*relay
	for _, r := range s.relays {
		if wanted[r.relaying] {
			kept = append(kept, r)
			delete(wanted, r.relaying)
			continue
		}
		ending = append(ending, r)
		r.end()
	}
	for _, r := range ending {
		<-r.done
	}
	for w := range wanted {
		ctx, end := context.WithCancel(s.life)
		r := &relay{relaying: w, end: end, done: make(chan struct{})}
		kept = append(kept, r)
		go func() {
			defer close(r.done)
			s.runRelay(ctx, r)
		}()
	}
	s.relays = kept
}

// runRelay publishes the events of an outbox until ctx ends.
func (s *Subscriber) runRelay(ctx context.Context, r *relay) {
	log := s.o.Logger.With("pubsub", r.pubsub, "topic", r.topic, "outbox", r.from.Name)
	for wait := minPause; ctx.Err() == nil; wait = min(2*wait, maxPause) {
		started := time.Now()
		err := s.forward(ctx, r, log)
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > maxPause {
			wait = minPause
		}
		log.Warn("the events of an outbox are not published; it is tried again", "after", wait, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// notPublished is logged when an event stays in the internal topic.
const notPublished = "an event of an outbox was not published; it is tried again"

// forward publishes events until ctx ends or the broker of the internal topic fails.
func (s *Subscriber) forward(ctx context.Context, r *relay, log *slog.Logger) error {
	bounded, cancel := context.WithTimeout(ctx, settleTime)
	from, err := r.from.Broker.Subscribe(bounded, pubsub.SubscribeRequest{
		Topic: r.from.TopicOf(r.internal), Group: relayGroup,
		Metadata: map[string]string{"groupTTL": "0s"}}) // 0s: events wait for their publish without limit
	cancel()
	if err != nil {
		return err
	}
	defer from.Close()
	log.Info("publishing the events of an outbox")
	var deciding sync.WaitGroup
	defer deciding.Wait()
	warnings := &logadapt.Sparse{}
	warn := func(what string, err error) {
		warnings.Log(func(more int) { log.Warn(what, "error", err, "similar", more) })
	}
	for {
		list, err := from.Receive(ctx, receiveAtOnce)
		if err != nil {
			return ended(ctx, err)
		}
		if !r.marked {
			s.forwardSome(ctx, r, from, list, warn)
			continue
		}
		for _, one := range sequences(list) { // the broker bounds how many deliveries are not settled
			deciding.Go(func() { s.forwardMarked(ctx, r, from, one, warn) })
		}
	}
}

// forwardMarked publishes the events of one sequence whose transactions are committed, and drops the others.
func (s *Subscriber) forwardMarked(ctx context.Context, r *relay, from pubsub.Subscription, list []pubsub.Delivery,
	warn func(what string, err error)) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(s.work, cancel)()
	for n := range list {
		d := &list[n]
		err := s.forwardOne(ctx, work, r, &d.Message, warn)
		outcome := pubsub.Acknowledged
		switch {
		case err == nil:
		case errors.As(err, new(errForeign)):
			warn("a message that is not an event of an outbox is dropped from its internal topic", err)
			err = nil
		case ctx.Err() != nil:
			outcome = pubsub.Released
		default:
			outcome = pubsub.Failed
			warn(notPublished, err)
		}
		s.settle(work, from, d, outcome, warn)
		if err != nil {
			for k := range list[n+1:] {
				s.settle(work, from, &list[n+1+k], pubsub.Released, warn)
			}
			return
		}
	}
}

// forwardOne publishes an event from the internal topic if its transaction is committed. The context ctx limits how
// long forwardOne waits for the outcome of the transaction, and the context work limits the publishing. If forwardOne
// returns nil, the message can be removed from the internal topic.
func (s *Subscriber) forwardOne(ctx, work context.Context, r *relay, m *pubsub.Message,
	warn func(what string, err error)) error {
	e, err := unmark(m)
	if err != nil {
		return err
	}
	store := s.storeOf(r, e.Store)
	if store == nil {
		return fault.New(fault.Unavailable, "pubsub.relay", "state store "+api.ShortenName(e.Store)+
			", which has an event in the outbox, is not found or has another outbox (declare it as before, until the "+
			"events are published)")
	}
	markers := &markers{store: store, app: s.o.App.ID, metadata: e.Metadata}
	if committed, err := markers.committed(ctx, &e); err != nil || !committed {
		return err
	}
	event := pubsub.Message{ID: e.ID, Data: e.Event, ContentType: contentCloudEvent, Key: e.Key}
	if err := s.publishSome(work, r, []pubsub.Message{event})[0]; err != nil {
		return err
	}
	if err := markers.remove(work, e.ID); err != nil {
		warn("the key of an event that was published stays in state store "+store.Name+", which does no harm", err)
	}
	return nil
}

// storeOf returns the store with the given name, or nil if the application has no such store or r is not the relay for
// its events.
func (s *Subscriber) storeOf(r *relay, name string) *state.Instance {
	for _, i := range s.o.Outboxes() {
		if i.Name == name && relayTopic(s.o.App, i) == r.internal {
			return i
		}
	}
	return nil
}

func (s *Subscriber) settle(ctx context.Context, from pubsub.Subscription, d *pubsub.Delivery, o pubsub.Outcome,
	warn func(what string, err error)) {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	if err := from.Settle(ctx, d, o); err != nil && !fault.Is(err, fault.NotFound) {
		warn("the outcome of an event of an outbox was not stored; the event comes again", err)
	}
}

// forwardSome publishes the received events and settles their deliveries. After the end of ctx, it continues for up to
// settleTime, unless the Subscriber cancels its deliveries.
//
// Each request to the broker has at most one event of a sequence, because the broker might refuse an event of a request
// and publish a later one.
func (s *Subscriber) forwardSome(ctx context.Context, r *relay, from pubsub.Subscription, list []pubsub.Delivery,
	warn func(what string, err error)) {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(s.work, cancel)()
	for waiting := sequences(list); len(waiting) > 0; {
		messages := make([]pubsub.Message, len(waiting))
		for n := range waiting {
			messages[n] = waiting[n][0].Message
		}
		errs := s.publishSome(work, r, messages)
		var next [][]pubsub.Delivery
		for n, sequence := range waiting {
			outcome, later := pubsub.Acknowledged, sequence[1:]
			if errs[n] != nil {
				outcome = pubsub.Failed
				warn(notPublished, errs[n])
			}
			s.settle(work, from, &sequence[0], outcome, warn)
			if errs[n] == nil && ctx.Err() == nil && len(later) > 0 {
				next = append(next, later)
				continue
			}
			for k := range later {
				s.settle(work, from, &later[k], pubsub.Released, warn)
			}
		}
		waiting = next
	}
}

// publishSome publishes events in their order, and returns the error of each.
func (s *Subscriber) publishSome(ctx context.Context, r *relay, events []pubsub.Message) []error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	errs := make([]error, len(events))
	i, err := s.relayTarget(r)
	if err == nil {
		var failures []pubsub.Failure
		failures, err = i.Broker.Publish(ctx, pubsub.PublishRequest{Topic: i.TopicOf(r.topic), Messages: events})
		for _, f := range failures {
			errs[f.Index] = f.Err
		}
	}
	if err != nil {
		for n := range errs {
			errs[n] = err
		}
	}
	return errs
}

// relayTarget returns the component that a relay publishes to.
func (s *Subscriber) relayTarget(r *relay) (*pubsub.Instance, error) {
	i, ok := s.o.Source.PubSub(r.pubsub)
	if !ok || !i.VisibleTo(s.o.App.ID) {
		return nil, fault.New(fault.Unavailable, "pubsub.relay", "pubsub "+r.pubsub+" is not found")
	}
	if !i.Topics.MayPublish(s.o.App.ID, r.topic) {
		return nil, forbidden(i.Name, r.topic, s.o.App.ID)
	}
	return i, nil
}

// reserved returns the reason why applications cannot use a topic name, or "" if the name is not reserved. The reason
// continues a sentence that begins with the name.
func reserved(topic string) string {
	if strings.Contains(topic, reservedTopics) { // anywhere, because a component may add a prefix of its own
		return "contains " + reservedTopics + ", which is reserved"
	}
	return ""
}

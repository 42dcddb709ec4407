package pubsub

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
	"github.com/quorate/quorate/internal/signal"
	"github.com/quorate/quorate/internal/suggest"
)

// SubscriberOptions configure a Subscriber. App, Source and Logger are required.
type SubscriberOptions struct {
	App    api.App
	Source Source
	// Target is the application; nil = the node does not call it, so there are only streams.
	Target Target
	// Discover asks the application for its subscriptions; nil = the node does not ask.
	Discover func(ctx context.Context) ([]Definition, error)
	// Outboxes returns the stores of the application that have an outbox; nil = none.
	Outboxes func() []*state.Instance
	// Policy returns the policy for deliveries of a component; nil = none.
	Policy   func(component string) *resiliency.Policy
	Observer Observer         // nil = none
	Now      func() time.Time // nil = time.Now
	Logger   *slog.Logger
}

// Subscriber runs the subscriptions of one application. It is safe for concurrent use.
type Subscriber struct {
	o       SubscriberOptions
	changed *signal.Signal
	end     context.CancelFunc
	life    context.Context // ends when Close is called: no message is received any more
	stop    context.CancelFunc
	work    context.Context // ends when deliveries must end
	streams sync.WaitGroup
	loop    sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	declared   []Definition
	discovered []Definition
	subs       []*Subscription // valid ones, at most one for each topic
	asked      bool
	wanted     uint64 // number of changes of declared
	done       uint64 // the value of wanted that run has carried out
	running    []*running
	streaming  []*Subscription

	relays   []*relay            // only the goroutine of run uses it
	reported map[obstacle]string // what report has logged; only the goroutine of run uses it
}

// running is a subscription that is receiving messages.
type running struct {
	sub      *Subscription
	instance *pubsub.Instance
	end      func()
	done     chan struct{}
}

// NewSubscriber returns a Subscriber that receives nothing before Open.
func NewSubscriber(o SubscriberOptions) *Subscriber {
	if o.Policy == nil {
		o.Policy = func(string) *resiliency.Policy { return nil }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Subscriber{o: o, changed: signal.New()}
	s.life, s.end = context.WithCancel(context.Background())
	s.work, s.stop = context.WithCancel(context.Background())
	return s
}

// Open starts a goroutine that runs the declared subscriptions. The goroutine also requests a list of subscriptions
// from the application, and runs these subscriptions, too.
func (s *Subscriber) Open(declared []Definition) {
	s.mu.Lock()
	s.declared = declared
	s.checkLocked()
	s.mu.Unlock()
	s.loop.Go(s.run)
}

// Update replaces the declared subscriptions. It also restarts each subscription whose component has changed. It
// returns when all removed subscriptions have ended, or when ctx ends.
func (s *Subscriber) Update(ctx context.Context, declared []Definition) {
	s.mu.Lock()
	s.declared = declared
	s.checkLocked()
	s.wanted++
	want := s.wanted
	s.mu.Unlock()
	for {
		changed := s.changed.Wait()
		s.mu.Lock()
		done := s.done >= want || s.closed
		s.mu.Unlock()
		if done {
			return
		}
		s.changed.Fire()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		select {
		case <-s.changed.Wait():
		case <-time.After(readyPause / 4):
		case <-ctx.Done():
			return
		}
	}
}

// Close stops receiving messages, and waits until all messages in progress are settled. If ctx ends first, Close
// cancels the deliveries of these messages and returns an error. The broker then delivers the messages again.
func (s *Subscriber) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	done := make(chan struct{})
	go func() {
		s.loop.Wait()
		s.streams.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fault.Wrap(ctx.Err(), "pubsub.Close", "deliveries of messages were cut because they did not end in time")
	}
	s.stop()
	<-done
	return err
}

// run starts missing subscriptions and relays, and ends those that are no longer wanted. It repeats this until Close is
// called.
func (s *Subscriber) run() {
	defer s.reconcile(nil)
	defer s.reconcileRelays(nil)
	for s.life.Err() == nil {
		changed := s.changed.Wait()
		s.mu.Lock()
		goal := s.wanted
		s.mu.Unlock()
		s.discover()
		s.report()
		s.reconcile(s.goal())
		if s.o.Outboxes != nil && s.o.Source.Loaded() {
			s.reconcileRelays(s.o.Outboxes())
		}
		s.mu.Lock()
		s.done = goal
		pause := readyPause
		if len(s.subs) == 0 && (s.asked || s.o.Target == nil) {
			pause = quietPause
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-s.life.Done():
		case <-time.After(pause):
		}
	}
}

func (s *Subscriber) ready() bool {
	return s.o.Target != nil && s.o.Target.Ready() && s.o.Source.Loaded()
}

// obstacle identifies a subscription that does not receive.
type obstacle struct{ component, topic, source string }

// report logs which subscriptions receive no messages because of the configuration of the node. It logs a subscription
// again only if the reason has changed.
func (s *Subscriber) report() {
	if !s.o.Source.Loaded() {
		return
	}
	s.mu.Lock()
	declared, subs := s.declared, s.subs
	s.mu.Unlock()
	found := map[obstacle]string{}
	note := func(d *Definition, reason, hint string) {
		key := obstacle{d.PubSub, d.Topic, d.Source}
		if found[key] = reason; s.reported[key] != reason {
			s.o.Logger.Warn("a subscription does not receive", "pubsub", d.PubSub, "topic", d.Topic, "source", d.Source,
				"reason", reason, "hint", hint)
		}
	}
	winners := map[[2]string]string{}
	for _, sub := range subs {
		winners[[2]string{sub.PubSub, sub.Topic}] = sub.Source
		if reason, hint := s.hindrance(sub); reason != "" {
			note(&sub.Definition, reason, hint)
		}
	}
	for i := range declared {
		d := &declared[i]
		if by, ok := winners[[2]string{d.PubSub, d.Topic}]; ok && by != d.Source {
			note(d, "another subscription to the topic has precedence: that of "+by, "keep one of the two")
		}
	}
	s.reported = found
}

// hindrance returns the reason why a subscription cannot receive, and a hint how to fix this. If the subscription can
// receive, the reason is "".
func (s *Subscriber) hindrance(sub *Subscription) (reason, hint string) {
	i, ok := s.o.Source.PubSub(sub.PubSub)
	switch {
	case !ok:
		reason = "this node has no pubsub component " + strconv.Quote(fault.Shorten(sub.PubSub, 200))
		return reason, s.similar(sub.PubSub)
	case !i.VisibleTo(s.o.App.ID):
		return "the scopes of the pubsub component exclude the application", "add the app id to scopes of the component"
	case s.o.Target == nil:
		return "the application has no port, so messages cannot be delivered to it", "start the node with --app-port"
	}
	return "", ""
}

// similar returns a hint about the name of a component that does not exist.
func (s *Subscriber) similar(name string) string {
	var names []string
	for _, i := range s.o.Source.PubSubs() {
		if i.VisibleTo(s.o.App.ID) {
			names = append(names, i.Name)
		}
	}
	if near := suggest.For(name, names); near != "" {
		return "did you mean " + strconv.Quote(near) + "?"
	}
	return "correct pubsubname, or declare the component; quorate stores lists components"
}

// discover requests the list of subscriptions from the application, once each time the application becomes ready. If
// the application does not answer, its previous list stays in use. discover does nothing on a node without pub/sub
// components.
func (s *Subscriber) discover() {
	ready := s.ready()
	s.mu.Lock()
	s.asked = s.asked && ready
	asked := s.asked
	s.mu.Unlock()
	if asked || s.o.Discover == nil || !ready || len(s.o.Source.PubSubs()) == 0 {
		return
	}
	list, err := s.o.Discover(s.life)
	if s.life.Err() != nil {
		return
	}
	if err != nil {
		s.o.Logger.Warn("the application did not list its subscriptions; those of files and its previous list remain",
			"error", err, "hint", "answer GET /dapr/subscribe, or ListTopicSubscriptions over gRPC, with a list")
	}
	for i := range list {
		s.o.Logger.Info("the application subscribes", "pubsub", list[i].PubSub, "topic", list[i].Topic)
	}
	s.mu.Lock()
	if s.asked = true; err == nil {
		s.discovered = list
		s.checkLocked()
	}
	s.mu.Unlock()
}

// goal returns the subscriptions that are to run now. There are none until the application is ready and discover has
// requested the list of the application. The previous list may contain routes that the application no longer has.
func (s *Subscriber) goal() (out []*Subscription) {
	if !s.ready() {
		return nil
	}
	s.mu.Lock()
	subs, asked := s.subs, s.asked
	s.mu.Unlock()
	if s.o.Discover != nil && !asked {
		return nil
	}
	for _, sub := range subs {
		if i, ok := s.o.Source.PubSub(sub.PubSub); ok && i.VisibleTo(s.o.App.ID) && len(sub.rules) > 0 {
			out = append(out, sub)
		}
	}
	return out
}

// checkLocked computes s.subs from the declared subscriptions and the list of the application. It logs invalid
// subscriptions. The caller must hold s.mu from the change of a declaration or list until checkLocked returns, so that
// other goroutines always see a matching s.subs.
func (s *Subscriber) checkLocked() {
	s.subs = nil
	for _, d := range effective(s.declared, s.discovered) {
		sub, err := d.Check()
		if err != nil {
			s.o.Logger.Error("a subscription is not valid; it receives nothing", "error", err)
			continue
		}
		s.subs = append(s.subs, sub)
	}
}

// reconcile ends the subscriptions that are not wanted, and starts those that are missing.
func (s *Subscriber) reconcile(goal []*Subscription) {
	type target struct {
		key      string
		instance *pubsub.Instance
	}
	wanted := map[target]*Subscription{}
	for _, sub := range goal {
		if i, ok := s.o.Source.PubSub(sub.PubSub); ok {
			wanted[target{sub.key, i}] = sub
		}
	}
	s.mu.Lock()
	var kept, ending []*running
	for _, r := range s.running {
		at := target{r.sub.key, r.instance}
		if wanted[at] != nil {
			kept = append(kept, r)
			delete(wanted, at)
			continue
		}
		ending = append(ending, r)
		r.end()
	}
	s.running = kept
	s.mu.Unlock()
	for _, r := range ending {
		<-r.done
	}
	for at, sub := range wanted {
		r := s.start(sub, at.instance)
		s.mu.Lock()
		s.running = append(s.running, r)
		s.mu.Unlock()
	}
}

// drainTime limits how long a subscription waits for the messages that the application is handling, when the
// subscription was removed or its broker has failed. Without the limit, a policy that repeats a delivery forever would
// block changes of other subscriptions, and would keep this one from joining its group again.
const drainTime = 30 * time.Second

// start runs a subscription in a goroutine. The goroutine ends when the caller calls running.end, or when the
// Subscriber is closed. After each failure, it tries again after a longer pause. It does not log the same reason twice
// in succession, unless the subscription has joined its group between the two failures.
func (s *Subscriber) start(sub *Subscription, i *pubsub.Instance) *running {
	receiving, end := context.WithCancel(s.life)
	working, cut := context.WithCancel(s.work)
	r := &running{sub: sub, instance: i, done: make(chan struct{})}
	r.end = func() {
		end()
		if s.life.Err() == nil { // otherwise Close decides how long to wait
			time.AfterFunc(drainTime, cut)
		}
	}
	go func() {
		defer close(r.done)
		defer cut()
		log := s.o.Logger.With("pubsub", i.Name, "topic", sub.Topic)
		logged := ""
		for wait := minPause; receiving.Err() == nil; wait = min(2*wait, maxPause) {
			started := time.Now()
			joined, err := s.read(receiving, working, sub, i, s.o.Target, log)
			if receiving.Err() != nil {
				return
			}
			if time.Since(started) > maxPause {
				wait = minPause
			}
			if reason := fmt.Sprint(err); joined || reason != logged {
				log.Warn("a subscription does not receive; it is tried again", "after", wait, "error", err)
				logged = reason
			}
			select {
			case <-receiving.Done():
			case <-time.After(wait):
			}
		}
	}()
	return r
}

// read joins the consumer group of a subscription and delivers messages to the target. It returns when its first
// context ends or the broker fails (see reader.run). joined is false if read could not join the group.
func (s *Subscriber) read(receiving, working context.Context, sub *Subscription, i *pubsub.Instance, to Target,
	log *slog.Logger) (joined bool, err error) {
	if err := s.permitted(i, sub); err != nil {
		return false, err
	}
	group := i.Group(s.o.App.ID)
	ctx, cancel := context.WithTimeout(receiving, settleTime)
	from, err := i.Broker.Subscribe(ctx, pubsub.SubscribeRequest{Topic: i.TopicOf(sub.Topic), Group: group,
		Metadata: sub.Metadata, Unsettled: max(sub.bulk, 0)})
	cancel()
	if err != nil {
		return false, err
	}
	defer from.Close()
	log.Info("receiving messages", "group", group, "kind", string(sub.Kind))
	r := &reader{sub: sub, instance: i, app: s.o.App, from: from, target: to, policy: s.o.Policy,
		observer: s.o.Observer, log: log, now: s.o.Now, warnings: &logadapt.Sparse{}, drops: &logadapt.Sparse{}}
	return true, r.run(receiving, working)
}

// maxStreams limits the streams of one application. The messages of a stream stay in memory until the client has
// answered them.
const maxStreams = 100

// Stream delivers the messages of a subscription to the client of a stream. It returns when the stream or the
// Subscriber ends. Before the first message, Stream calls open, which reports to the client that the subscription is
// accepted.
func (s *Subscriber) Stream(ctx context.Context, d Definition, to Target, open func() error) error {
	d.Kind = Streaming
	sub, err := d.Check()
	if err != nil {
		return streamInvalid(err)
	}
	i, err := s.streamed(sub)
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return closing()
	}
	if len(s.streaming) >= maxStreams {
		s.mu.Unlock()
		return api.Overloaded(fault.New(fault.Overloaded, "pubsub.Stream",
			fmt.Sprintf("the application has %d streams of messages open, which is the largest number", maxStreams)))
	}
	s.streams.Add(1)
	s.streaming = append(s.streaming, sub)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.streaming = slices.DeleteFunc(s.streaming, func(o *Subscription) bool { return o == sub })
		s.mu.Unlock()
		s.streams.Done()
	}()
	if err := open(); err != nil {
		return err
	}
	log := s.o.Logger.With("pubsub", i.Name, "topic", sub.Topic)
	receiving, end := context.WithCancel(s.life)
	defer end()
	defer context.AfterFunc(ctx, end)()
	working, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(s.work, stop)()
	for {
		_, err := s.read(receiving, working, sub, i, to, log)
		if receiving.Err() != nil {
			return nil
		}
		select { // the component was changed, or its broker cannot be reached
		case <-receiving.Done():
			return nil
		case <-time.After(minPause):
		}
		log.Info("a stream joins its group again", "error", err)
		if i, err = s.streamed(sub); err != nil {
			return err
		}
	}
}

// streamed returns the component of a stream.
func (s *Subscriber) streamed(sub *Subscription) (*pubsub.Instance, error) {
	i, ok := s.o.Source.PubSub(sub.PubSub)
	if !ok || !i.VisibleTo(s.o.App.ID) {
		return nil, notFoundStream(sub.PubSub)
	}
	if err := s.permitted(i, sub); err != nil {
		return nil, err
	}
	return i, nil
}

// permitted returns an error if the scopes of the component forbid a subscription. The application must be allowed to
// subscribe to the topic. It must also be allowed to publish to the dead-letter topic, if there is one.
func (s *Subscriber) permitted(i *pubsub.Instance, sub *Subscription) error {
	switch app := s.o.App.ID; {
	case !i.Topics.MaySubscribe(app, sub.Topic):
		return forbidden(i.Name, sub.Topic, app)
	case sub.DeadLetter != "" && !i.Topics.MayPublish(app, sub.DeadLetter):
		return forbidden(i.Name, sub.DeadLetter, app)
	}
	return nil
}

// Subscriptions returns all valid subscriptions of the application, including those that receive nothing yet because
// the application or the component is not ready.
func (s *Subscriber) Subscriptions() []*Subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append(slices.Clone(s.subs), s.streaming...)
}

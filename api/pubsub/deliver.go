package pubsub

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
)

// Verdict is the decision about a message.
type Verdict int

// The verdicts. The last five drop the message: it is not delivered again.
const (
	Success   Verdict = iota // handled
	Retry                    // not handled; may be delivered again
	Drop                     // goes to the dead-letter topic if there is one
	Missing                  // as Drop; the application has no handler for the path
	Ignored                  // no dead letter; the application has no handler for messages
	unmatched                // as Drop; no rule matches
	expired                  // as Drop; the time to live is over
)

// reason returns why a message is dropped.
func (v Verdict) reason() string {
	switch v {
	case Missing:
		return "the application has no handler for the route: it answered 404, or Unimplemented over gRPC"
	case Ignored:
		return "the application has no handler for messages: it answered Unimplemented"
	case unmatched:
		return "no routing rule matches, and there is no default route"
	case expired:
		return "the time to live of the message is over"
	}
	return "the application answered DROP"
}

// String returns Dapr's word for a verdict.
func (v Verdict) String() string {
	switch v {
	case Success:
		return "success"
	case Retry:
		return "retry"
	}
	return "drop"
}

// Target receives the messages of subscriptions. A Target is an application, or the client of a stream. Implementations
// are safe for concurrent use.
type Target interface {
	// Ready reports whether messages can be delivered now.
	Ready() bool
	// Deliver delivers one message and waits for the answer. An error means that there was no answer, or that the
	// answer was a failure. fault.Unavailable means that the message was certainly not delivered.
	Deliver(ctx context.Context, e *Event) (Verdict, error)
	// DeliverBatch delivers several messages. The answer has the verdicts by entry id. An entry without a verdict is
	// delivered again.
	DeliverBatch(ctx context.Context, b *Batch) (map[string]Verdict, error)
	// Retryable reports whether the policy p permits another attempt after a delivery that failed with err.
	Retryable(p *resiliency.Policy, err error) bool
}

// Bounds of deliveries.
const (
	maxInFlight      = 1000             // messages of one subscription that are being handled
	maxBytesInFlight = 64 << 20         // bytes of these messages
	receiveAtOnce    = 100              // messages of one Receive
	handlerTime      = 60 * time.Second // for one attempt, unless the policy has a timeout
	settleTime       = 10 * time.Second
	deadLetterTime   = 30 * time.Second
	readyPause       = 200 * time.Millisecond // between checks whether the target is ready
	quietPause       = 2 * time.Second        // instead of readyPause, if there is no subscription
	minPause         = 500 * time.Millisecond // after an error of the broker; doubles
	maxPause         = 30 * time.Second
)

// reader delivers the messages of one subscription to one target.
type reader struct {
	sub      *Subscription
	instance *pubsub.Instance
	app      api.App
	from     pubsub.Subscription
	target   Target
	policy   func(component string) *resiliency.Policy
	observer Observer // nil = none
	log      *slog.Logger
	now      func() time.Time
	warnings *logadapt.Sparse
	drops    *logadapt.Sparse

	mu     sync.Mutex
	cond   *sync.Cond
	count  int
	bytes  int
	absent bool // the target could not be reached: wait before the next message
}

// run receives messages and delivers them, until its first context ends or the broker fails. It then waits for the
// deliveries in progress. The end of the second context cancels these deliveries.
//
// After a failure of the broker, run waits at most drainTime before it cancels the deliveries, and returns the error of
// the broker. Otherwise, it returns nil.
func (r *reader) run(receiving, working context.Context) error {
	r.cond = sync.NewCond(&r.mu)
	defer context.AfterFunc(receiving, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.cond.Broadcast()
	})()
	working, cut := context.WithCancel(working)
	defer cut()
	var handlers sync.WaitGroup
	err := r.receive(receiving, working, &handlers)
	if err != nil { // a policy may repeat a delivery forever, and the caller joins the group again after this call
		defer time.AfterFunc(drainTime, cut).Stop()
	}
	handlers.Wait()
	return err
}

// receive receives messages until its first context ends or the broker fails. It delivers the messages in goroutines,
// which it adds to handlers. The second context is for these deliveries. receive returns an error only if the broker
// fails.
func (r *reader) receive(receiving, working context.Context, handlers *sync.WaitGroup) error {
	if r.sub.bulk > 0 {
		return r.runBulk(receiving, working)
	}
	for receiving.Err() == nil {
		limit := r.room(receiving)
		if limit == 0 || !r.ready(receiving) {
			continue
		}
		list, err := r.from.Receive(receiving, limit)
		if err != nil {
			return ended(receiving, err)
		}
		for _, sequence := range sequences(list) {
			r.add(sequence, 1)
			begun := make(chan struct{})
			handlers.Go(func() {
				begin := sync.OnceFunc(func() { close(begun) })
				defer begin()
				defer r.add(sequence, -1)
				r.handleSequence(working, sequence, begin)
			})
			if r.sub.Kind == Streaming { // a stream gets its messages in order, although several are handled at once
				<-begun
			}
		}
	}
	return nil
}

// ended returns nil if ctx has ended, and otherwise err, the error of Receive.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// room waits until more messages may be handled, and returns how many. It returns 0 if ctx has ended.
func (r *reader) room(ctx context.Context) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for ctx.Err() == nil && (r.count >= maxInFlight || r.bytes >= maxBytesInFlight) {
		r.cond.Wait()
	}
	if ctx.Err() != nil {
		return 0
	}
	return min(maxInFlight-r.count, receiveAtOnce)
}

func (r *reader) add(list []pubsub.Delivery, sign int) {
	size := 0
	for i := range list {
		size += len(list[i].Data)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count += sign * len(list)
	r.bytes += sign * size
	r.cond.Broadcast()
}

// ready waits until the target can take messages. It returns false if ctx ends.
func (r *reader) ready(ctx context.Context) bool {
	r.mu.Lock()
	absent := r.absent
	r.absent = false
	r.mu.Unlock()
	for absent || !r.target.Ready() {
		absent = false
		select {
		case <-ctx.Done():
			return false
		case <-time.After(readyPause):
		}
	}
	return true
}

// sequences groups deliveries by their sequence. The returned lists can be handled concurrently. A delivery without a
// sequence gets a list of its own.
func sequences(list []pubsub.Delivery) (out [][]pubsub.Delivery) {
	at := map[string]int{}
	for i := range list {
		name := list[i].Sequence
		n, known := at[name]
		if name == "" || !known {
			at[name] = len(out)
			out = append(out, list[i:i+1:i+1])
			continue
		}
		out[n] = append(out[n], list[i])
	}
	return out
}

// handleSequence handles messages one after another. If a message must be delivered again, it returns all later
// messages to the broker, so that the order is kept. The method Event.Sent of each message calls begin.
func (r *reader) handleSequence(ctx context.Context, list []pubsub.Delivery, begin func()) {
	for i := range list {
		if r.handle(ctx, &list[i], begin) {
			continue
		}
		for j := i + 1; j < len(list); j++ {
			r.settle(&list[j], pubsub.Released)
		}
		return
	}
}

// handle delivers one message and reports the outcome to the broker. It returns false if the message must be delivered
// again. The method Event.Sent of the message calls begin.
func (r *reader) handle(ctx context.Context, d *pubsub.Delivery, begin func()) bool {
	start := time.Now()
	path, verdict, err := r.decide(ctx, d, begin)
	done := r.conclude(ctx, d, path, verdict, err)
	if r.observer != nil {
		r.observer.Delivered(r.instance.Name, r.sub.Topic, verdict.String(), time.Since(start))
	}
	return done
}

// decide finds the route of a message and delivers the message to the target. It returns the verdict, and the path to
// which the message was routed. The path is empty if no route was found.
func (r *reader) decide(ctx context.Context, d *pubsub.Delivery, begin func()) (path string, verdict Verdict,
	err error) {
	e, err := r.sub.eventOf(d)
	if err != nil {
		return "", Retry, err
	}
	if e.expired(r.now()) {
		return "", expired, nil
	}
	path, found, err := r.sub.route(ctx, e)
	if err != nil {
		return "", Retry, err
	}
	if !found {
		return "", unmatched, nil
	}
	e.Path, e.sent = path, begin
	err = r.attempts(ctx, func(ctx context.Context) error {
		var err error
		if verdict, err = r.target.Deliver(ctx, e); err == nil && verdict == Retry {
			err = fault.New(fault.Internal, "pubsub.deliver", "the application answered RETRY")
		}
		return err
	})
	if err != nil {
		verdict = Retry
	}
	return path, verdict, err
}

// attempts makes a delivery, and repeats it according to the policy of the component. If the policy has no timeout,
// each attempt may take at most handlerTime.
func (r *reader) attempts(ctx context.Context, deliver func(context.Context) error) (err error) {
	p := r.policy(r.instance.Name)
	final := error(nil) // the error of a delivery that is not repeated
	once := func(ctx context.Context) error {
		if p == nil || p.Timeout <= 0 {
			bounded, cancel := context.WithTimeout(ctx, handlerTime)
			defer cancel()
			ctx = bounded
		}
		err := deliver(ctx)
		if err != nil && p != nil && !r.target.Retryable(p, err) {
			final, err = err, nil
		}
		return err
	}
	if err = p.Repeat(ctx, once); err == nil {
		err = final
	}
	return err
}

// conclude settles a message. It returns false if the message must be delivered again.
func (r *reader) conclude(ctx context.Context, d *pubsub.Delivery, path string, v Verdict, err error) bool {
	switch {
	case v == Success:
		return r.settle(d, pubsub.Acknowledged)
	case v == Ignored, v != Retry && r.sub.DeadLetter == "":
		return r.drop(d, path, v)
	case ctx.Err() != nil:
		r.settle(d, pubsub.Released) // the node stops, or the stream has ended
		return false
	case fault.Is(err, fault.Unavailable):
		// The application cannot be reached, so this attempt does not count as a failure of the message.
		r.mu.Lock()
		r.absent = true
		r.mu.Unlock()
		r.settle(d, pubsub.Released)
		return false
	case r.sub.DeadLetter != "":
		return r.deadLetter(d, path, v, err)
	}
	r.warnings.Log(func(more int) {
		r.log.Warn("a message was not handled; it is delivered again", "attempt", d.Attempt, "error", err, "similar",
			more)
	})
	r.settle(d, pubsub.Failed)
	return false
}

// drop acknowledges a message that was not handled, so that it is not delivered to the consumer group again. It returns
// true if the broker has recorded the acknowledgment. drop logs the message, unless the message has expired.
func (r *reader) drop(d *pubsub.Delivery, path string, v Verdict) bool {
	if v != expired {
		r.drops.Log(func(more int) {
			r.log.Warn("a message was dropped", "id", fault.Shorten(d.ID, 200), "route", path, "reason", v.reason(),
				"similar", more, "hint", "give the subscription a dead-letter topic to keep such messages")
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	return r.noted("dropped", pubsub.Drop(ctx, r.from, d))
}

func (r *reader) deadLetter(d *pubsub.Delivery, path string, v Verdict, cause error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), deadLetterTime)
	defer cancel()
	if err := r.from.DeadLetter(ctx, d, r.instance.TopicOf(r.sub.DeadLetter)); err != nil {
		r.warnings.Log(func(more int) {
			r.log.Error("a message could not be moved to the dead-letter topic; it is delivered again", "dead_letter",
				r.sub.DeadLetter, "error", err, "similar", more)
		})
		if !fault.Is(err, fault.NotFound) {
			r.settle(d, pubsub.Failed)
		}
		return false
	}
	reason := v.reason()
	if cause != nil {
		reason = fault.Text(cause)
	}
	r.warnings.Log(func(more int) {
		r.log.Warn("a message was moved to the dead-letter topic", "dead_letter", r.sub.DeadLetter, "route", path,
			"attempt", d.Attempt, "reason", reason, "similar", more)
	})
	return true
}

// settle reports the outcome of a delivery to the broker. It returns true if the broker has recorded the outcome.
func (r *reader) settle(d *pubsub.Delivery, o pubsub.Outcome) bool {
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	return r.noted(o.String(), r.from.Settle(ctx, d, o))
}

// noted reports whether the broker has recorded an outcome. err is the result of the request to the broker. noted logs
// err, unless err is nil or fault.NotFound.
func (r *reader) noted(outcome string, err error) bool {
	if err != nil && !fault.Is(err, fault.NotFound) {
		r.warnings.Log(func(more int) {
			r.log.Warn("the broker did not note what became of a message; it may be delivered again", "outcome",
				outcome, "error", err, "similar", more)
		})
	}
	return err == nil
}

// runBulk receives and delivers messages in batches, one batch after another. It returns when its first context ends or
// the broker fails. The second context is for the deliveries. runBulk returns an error only if the broker fails.
func (r *reader) runBulk(receiving, working context.Context) error {
	for receiving.Err() == nil {
		if !r.ready(receiving) {
			continue
		}
		list, err := r.from.Receive(receiving, r.sub.bulk)
		if err != nil {
			return ended(receiving, err)
		}
		list = r.gather(receiving, list)
		r.add(list, 1)
		r.handleBulk(working, list)
		r.add(list, -1)
	}
	return nil
}

// gather fills a batch: it receives further messages and appends them to list. It returns when one of these conditions
// is met:
//
//   - The list has r.sub.bulk messages, or at least maxBytesInFlight bytes.
//   - The time r.sub.await has passed.
//   - ctx ends, or the broker fails.
func (r *reader) gather(ctx context.Context, list []pubsub.Delivery) []pubsub.Delivery {
	ctx, cancel := context.WithTimeout(ctx, r.sub.await)
	defer cancel()
	size := 0
	for _, d := range list {
		size += len(d.Data)
	}
	for len(list) < r.sub.bulk && size < maxBytesInFlight {
		more, err := r.from.Receive(ctx, r.sub.bulk-len(list))
		if err != nil {
			return list // the next Receive has the error again
		}
		for _, d := range more {
			size += len(d.Data)
		}
		list = append(list, more...)
	}
	return list
}

// handleBulk handles messages in batches. A batch contains only messages with the same path. Messages of one sequence
// with different paths are delivered in several batches, one after another. If a message must be delivered again,
// handleBulk returns the later messages of its sequence to the broker.
func (r *reader) handleBulk(ctx context.Context, list []pubsub.Delivery) {
	for held := (sequenceSet{}); len(list) > 0; {
		list = r.handleRound(ctx, list, held)
	}
}

// sequenceSet has the sequences with a message that must be delivered again.
type sequenceSet map[string]bool

func (s sequenceSet) note(d *pubsub.Delivery, done bool) {
	if !done && d.Sequence != "" {
		s[d.Sequence] = true
	}
}

// handleRound delivers messages, with one batch for each path. To keep the order of a sequence, it delivers only the
// messages before the first change of the path. The result has the messages for the next round.
//
// held is the set of sequences with a message that must be delivered again. handleRound adds such sequences to held,
// and gives the later messages of a held sequence back to the broker.
func (r *reader) handleRound(ctx context.Context, list []pubsub.Delivery, held sequenceSet) (later []pubsub.Delivery) {
	var order []string
	batches := map[string]*Batch{}
	of := map[string]*pubsub.Delivery{}
	paths, blocked := map[string]string{}, map[string]bool{} // by sequence
	for i := range list {
		d := &list[i]
		if held[d.Sequence] {
			r.settle(d, pubsub.Released)
			continue
		}
		if blocked[d.Sequence] {
			later = append(later, *d)
			continue
		}
		e, err := r.sub.eventOf(d)
		path, found, verdict := "", false, unmatched
		if err == nil && e.expired(r.now()) {
			verdict = expired
		} else if err == nil {
			path, found, err = r.sub.route(ctx, e)
		}
		if before, waits := paths[d.Sequence]; waits && (!found || path != before) {
			blocked[d.Sequence] = true
			later = append(later, *d)
			continue
		}
		if !found {
			if err != nil {
				verdict = Retry
			}
			held.note(d, r.conclude(ctx, d, path, verdict, err))
			continue
		}
		e.Path = path
		id := strconv.Itoa(i)
		if of[id] = d; batches[path] == nil {
			order = append(order, path)
			batches[path] = &Batch{ID: newID(), PubSub: r.sub.PubSub, Topic: r.sub.Topic, Path: path}
		}
		batches[path].Entries = append(batches[path].Entries, BatchEntry{e, id})
		if d.Sequence != "" {
			paths[d.Sequence] = path
		}
	}
	for _, path := range order {
		r.deliverBatch(ctx, batches[path], of, held)
	}
	return later
}

// deliverBatch delivers a batch, and repeats the delivery of the entries that have failed. If entries must be delivered
// again after the last attempt, deliverBatch adds their sequences to held. of[id] is the delivery of the entry with
// that id.
func (r *reader) deliverBatch(ctx context.Context, b *Batch, of map[string]*pubsub.Delivery, held sequenceSet) {
	start, messages := time.Now(), map[string]int{}
	conclude := func(id string, v Verdict, err error) { // not limited by the timeout of an attempt
		held.note(of[id], r.conclude(ctx, of[id], b.Path, v, err))
		messages[v.String()]++
	}
	err := r.attempts(ctx, func(attempt context.Context) error {
		verdicts, err := r.target.DeliverBatch(attempt, b)
		if err != nil {
			return err
		}
		var left []BatchEntry
		for _, entry := range b.Entries {
			v, answered := verdicts[entry.EntryID]
			if !answered || v == Retry {
				left = append(left, entry)
				continue
			}
			conclude(entry.EntryID, v, nil)
		}
		if b.Entries = left; len(left) > 0 {
			return fault.New(fault.Internal, "pubsub.deliver", "the application answered RETRY or nothing for "+
				strconv.Itoa(len(left))+" messages")
		}
		return nil
	})
	for _, entry := range b.Entries {
		conclude(entry.EntryID, Retry, err)
	}
	if r.observer != nil {
		r.observer.DeliveredBulk(r.instance.Name, r.sub.Topic, messages, time.Since(start))
	}
}

package topics

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Bounds of a Broker.
const (
	maxPublish  = 63 << 20 // bytes of the messages of one request
	maxMessages = 10_000   // messages of one request
	maxDeclared = 20_000   // topics for which the broker remembers when it has stored their policy
	// declareAgain is the minimum time between two requests in which a broker stores the policy of the same topic. The
	// policy is stored repeatedly because a restore may have removed it.
	declareAgain = time.Minute

	closeGrace  = 5 * time.Second
	callTimeout = 30 * time.Second
)

// BrokerOptions configure a Broker. The zero value has the defaults.
type BrokerOptions struct {
	Policy      Policy
	Window      time.Duration // time in which a second message with the same id is dropped; 0 = no message is dropped
	Concurrency int           // keys that a group handles at a time; 0 = 10
	Backoff     time.Duration // before the second attempt of a failed message; doubles up to a minute; 0 = 1 s
	GroupTTL    time.Duration // a group that is not used for this time ends; 0 = groups do not end
	Newest      bool          // new groups begin after the newest message
	Logger      *slog.Logger
}

// Broker implements pubsub.Broker. It works on any node; the messages are in the Raft groups of the cluster. At the
// first subscription, the Broker begins a session in each Raft group, because each group may have a part of the topic.
// For each session, one goroutine pulls messages, and further goroutines send settlements.
type Broker struct {
	access  records.Access
	store   string // namespace and name of the component
	opts    BrokerOptions
	pulling context.Context // for pulls; Close ends it before sending
	endPull context.CancelFunc
	sending context.Context // for settlements
	endSend context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	last     uint64 // id of the newest subscription
	links    map[uint32]*link
	declared map[Topic]time.Time // when this broker has stored the policy of a topic
}

var _ pubsub.Broker = (*Broker)(nil)

// NewBroker returns the broker of a component. store is the namespace, a slash and the name of the component.
func NewBroker(a records.Access, store string, o BrokerOptions) *Broker {
	if o.Policy.Retention == 0 {
		o.Policy.Retention = DefaultRetention
	}
	o.Policy.MaxBytes = cmp.Or(o.Policy.MaxBytes, DefaultMaxBytes)
	o.Concurrency = cmp.Or(o.Concurrency, defaultConcurrency)
	o.Backoff = cmp.Or(o.Backoff, defaultBackoff)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Broker{access: a, store: store, opts: o, links: map[uint32]*link{}, declared: map[Topic]time.Time{}}
	b.pulling, b.endPull = context.WithCancel(context.Background())
	b.sending, b.endSend = context.WithCancel(context.Background())
	return b
}

// Abilities implements pubsub.Broker.
func (b *Broker) Abilities() pubsub.Abilities {
	return pubsub.Abilities{TTL: true, Bulk: true, Ordered: true, Delayed: true, Deduplicate: b.opts.Window > 0,
		Atomic: true}
}

// home returns the part of a topic to which messages are published.
func (b *Broker) home(ctx context.Context, topic string) (Topic, error) {
	gid, err := b.access.Locate(ctx, b.store, topic+state.Separator)
	return Topic{Group: gid, Store: b.store, Name: topic}, err
}

func (b *Broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func errClosed(op string) error { return fault.New(fault.Unavailable, op, "the broker is closed") }

// Publish implements pubsub.Broker. All messages are in one log entry. A message is left out if the topic already knows
// its id.
func (b *Broker) Publish(ctx context.Context, r pubsub.PublishRequest) ([]pubsub.Failure, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(err, opPublish, "the call had ended before it began")
	}
	if b.isClosed() {
		return nil, errClosed(opPublish)
	}
	if err := checkRequest(&r); err != nil {
		return nil, err
	}
	t, err := b.home(ctx, r.Topic)
	if err != nil {
		return nil, err
	}
	messages := b.withoutTwins(r.Messages)
	for {
		res, err := b.access.Write(ctx, t.Group, &command.Request{Kind: command.KindWrite,
			Ops: b.publishOps(t, messages, b.opts.Window)})
		if err != nil {
			return nil, err
		}
		ids := t.key(tableID, "")
		switch {
		case res.Outcome == kv.Applied:
			b.declare(t)
			return nil, nil
		case res.Key == t.key(tableFull, ""):
			return nil, errFull(r.Topic)
		case !strings.HasPrefix(res.Key, ids):
			return nil, fault.New(fault.Internal, opPublish, fmt.Sprintf("publishing to %s was refused: %s", r.Topic,
				res.Outcome))
		}
		if messages, err = b.unpublished(ctx, t, messages); err != nil {
			return nil, err
		}
		if len(messages) == 0 {
			return nil, nil
		}
	}
}

// unpublished returns the messages that have no id, or an id that the topic does not know. It is called after a publish
// was refused because of one known id. It looks up all ids at once, so that further duplicates do not cause further
// refused log entries.
func (b *Broker) unpublished(ctx context.Context, t Topic, messages []pubsub.Message) (out []pubsub.Message,
	err error) {
	for some := range slices.Chunk(messages, records.MaxPage) {
		keys := make([]string, len(some))
		for i := range some {
			keys[i] = t.key(tableID, some[i].ID)
		}
		values, err := b.access.Values(ctx, t.Group, kv.TopicStore, keys)
		if err != nil {
			return nil, err
		}
		for i := range some {
			if !values[i].Found { // also if the message has no id
				out = append(out, some[i])
			}
		}
	}
	return out, nil
}

func errFull(topic string) error {
	return &fault.Error{Code: fault.Overloaded, Op: opPublish,
		Msg: "topic_full: topic " + topic + " has as much as it may have, and its consumer groups have not " +
			"acknowledged it",
		Hint: "let the subscribers handle their messages, or raise maxBytes of the component"}
}

func checkRequest(r *pubsub.PublishRequest) error {
	if err := checkNames(opPublish, r.Topic, ""); err != nil {
		return err
	}
	if len(r.Messages) == 0 || len(r.Messages) > maxMessages {
		return fault.New(fault.TooLarge, opPublish, fmt.Sprintf("a request has 1 to %d messages", maxMessages))
	}
	size := 0
	for i := range r.Messages {
		if err := checkMessage(&r.Messages[i]); err != nil {
			return err
		}
		size += encodedSize(&r.Messages[i]) + overhead
	}
	if size > maxPublish {
		return fault.New(fault.TooLarge, opPublish, fmt.Sprintf("the messages have %d bytes, and %d are allowed in a "+
			"request", size, maxPublish))
	}
	return nil
}

// withoutTwins drops a message if an earlier message of the same request has the same id. Without deduplication, it
// returns all messages.
func (b *Broker) withoutTwins(messages []pubsub.Message) []pubsub.Message {
	if b.opts.Window <= 0 || len(messages) == 1 {
		return messages
	}
	seen, out := map[string]bool{}, make([]pubsub.Message, 0, len(messages))
	for i := range messages {
		if id := messages[i].ID; id == "" || !seen[id] {
			seen[id] = true
			out = append(out, messages[i])
		}
	}
	return out
}

// publishOps returns the operations of a request that publishes messages to the topic. The request is refused if the
// topic is full, or if the topic knows the id of one of the messages. If window is 0, ids are not checked. The request
// also stores the policy of the topic, unless this broker has done so within declareAgain.
func (b *Broker) publishOps(t Topic, messages []pubsub.Message, window time.Duration) []command.Op {
	ops := []command.Op{{Kind: command.OpCheck, Cond: command.CondAbsent, Store: kv.TopicStore,
		Key: t.key(tableFull, "")}}
	for i := range messages {
		if m := &messages[i]; m.ID != "" && window > 0 {
			ops = append(ops, command.Op{Kind: command.OpSet, Cond: command.CondAbsent, Store: kv.TopicStore,
				Key: t.key(tableID, m.ID), Value: []byte{recordVersion},
				TTL: uint64(max(window.Milliseconds(), 1))}) //nolint:gosec // positive
		}
	}
	for i := range messages {
		ops = append(ops, AppendOp(t, &messages[i]))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.declared[t]) >= declareAgain {
		ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore, Key: t.key(tablePolicy, ""),
			Value: b.opts.Policy.encode()})
	}
	return ops
}

// declare notes in memory that this broker has stored the policy of a topic.
func (b *Broker) declare(t Topic) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.declared[t]) < declareAgain {
		return
	}
	if len(b.declared) >= maxDeclared {
		clear(b.declared)
	}
	b.declared[t] = time.Now()
}

// Subscribe implements pubsub.Broker.
func (b *Broker) Subscribe(ctx context.Context, r pubsub.SubscribeRequest) (pubsub.Subscription, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(err, opSubscribe, "the call had ended before it began")
	}
	if r.Group == "" {
		return nil, fault.New(fault.Invalid, opSubscribe, "the name of the consumer group is empty")
	}
	if err := checkNames(opSubscribe, r.Topic, r.Group); err != nil {
		return nil, err
	}
	s, err := b.newSubscription(&r)
	if err != nil {
		return nil, err
	}
	groups, err := b.access.Groups(ctx)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, errClosed(opSubscribe)
	}
	b.last++
	s.id = b.last
	for gid := range groups {
		l := b.links[gid]
		if l == nil {
			l = newLink(b, gid)
			b.links[gid] = l
		}
		s.links = append(s.links, l)
	}
	b.mu.Unlock()
	errs := make([]error, len(s.links))
	var joining sync.WaitGroup
	for i, l := range s.links {
		joining.Go(func() { errs[i] = l.add(ctx, s) })
	}
	joining.Wait()
	if b.isClosed() {
		errs = append(errs, errClosed(opSubscribe))
	}
	for _, err := range errs {
		if err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

func (b *Broker) newSubscription(r *pubsub.SubscribeRequest) (*subscription, error) {
	s := &subscription{b: b, topic: r.Topic, group: r.Group, concurrency: b.opts.Concurrency, newest: b.opts.Newest,
		unsettled: min(r.Unsettled, maxWindow), groupTTL: b.opts.GroupTTL, held: map[string]*held{},
		changed: make(chan struct{})}
	for name, check := range map[string]func(string) error{metadataConcurrency: checkConcurrency,
		metadataInitial: checkInitial, metadataGroupTTL: checkGroupTTL} {
		text := r.Metadata[name]
		if text == "" {
			continue
		}
		if err := check(text); err != nil {
			return nil, fault.New(fault.Invalid, opSubscribe, "metadata "+name+" of the subscription to "+r.Topic+" "+
				err.Error())
		}
		switch name {
		case metadataInitial:
			s.newest = text == newest
		case metadataGroupTTL:
			s.groupTTL, _ = time.ParseDuration(text)
		default:
			s.concurrency, _ = strconv.Atoi(text)
		}
	}
	s.window = min(2*max(s.concurrency, s.unsettled), maxWindow)
	return s, nil
}

// Close implements pubsub.Broker. It waits up to closeGrace until the outcomes of settled deliveries are sent. Messages
// whose outcomes were not sent by then are delivered again.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.closed = true
	links := make([]*link, 0, len(b.links))
	for _, l := range b.links {
		links = append(links, l)
	}
	b.mu.Unlock()
	for _, l := range links {
		for _, s := range l.subscriptions() {
			s.Close()
		}
	}
	b.endPull()
	patience := time.AfterFunc(closeGrace, b.endSend)
	b.running.Wait()
	patience.Stop()
	b.endSend()
	return nil
}

// Replay moves a consumer group back to the first message that was published at or after since. The group then
// receives all messages from there on again. Replay returns the errors of Admin.Replay.
func (b *Broker) Replay(ctx context.Context, topic, group string, since time.Time) error {
	return NewAdmin(b.access, b.store).Replay(ctx, topic, group, 0, since)
}

func newSession() string { return rand.Text() }

// Package redis implements the component type pubsub.redis. It stores messages in Redis streams, with the same layout
// as Dapr's component. The package owns the encoding of a message, and the consumer groups of this process.
//
// Each topic is the stream with the same name. Each consumer group is a Redis consumer group of this stream. All
// members of a group, in all processes, share one Redis consumer, which has the name of the group. A stream entry has
// these fields:
//
//	data      the message
//	metadata  its metadata as a JSON object, unless there is none
//	quorate   id, content type and key of the message as JSON; Dapr ignores it
//
// A delivered message is pending in Redis until it is acknowledged. Redis measures how long a pending message has been
// idle. A process regularly resets this idle time for the messages that it has. When the idle time reaches
// processingTimeout, any process may claim the message and deliver it again.
//
// Each group with members has up to three goroutines. One receives new messages, one resets idle times, and one claims
// idle messages and repeats failed acknowledgements. Close ends these goroutines and those of the client library.
package redis

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/pubsub"
	redisstate "github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type of this broker.
const Type = "pubsub.redis"

// Bounds of a broker.
const (
	maxGroups    = 1000     // groups in this process, with one connection each
	maxUnsettled = 10_000   // unsettled deliveries of one member
	maxBytes     = 16 << 20 // bytes of the messages of a group in this process; one request may exceed it
	maxUnacked   = 10_000   // acknowledgements of a group that Redis does not have yet
)

// Options are the settings of a broker.
type Options struct {
	Metadata component.Values // values of the fields that Fields returns
	Logger   *slog.Logger
}

// Broker implements pubsub.Broker.
type Broker struct {
	client  *redisstate.Client
	waiting *redisstate.Client // for commands that wait for messages
	set     settings
	log     *slog.Logger
	close   func() error

	ending sync.WaitGroup // counts the groups that have not ended

	mu     sync.Mutex
	closed bool
	groups map[groupKey]*group
}

type groupKey struct{ topic, name string }

var _ pubsub.Broker = (*Broker)(nil)

// Open connects to Redis. If Redis cannot be reached, Open retries until the deadline of ctx.
func Open(ctx context.Context, o Options) (*Broker, error) {
	set := read(o.Metadata)
	client, err := redisstate.Dial(ctx, redisstate.Options{Metadata: o.Metadata, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	set.warn(o.Logger)
	b := &Broker{client: client, waiting: client.Waiting(maxGroups), set: set, log: o.Logger,
		groups: map[groupKey]*group{}}
	b.close = sync.OnceValue(b.end)
	return b, nil
}

// Abilities implements pubsub.Broker. TTL is not among the abilities, because Redis cannot expire a single entry of a
// stream. The API writes the expiry time into the event instead.
func (b *Broker) Abilities() pubsub.Abilities { return pubsub.Abilities{} }

// The bounds of one round trip of Publish.
const (
	portion      = 256     // messages
	portionBytes = 1 << 20 // bytes; the last message may exceed it
)

// Publish implements pubsub.Broker. The messages of a request are stored one by one, in their order.
func (b *Broker) Publish(ctx context.Context, r pubsub.PublishRequest) ([]pubsub.Failure, error) {
	const op = "redis.Publish"
	if b.isClosed() {
		return nil, closedError(op)
	}
	if slices.ContainsFunc(r.Messages, func(m pubsub.Message) bool { return !m.DeliverAt.IsZero() }) {
		return nil, fault.New(fault.Invalid, op, "a time to deliver is not supported by a component of type "+Type)
	}
	var failures []pubsub.Failure
	for at := 0; at < len(r.Messages); {
		failed, end, lost := b.publish(ctx, op, r.Topic, r.Messages, at)
		failures = append(failures, failed...)
		for at = end; lost && at < len(r.Messages); at++ {
			failures = append(failures, pubsub.Failure{Index: at, Err: fault.New(fault.Unavailable, op,
				"the message was not sent to Redis at "+b.client.Where()+", because an earlier one had no answer")})
		}
	}
	if len(failures) == len(r.Messages) && len(failures) > 0 {
		return nil, pubsub.AllFailed(failures)
	}
	return failures, nil
}

// publish sends as many messages as one round trip allows, beginning at the index from. It returns the failures and the
// index after the last message that was sent. If lost is true, the connection to Redis may be lost, and the caller must
// send no further messages.
func (b *Broker) publish(ctx context.Context, op, topic string, messages []pubsub.Message, from int) (
	failures []pubsub.Failure, end int, lost bool,
) {
	var commands []redisstate.Command
	size := int64(0)
	for end = from; end < len(messages) && len(commands) < portion && size < portionBytes; end++ {
		commands = append(commands, b.add(topic, &messages[end]))
		size += messages[end].Size()
	}
	for i, reply := range b.client.WriteAll(ctx, op, topic, commands...) {
		err := reply.Err
		if _, ok := idOf(reply.Value); err == nil && !ok {
			err = &fault.Error{Code: fault.Indeterminate, Op: op, Msg: "the answer of Redis at " + b.client.Where() +
				" is no id of an entry; the message may have been published", Hint: "check redisHost"}
		}
		if err != nil {
			failures = append(failures, pubsub.Failure{Index: from + i, Err: b.explain(op, topic, err)})
			lost = lost || fault.Is(err, fault.Indeterminate) || fault.Is(err, fault.Unavailable) ||
				fault.Is(err, fault.Timeout)
		}
	}
	return failures, end, lost
}

// add returns the command that appends a message to a topic. If the settings limit the length or the age of topics, the
// command also trims the topic.
func (b *Broker) add(topic string, m *pubsub.Message) redisstate.Command {
	out := redisstate.Command{"xadd", topic}
	switch {
	case b.set.maxLen > 0:
		out = append(out, "maxlen", "~", b.set.maxLen)
	case b.set.streamTTL > 0:
		out = append(out, "minid", "~", fmt.Sprintf("%d-1", time.Now().Add(-b.set.streamTTL).UnixMilli()))
	}
	return append(append(out, "*"), fieldsOf(m)...)
}

// Subscribe implements pubsub.Broker.
func (b *Broker) Subscribe(ctx context.Context, r pubsub.SubscribeRequest) (pubsub.Subscription, error) {
	const op = "redis.Subscribe"
	if b.isClosed() {
		return nil, closedError(op)
	}
	if err := b.ensure(ctx, op, r.Topic, r.Group); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, closedError(op)
	}
	key := groupKey{r.Topic, r.Group}
	g := b.groups[key]
	if g == nil {
		if len(b.groups) >= maxGroups {
			return nil, fault.New(fault.Overloaded, op, fmt.Sprintf(
				"the component has %d subscriptions on this node, which is the largest number", maxGroups))
		}
		g = newGroup(b, key)
		b.groups[key] = g
		b.ending.Add(1)
	}
	return g.join(max(b.set.concurrency, min(r.Unsettled, maxUnsettled))), nil
}

// ensure creates the consumer group if it does not exist. It first checks whether the group exists, because Redis
// rejects every attempt to create a group while its memory is full.
func (b *Broker) ensure(ctx context.Context, op, topic, name string) error {
	err := b.client.ReadAll(ctx, op, topic, redisstate.Command{"xpending", topic, name})[0].Err
	if !hasPrefix(err, "NOGROUP") {
		return b.explain(op, topic, err)
	}
	err = b.client.WriteAll(ctx, op, topic, redisstate.Command{"xgroup", "create", topic, name, "0", "mkstream"})[0].Err
	if hasPrefix(err, "BUSYGROUP") {
		return nil
	}
	return b.explain(op, topic, err)
}

func (b *Broker) isClosed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

// leave removes a member from its group, and ends the group if m was the last member.
func (b *Broker) leave(m *member) {
	g := m.group
	b.mu.Lock()
	last := g.remove(m)
	if last && b.groups[g.key] == g {
		delete(b.groups, g.key)
	}
	b.mu.Unlock()
	if last {
		g.end()
	}
}

// Close implements pubsub.Broker.
func (b *Broker) Close() error { return b.close() }

func (b *Broker) end() error {
	b.mu.Lock()
	b.closed = true
	groups := b.groups
	b.groups = map[groupKey]*group{}
	b.mu.Unlock()
	for _, g := range groups {
		go func() {
			g.removeAll()
			g.end()
		}()
	}
	b.ending.Wait()
	err := b.waiting.Close()
	if other := b.client.Close(); err == nil {
		err = other
	}
	return err
}

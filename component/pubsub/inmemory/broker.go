// Package inmemory implements the component type pubsub.in-memory, a broker for tests and development. It keeps topics
// in the memory of one process. Other nodes do not see the messages, and all messages are lost when the process ends.
// The package owns the topics of one process.
//
// A message that all groups have handled stays in memory until its space is needed, so that a later group can receive
// it too. The package has no goroutines: expired and delayed messages are handled during calls of Publish and Receive.
package inmemory

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// Type is the component type in component files.
const Type = "pubsub.in-memory"

// Defaults of Options.
const (
	DefaultMaxBytes          = 64 << 20
	DefaultConcurrency       = 10
	DefaultRedeliverInterval = time.Second
)

// Bounds of a broker.
const (
	maxTopics            = 10_000
	maxGroups            = 1000   // groups of one topic
	maxUnsettled         = 10_000 // deliveries of one member
	maxRedeliverInterval = time.Minute
	sweepInterval        = time.Second
	single               = "*" // the sequence of a group that handles one message at a time
)

// Options configure a broker.
type Options struct {
	MaxBytes          int64         // bytes of all messages; 0 = DefaultMaxBytes
	Concurrency       int           // sequences that one member handles at a time; 0 = DefaultConcurrency
	RedeliverInterval time.Duration // pause before the second attempt; it doubles, up to a minute; 0 = 1 s
}

// Broker has the topics of one process. It is safe for concurrent use.
type Broker struct {
	maxBytes    int64
	concurrency int
	interval    time.Duration

	mu     sync.Mutex
	closed bool
	seq    uint64    // number of the newest item of a group
	size   int64     // bytes of all messages
	swept  time.Time // when expired messages were last removed from all groups
	topics map[string]*topic
	free   *list.List // of *entry: messages that no group needs, the oldest first
}

type topic struct {
	name    string
	entries *list.List // of *entry, the oldest first
	groups  map[string]*group
}

// entry is one message of a topic.
type entry struct {
	pubsub.Message
	topic   *topic
	size    int64
	expires time.Time     // zero = never
	needed  int           // number of groups that need the message
	place   *list.Element // in topic.entries; nil = removed
	free    *list.Element // in Broker.free; nil = a group needs the message, or it was removed
}

var _ pubsub.Broker = (*Broker)(nil)

// Open creates an empty broker.
func Open(o Options) *Broker {
	return &Broker{
		maxBytes:    cmp.Or(o.MaxBytes, DefaultMaxBytes),
		concurrency: cmp.Or(o.Concurrency, DefaultConcurrency),
		interval:    cmp.Or(o.RedeliverInterval, DefaultRedeliverInterval),
		topics:      map[string]*topic{}, free: list.New(),
	}
}

// Abilities implements pubsub.Broker.
func (b *Broker) Abilities() pubsub.Abilities {
	return pubsub.Abilities{TTL: true, Bulk: true, Ordered: true, Delayed: true, Atomic: true}
}

// Publish implements pubsub.Broker.
func (b *Broker) Publish(ctx context.Context, r pubsub.PublishRequest) ([]pubsub.Failure, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(err, "inmemory.Publish", "publishing to topic "+r.Topic)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return nil, b.publish(r.Topic, r.Messages)
}

// publish adds all messages to a topic, or none.
func (b *Broker) publish(name string, messages []pubsub.Message) error {
	if b.closed {
		return closedError("inmemory.Publish")
	}
	now := time.Now()
	var size int64
	for i := range messages {
		size += messages[i].Size()
	}
	t, err := b.topic(name)
	if err != nil {
		return err
	}
	if !b.makeRoom(size, now) {
		b.forget(t)
		return &fault.Error{Code: fault.Overloaded, Op: "inmemory.Publish",
			Msg: fmt.Sprintf("topic_full: topic %s cannot store %d bytes: the messages that subscribers have not "+
				"acknowledged take %d of %d bytes", name, size, b.size, b.maxBytes),
			Hint: "let the subscribers handle their messages, or raise maxBytes of the component"}
	}
	b.topics[name] = t // needed if makeRoom has removed all messages of the topic, and so the topic
	for i := range messages {
		b.add(t, messages[i], now)
	}
	return nil
}

// topic returns the topic with the given name, and creates it if necessary. If there are too many topics, it first
// removes the unused topic with the oldest message (see dropUnused). If all topics have groups, it returns
// fault.Overloaded.
func (b *Broker) topic(name string) (*topic, error) {
	if t, ok := b.topics[name]; ok {
		return t, nil
	}
	if len(b.topics) >= maxTopics {
		b.dropUnused()
	}
	if len(b.topics) >= maxTopics {
		return nil, &fault.Error{Code: fault.Overloaded, Op: "inmemory.topic",
			Msg: fmt.Sprintf("there are %d topics with consumer groups, which is the largest number",
				maxTopics)}
	}
	t := &topic{name: name, entries: list.New(), groups: map[string]*group{}}
	b.topics[name] = t
	return t, nil
}

// dropUnused removes one topic. Among the topics without groups, it chooses the one with the oldest message.
func (b *Broker) dropUnused() {
	for e := b.free.Front(); e != nil; e = e.Next() {
		t := e.Value.(*entry).topic
		if len(t.groups) > 0 {
			continue
		}
		for t.entries.Len() > 0 {
			b.remove(t.entries.Front().Value.(*entry)) // no group needs these messages
		}
		return
	}
}

// forget removes a topic from the broker if the topic has neither messages nor groups.
func (b *Broker) forget(t *topic) {
	if t.entries.Len() == 0 && len(t.groups) == 0 {
		delete(b.topics, t.name)
	}
}

// makeRoom removes the oldest messages that no group needs, until there is room for size more bytes. If this would not
// free enough memory, it removes none of these messages and returns false.
func (b *Broker) makeRoom(size int64, now time.Time) bool {
	if b.size+size <= b.maxBytes {
		return true
	}
	if size > b.maxBytes {
		return false
	}
	b.sweep(now)
	var spare int64
	for e := b.free.Front(); e != nil && b.size+size-spare > b.maxBytes; e = e.Next() {
		spare += e.Value.(*entry).size
	}
	if b.size+size-spare > b.maxBytes {
		return false
	}
	for b.size+size > b.maxBytes {
		b.remove(b.free.Front().Value.(*entry))
	}
	return true
}

// sweep drops expired messages from all groups. It runs at most once in each sweepInterval, because it visits every
// message.
func (b *Broker) sweep(now time.Time) {
	if now.Sub(b.swept) < sweepInterval {
		return
	}
	b.swept = now
	for _, t := range b.topics {
		for _, g := range t.groups {
			g.expire(now)
		}
	}
}

func (b *Broker) add(t *topic, m pubsub.Message, now time.Time) {
	e := &entry{Message: m, topic: t, size: m.Size()}
	if m.TTL > 0 {
		e.expires = now.Add(m.TTL)
	}
	b.size += e.size
	e.place = t.entries.PushBack(e)
	e.free = b.free.PushBack(e)
	for _, g := range t.groups {
		g.take(e, now)
	}
}

// need notes that another group needs a message.
func (b *Broker) need(e *entry) {
	e.needed++
	if e.free != nil {
		b.free.Remove(e.free)
		e.free = nil
	}
}

// spare records that one group no longer needs a message. A message that no group needs stays for groups that subscribe
// later, until makeRoom removes it.
func (b *Broker) spare(e *entry) {
	if e.needed--; e.needed == 0 && e.place != nil {
		e.free = b.free.PushBack(e)
	}
}

func (b *Broker) remove(e *entry) {
	b.free.Remove(e.free)
	e.topic.entries.Remove(e.place)
	e.free, e.place = nil, nil
	b.size -= e.size
	b.forget(e.topic)
}

// Subscribe implements pubsub.Broker.
func (b *Broker) Subscribe(ctx context.Context, r pubsub.SubscribeRequest) (pubsub.Subscription, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(err, "inmemory.Subscribe", "subscribing to topic "+r.Topic)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, closedError("inmemory.Subscribe")
	}
	t, err := b.topic(r.Topic)
	if err != nil {
		return nil, err
	}
	g, ok := t.groups[r.Group]
	if !ok {
		if len(t.groups) >= maxGroups {
			return nil, &fault.Error{Code: fault.Overloaded, Op: "inmemory.Subscribe",
				Msg: fmt.Sprintf("topic %s has %d consumer groups, which is the largest number", r.Topic, maxGroups)}
		}
		g = newGroup(b, t)
		t.groups[r.Group] = g
		now := time.Now()
		for e := t.entries.Front(); e != nil; e = e.Next() {
			g.take(e.Value.(*entry), now)
		}
	}
	m := &member{group: g, held: map[string]*item{}, allowed: max(b.concurrency, min(r.Unsettled, maxUnsettled))}
	g.members[m] = true
	return m, nil
}

// Close implements pubsub.Broker.
func (b *Broker) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, t := range b.topics {
		for _, g := range t.groups {
			for m := range g.members {
				m.leave()
			}
		}
	}
	b.topics, b.size = map[string]*topic{}, 0
	b.free.Init()
	return nil
}

func closedError(op string) error {
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the broker was closed"}
}

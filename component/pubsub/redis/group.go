package redis

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	redisstate "github.com/quorate/quorate/component/state/redis"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/signal"
)

const (
	longestWait  = time.Second            // longest wait of one request for messages; the end of a group waits for it
	firstPause   = 100 * time.Millisecond // first pause between attempts to read while Redis fails
	longestPause = 5 * time.Second        // longest such pause
	unackedPause = time.Second            // pause between attempts to acknowledge
	endTime      = 2 * time.Second        // time in which an ending group may release messages
	farAway      = 24 * time.Hour         // idle time of a released message if this broker does not redeliver
	readBytes    = 4 << 20                // bytes that one request for messages is expected to return
	firstRead    = readBytes / 10         // expected size of a message before the first message came, in bytes
)

// item is a message that Redis has delivered to this process.
type item struct {
	entry
	size     int64
	attempt  int       // number of the attempt; 1 = the first
	lease    time.Time // until then, no other process takes the message; zero = forever
	ref      string    // reference of the delivery to holder
	holder   *member   // nil = the item is in the queue, or is being settled
	settling bool      // the item is being settled
}

// group is the consumer group of a topic, with its members in this process.
type group struct {
	broker *Broker
	key    groupKey
	log    *slog.Logger
	// run ends when the last member leaves.
	run     context.Context
	stop    context.CancelFunc
	loops   sync.WaitGroup
	changed *signal.Signal // fired when messages or room may have come

	mu      sync.Mutex
	members map[*member]bool
	items   map[position]*item
	queue   []*item           // items that no member has, the oldest first
	bytes   int64             // sum of the sizes of items
	unacked map[position]bool // messages whose acknowledgement Redis may not have received
	seq     uint64            // number of the newest delivery
	largest int64             // expected size of the next messages, in bytes
	failure error             // the error that Receive returns, see passes; nil = none
}

func newGroup(b *Broker, key groupKey) *group {
	g := &group{broker: b, key: key, log: b.log.With("topic", key.topic, "group", key.name), changed: signal.New(),
		members: map[*member]bool{}, items: map[position]*item{}, unacked: map[position]bool{}, largest: firstRead}
	g.run, g.stop = context.WithCancel(context.Background())
	g.loops.Go(g.read)
	g.loops.Go(g.reclaim)
	if b.set.redelivers() {
		g.loops.Go(g.renew)
	}
	return g
}

// wait waits for the duration d, or until the group ends. It returns false if the group has ended.
func (g *group) wait(d time.Duration) bool {
	select {
	case <-g.run.Done():
	case <-time.After(d):
	}
	return g.run.Err() == nil
}

// read receives new messages until the group ends.
func (g *group) read() {
	pause, failing := firstPause, false
	for g.run.Err() == nil {
		changed := g.changed.Wait()
		count := g.room()
		if count == 0 {
			select {
			case <-changed:
			case <-g.run.Done():
			}
			continue
		}
		err := g.readOnce(count)
		g.note(err)
		if err == nil {
			if failing {
				g.log.Info("messages are received again")
			}
			pause, failing = firstPause, false
			continue
		}
		if !failing {
			g.log.Warn("receiving messages failed; it is tried again", "error", err)
		}
		failing = true
		g.wait(pause)
		pause = min(2*pause, longestPause)
	}
}

// room returns how many messages may be requested from Redis now.
func (g *group) room() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bytes >= maxBytes {
		return 0
	}
	return max(0, min(g.broker.set.depth-len(g.queue), g.atOnce()))
}

// atOnce returns the number of messages to request in one command, so that the reply has about readBytes bytes. It uses
// the expected size of a message, because Redis limits a reply only by the number of messages. The caller holds g.mu.
func (g *group) atOnce() int { return int(max(readBytes/max(g.largest, pubsub.MessageCost), 1)) }

// saw updates the expected message size with the size of a received message. A larger size takes effect at once, and a
// smaller one gradually. The caller holds g.mu.
func (g *group) saw(size int64) { g.largest = max(size, g.largest-g.largest/8) }

func (g *group) readOnce(count int) error {
	const op = "redis.Receive"
	b := g.broker
	block := min(longestWait, b.client.Patience()/2)
	if b.set.redelivers() {
		block = min(block, b.set.processing/4) // the lease begins before the request
	}
	block = max(block, time.Millisecond)
	// The end of the group does not cancel the request, because Redis may already have delivered messages to it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.run), block+b.client.Patience())
	defer cancel()
	start := time.Now()
	answer, err := b.waiting.Wait(ctx, op, g.key.topic, redisstate.Command{"xreadgroup", "group", g.key.name,
		g.key.name, "count", count, "block", block.Milliseconds(), "streams", g.key.topic, ">"})
	if hasPrefix(err, "NOGROUP") || hasPrefix(err, "UNBLOCKED") {
		if err := b.ensure(ctx, op, g.key.topic, g.key.name); err != nil {
			return err
		}
		return fault.New(fault.Unavailable, op, "the consumer group was missing in Redis, which may have lost data; "+
			"it begins again with the oldest message")
	}
	var list []entry
	if err == nil {
		list, err = readOf(answer, g.key.topic, count)
	}
	if fault.Is(err, fault.TooLarge) {
		g.mu.Lock()
		g.largest = readBytes
		g.mu.Unlock()
	}
	added := false
	for i := range list {
		added = g.add(&list[i], 1, start) || added
	}
	if err == nil && !added && time.Since(start) < block/2 {
		g.wait(firstPause) // a wrong server does not wait: avoid a busy loop
	}
	return b.explain(op, g.key.topic, err)
}

// note records the result of a read. A permanent error is stored, so that Receive returns it to the members. A success
// or a temporary error (see passes) clears the stored error.
func (g *group) note(err error) {
	if err != nil && passes(err) {
		err = nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.failure = err; err != nil {
		g.changed.Fire()
	}
}

// add adds a message from Redis to the queue. The lease of the message begins at start, which must not be later than
// the delivery by Redis. add returns false if the group already has the message, or if an earlier acknowledgement of
// the message may not have reached Redis.
func (g *group) add(e *entry, attempt int, start time.Time) bool {
	if e.notice != "" {
		g.log.Warn("a message is delivered without its metadata", "id", e.id.String(), "reason", e.notice)
	}
	i := &item{entry: *e, size: e.message.Size(), attempt: attempt, lease: g.leaseFrom(start)}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.saw(i.size)
	if g.items[i.id] != nil || g.unacked[i.id] {
		return false
	}
	g.items[i.id] = i
	g.bytes += i.size
	g.enqueue(i)
	return true
}

// leaseFrom returns the end of the lease of a message whose idle time begins at start.
func (g *group) leaseFrom(start time.Time) time.Time {
	if !g.broker.set.redelivers() {
		return time.Time{}
	}
	return start.Add(g.broker.set.processing)
}

// enqueue adds an item to the queue, in the order of ids. The caller holds g.mu.
func (g *group) enqueue(i *item) {
	i.holder, i.settling = nil, false
	at, _ := slices.BinarySearchFunc(g.queue, i, func(x, y *item) int {
		switch {
		case x.id.less(y.id):
			return -1
		case y.id.less(x.id):
			return 1
		}
		return 0
	})
	g.queue = slices.Insert(g.queue, at, i)
	g.changed.Fire()
}

// drop removes an item from the group. If the message is not acknowledged, Redis still has it as pending, so it will be
// delivered again. The caller holds g.mu.
func (g *group) drop(i *item) {
	if g.items[i.id] == i {
		delete(g.items, i.id)
		g.bytes -= i.size
	}
	g.changed.Fire()
}

// expired reports whether the lease of an item has ended. From then on, another process may claim the message.
func (i *item) expired(now time.Time) bool { return !i.lease.IsZero() && !now.Before(i.lease) }

// next removes the oldest item from the queue and returns it. It drops items whose lease has expired. It returns nil if
// no item is left. The caller holds g.mu.
func (g *group) next(now time.Time) *item {
	for len(g.queue) > 0 {
		i := g.queue[0]
		g.queue[0] = nil
		g.queue = g.queue[1:]
		if !i.expired(now) {
			return i
		}
		g.drop(i)
	}
	return nil
}

// dropExpired removes items with an expired lease from the queue. Another process may have claimed their messages, so
// this process must not renew or return them. The caller holds g.mu.
func (g *group) dropExpired(now time.Time) {
	g.queue = slices.DeleteFunc(g.queue, func(i *item) bool {
		if i.expired(now) {
			g.drop(i)
		}
		return i.expired(now)
	})
}

// renew renews the leases of the messages that this process has received and not settled, until the group ends. It
// resets the idle time of these messages in Redis three times in each processingTimeout, so that no other process
// claims them.
func (g *group) renew() {
	for g.wait(g.broker.set.processing / 3) {
		for part := range slices.Chunk(g.owned(time.Now()), portion) {
			if !g.renewSome(part) {
				break
			}
		}
	}
}

// owned returns the ids of all messages that this process has received and not settled. It first drops items in the
// queue whose lease has expired.
func (g *group) owned(now time.Time) []position {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropExpired(now)
	ids := make([]position, 0, len(g.items))
	for id := range g.items {
		ids = append(ids, id)
	}
	return ids
}

// renewSome renews the leases of the given messages. If a message in the queue is no longer pending in Redis, renewSome
// drops it. It returns false if the command failed.
func (g *group) renewSome(ids []position) bool {
	start := time.Now()
	command := redisstate.Command{"xclaim", g.key.topic, g.key.name, g.key.name, 0}
	for _, id := range ids {
		command = append(command, id.String())
	}
	ctx, cancel := context.WithTimeout(g.run, g.broker.client.Patience())
	defer cancel()
	reply := g.broker.client.WriteAll(ctx, "redis.Renew", g.key.topic, append(command, "justid"))[0]
	if reply.Err != nil {
		return false // the reader logs that Redis fails
	}
	pending, err := idsOf(reply.Value, len(ids))
	if err != nil {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, id := range ids {
		i := g.items[id]
		switch {
		case i == nil:
		case pending[id]:
			i.lease = g.leaseFrom(start)
		case i.holder == nil && !i.settling: // acknowledged by another process, or deleted
			g.queue = slices.DeleteFunc(g.queue, func(o *item) bool { return o == i })
			g.drop(i)
		}
	}
	return true
}

// end ends the group. It returns unsettled messages to Redis, so that other processes can receive them at once. It
// waits for the goroutines of the group.
func (g *group) end() {
	defer g.broker.ending.Done()
	g.stop()
	g.release()
	g.loops.Wait()
	g.release() // messages that the reader has received last
}

// release gives the messages in the queue back to Redis. Before that, it repeats acknowledgements that Redis may not
// have received.
func (g *group) release() {
	g.mu.Lock()
	g.dropExpired(time.Now())
	items := g.queue
	g.queue = nil
	for _, i := range items {
		g.drop(i)
	}
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	g.acknowledgeAgain(ctx)
	idleTime := g.broker.set.processing
	if !g.broker.set.redelivers() {
		idleTime = farAway
	}
	for part := range slices.Chunk(items, portion) {
		commands := make([]redisstate.Command, len(part))
		for n, i := range part {
			// The retry count makes this delivery count as no attempt. The idle time is long enough for every process
			// to claim the message.
			commands[n] = redisstate.Command{"xclaim", g.key.topic, g.key.name, g.key.name, 0, i.id.String(),
				"idle", idleTime.Milliseconds(), "retrycount", i.attempt - 1, "justid"}
		}
		replies := g.broker.client.WriteAll(ctx, "redis.Release", g.key.topic, commands...)
		if err := replies[0].Err; err != nil {
			g.log.Warn("messages that were not handled could not be given back; they are delivered again after "+
				"processingTimeout", "error", err)
			return
		}
	}
}

// join adds a member that may hold at most the given number of unsettled deliveries.
func (g *group) join(allowed int) *member {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &member{group: g, allowed: allowed, held: map[string]*item{}}
	g.members[m] = true
	return m
}

// remove removes a member and puts its unsettled deliveries back into the queue. It returns true if m was the last
// member. If m was removed before, it does nothing and returns false.
func (g *group) remove(m *member) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.left {
		return false
	}
	m.left = true
	delete(g.members, m)
	for _, i := range m.held {
		g.enqueue(i)
	}
	m.held = nil
	g.changed.Fire()
	return len(g.members) == 0
}

func (g *group) removeAll() {
	g.mu.Lock()
	members := slices.Collect(maps.Keys(g.members))
	g.mu.Unlock()
	for _, m := range members {
		g.remove(m)
	}
}

// hold gives an item to a member, and returns the delivery. The caller holds g.mu.
func (g *group) hold(i *item, m *member) pubsub.Delivery {
	g.seq++
	i.holder, i.ref = m, i.id.String()+"/"+strconv.FormatUint(g.seq, 10)
	m.held[i.ref] = i
	return pubsub.Delivery{Message: i.message, Topic: g.key.topic, Attempt: i.attempt, Ref: i.ref}
}

package topics

import (
	"maps"
	"slices"

	"github.com/quorate/quorate/raftfsm/kv"
)

// The messages of a key form a queue. While the first message of a queue fails, the messages behind it wait. They could
// use up the limit of a group, which may have only maxOpen open messages: messages that are neither settled nor parked.
// So when a group has reached this limit, the leader parks the messages behind failing ones, although they have had no
// attempt. It then remembers only their offsets: the tail of their queue. When the queue is empty, the first messages
// of its tail come back. These rules apply:
//
//   - A message of a tail has a parked record, or a settlement that will store that record. Until the record is
//     stored, the message is also an item, so the record of the group lists it as open.
//   - No message of a queue is delivered while the tail of the queue has an earlier message. So a tail does not change
//     the order.
//   - A message that has failed, that a member has, or that its publisher has delayed, does not move to a tail.
//   - A group reads no further messages while its tails have maxTailed messages.
//
// A new leader finds the messages of tails by their parked records, which have no attempt and no time.

// maxTailed bounds the number of messages in all tails of a consumer group. Each message takes 8 bytes of memory at
// the leader.
const maxTailed = 1_000_000

// hasRoom reports whether the group may read further messages.
func (c *consumer) hasRoom() bool {
	if c.open() >= c.most {
		c.spill()
	}
	return c.open() < c.most && len(c.settled) < c.most && c.parkedIn < maxParked && c.tailed < maxTailed
}

// open returns the number of items that are not parked.
func (c *consumer) open() int { return len(c.items) - c.parkedIn }

// spill makes room in the group. If the first message of a queue has failed, spill moves the later messages for which
// canWait is true to the tail of the queue.
func (c *consumer) spill() {
	for _, name := range slices.Sorted(maps.Keys(c.blocked)) {
		q := c.queues[name]
		if len(q) < 2 || q[0].attempts == 0 {
			continue
		}
		stay := q[:1]
		for _, i := range q[1:] {
			if i.canWait() {
				c.toTail(name, i)
			} else {
				stay = append(stay, i)
			}
		}
		clear(q[len(stay):])
		c.queues[name] = stay
	}
	clear(c.blocked)
}

// canWait reports whether an item may move to a tail.
func (i *item) canWait() bool { return !i.parked && i.pending == nil && i.lease == nil }

// toTail parks an item, and adds it to the tail of the queue with the given name. The item must not be in a queue.
func (c *consumer) toTail(name string, i *item) {
	i.tailed = true
	c.park(i, 0)
	tail := c.tails[name]
	at, _ := slices.BinarySearch(tail, i.offset)
	c.tails[name] = slices.Insert(tail, at, i.offset)
	c.tailed++
}

// isBehindTail reports whether the tail of a queue has a message with a smaller offset.
func (c *consumer) isBehindTail(name string, offset uint64) bool {
	tail := c.tails[name]
	return len(tail) > 0 && tail[0] < offset
}

// noteBlocked checks whether messages of a queue wait behind a failing one. If so, it adds the queue to c.blocked, so
// that spill can move these messages to the tail. It does nothing in a group with concurrency 1, which has only one
// queue.
func (c *consumer) noteBlocked(name string) {
	if q := c.queues[name]; c.concurrency > 1 && len(q) > 1 && q[0].attempts > 0 {
		c.blocked[name] = true
	}
}

// refill moves messages from tails back into their queues. It does so for each queue in c.short. Such a queue is empty,
// or its next message may be in its tail.
func (c *consumer) refill(m *kv.Machine) error {
	for len(c.short) > 0 {
		name := c.short[len(c.short)-1]
		c.short = c.short[:len(c.short)-1]
		for len(c.tails[name]) > 0 {
			if q := c.queues[name]; len(q) > 0 && (q[0].lease != nil || !c.isBehindTail(name, q[0].offset)) {
				break
			}
			if err := c.restore(m, name, 0, min(len(c.tails[name]), page, c.most)); err != nil {
				c.short = append(c.short, name)
				return err
			}
		}
		if q := c.queues[name]; len(q) > 0 {
			c.offer(q[0])
		}
	}
	return nil
}

// restore moves n messages from the tail of a queue back into the queue, beginning at the given index of the tail. The
// messages become items again.
func (c *consumer) restore(m *kv.Machine, name string, from, n int) error {
	offsets := c.tails[name][from : from+n]
	keys := make([]string, n)
	for j, offset := range offsets {
		keys[j] = c.t.parkedKey(c.group, offset)
	}
	values, err := m.GetMany(kv.TopicStore, keys, 0)
	if err != nil {
		return err
	}
	for j, offset := range offsets {
		i := c.items[offset]
		if i == nil && !values[j].Found {
			continue // a replay or a removal has deleted the record, so the leader reads the group again
		}
		if i == nil {
			p, ok := readParked(values[j].Value)
			if !ok {
				return errRecord("a parked message of group "+c.group, c.t.Topic)
			}
			i = p.item(offset, values[j].Revision)
			c.items[offset] = i
			c.parkedIn++
		}
		i.tailed = false
		c.insert(i)
	}
	if from == 0 {
		c.tails[name] = c.tails[name][n:]
	} else {
		c.tails[name] = slices.Delete(c.tails[name], from, from+n)
	}
	if c.tailed -= n; len(c.tails[name]) == 0 {
		delete(c.tails, name)
	}
	return nil
}

// item returns the item of a parked record.
func (p *parked) item(offset, revision uint64) *item {
	return &item{offset: offset, key: p.key, attempts: p.attempts, at: p.at, parked: true, recorded: true,
		revision: revision}
}

// isTail reports whether the message of the record may be in a tail.
func (p *parked) isTail() bool { return p.attempts == 0 && p.at == 0 && p.key != "" }

// unsettled returns the item of a message, and reads the message if it is not in memory. It returns nil if the group
// has settled the message.
func (c *consumer) unsettled(m *kv.Machine, offset, now uint64) (*item, error) {
	i := c.items[offset]
	if i == nil && offset > c.read {
		if err := c.readUntil(m, offset, now); err != nil {
			return nil, err
		}
		i = c.items[offset]
	}
	if i != nil && !i.tailed || c.tailed == 0 {
		return i, nil
	}
	if i == nil {
		v, err := m.Get(kv.TopicStore, c.t.parkedKey(c.group, offset), 0)
		if err != nil || !v.Found {
			return nil, err
		}
		p, ok := readParked(v.Value)
		if !ok {
			return nil, errRecord("a parked message of group "+c.group, c.t.Topic)
		}
		i = p.item(offset, v.Revision)
	}
	name := c.queueOf(i)
	at, found := slices.BinarySearch(c.tails[name], offset)
	if !found {
		return nil, nil
	}
	err := c.restore(m, name, at, 1)
	return c.items[offset], err
}

// loadParked reads the parked records of the group. If a queue has several messages that may be in a tail (see
// parked.isTail), loadParked keeps only their offsets, in the tail of the queue. All other messages become items.
func (c *consumer) loadParked(m *kv.Machine, now uint64) error {
	c.tails, c.tailed = map[string][]uint64{}, 0
	alone := map[string]uint64{}
	return c.eachParked(m, func(offset, revision uint64, p *parked) {
		i := p.item(offset, revision)
		i.late = p.attempts == 0 && p.at > now
		if old := c.items[offset]; old != nil {
			c.free(old)
			delete(c.unrecorded, offset)
		}
		name := c.queueOf(i)
		first, second := alone[name]
		switch {
		case !p.isTail():
			c.items[offset] = i
		case !second:
			alone[name] = offset
			c.items[offset] = i
		default:
			if c.tails[name] == nil {
				delete(c.items, first)
				c.tails[name] = []uint64{first}
				c.tailed++
			}
			delete(c.items, offset)
			c.tails[name] = append(c.tails[name], offset)
			c.tailed++
		}
	})
}

// regroup reads the parked records again to find the tails, because the concurrency of the group has changed. After an
// error, the tails are unchanged.
func (c *consumer) regroup(m *kv.Machine) error {
	if len(c.tails) == 0 {
		return nil
	}
	tails, tailed := map[string][]uint64{}, 0
	err := c.eachParked(m, func(offset, _ uint64, p *parked) {
		if c.items[offset] == nil && p.isTail() {
			name := c.queueOf(p.item(offset, 0))
			tails[name] = append(tails[name], offset)
			tailed++
		}
	})
	if err != nil {
		return err
	}
	c.tails, c.tailed = tails, tailed
	for _, i := range c.items {
		i.tailed = false // items without a parked record are in no tail any more
	}
	return nil
}

// eachParked calls f for the parked records of the group, in the order of their offsets.
func (c *consumer) eachParked(m *kv.Machine, f func(offset, revision uint64, p *parked)) error {
	prefix := c.t.parkedPrefix(c.group)
	for after, more := "", true; more; {
		var found []kv.Record
		var err error
		if found, more, err = m.Records(kv.TopicStore, prefix, after, page, pageBytes, 0); err != nil {
			return err
		}
		for i := range found {
			p, ok := readParked(found[i].Value)
			if !ok || len(found[i].Key) != len(prefix)+8 {
				return errRecord("a parked message of group "+c.group, c.t.Topic)
			}
			after = found[i].Key
			f(offsetOf(after), found[i].Revision, &p)
		}
	}
	return nil
}

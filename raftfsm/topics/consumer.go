package topics

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"slices"
	"time"

	"github.com/quorate/quorate/raftfsm/kv"
)

// Bounds of a consumer.
const (
	page         = 128       // records that are read at once
	pageBytes    = 256 << 10 // bytes of the values that are read at once
	maxBuffer    = 1 << 20   // bytes of values that a group keeps in memory until they are handed out
	maxParked    = 100_000   // parked items of a group; with more, the group reads no further messages
	maxBatch     = 512       // settlements in one log entry
	maxBatchSize = 1 << 20   // bytes of the settlements in one log entry; a single settlement may exceed it
)

// consumer is a consumer group of a topic, at the leader. Keeper.mu guards it.
type consumer struct {
	t     *topic
	group string

	cursor        // as it is in the log
	read   uint64 // offset up to which messages were read
	more   bool   // there may be messages after read

	items      map[uint64]*item    // every message up to read that is not settled in the log
	unrecorded map[uint64]struct{} // offsets of the items without a parked record; the cursor lists them as open
	queues     map[string][]*item
	ready      itemHeap // heads of queues that can be delivered now
	delayed    itemHeap // heads of queues that wait for their time
	parkedIn   int      // items that are parked
	buffered   int      // bytes of values of items

	most    int                 // how many messages may be open
	tails   map[string][]uint64 // by queue: offsets of messages that have a parked record and are no items, ascending
	tailed  int                 // number of messages in tails
	blocked map[string]bool     // queues with messages behind a failing one; see spill
	short   []string            // queues whose next message may be in their tail

	concurrency int
	backoff     time.Duration // before the second attempt
	lifetime    uint64        // time to live that the newest Join has set, in milliseconds; 0 = the group does not end
	use         bool          // the next flush happens even if nothing is settled, because the group is in use
	members     []*member

	settled   []*settlement // not in the log yet, in their order
	flushing  bool
	moved     bool // a replay or a removal has changed the record of the group since it was read
	gone      bool // the Keeper has dropped the consumer
	endGather func() bool
	endTimer  func() bool
}

// item is a message that a group has not settled in the log.
type item struct {
	offset   uint64
	key      string
	attempts uint64 // failed attempts
	at       uint64 // cluster time before which the message is not delivered
	expireAt uint64 // cluster time; 0 = never
	value    []byte // nil = not in memory
	size     int    // of the value in bytes; 0 = not read yet
	late     bool   // the publisher has delayed the message, which is not in the queue of its key yet
	parked   bool   // the message has a parked record, or will have one
	recorded bool   // the log has a parked record of the message
	tailed   bool   // the message is also in a tail; the item ends when the log has a parked record
	revision uint64 // of the parked record in the log
	lease    *member
	number   uint64      // of the newest lease
	pending  *settlement // the newest settlement, until it is in the log
}

// over reports whether the message is settled in memory. The settlement may not be in the log yet.
func (i *item) over() bool { return i.pending != nil && i.pending.kind != settlePark }

// The kinds of settlements.
const (
	settleDone = 1 + iota // the message is acknowledged or has expired
	settlePark            // the message is parked
	settleDead            // the message moves to a dead-letter topic
)

// settlement is a change of the state of a message that must be stored.
type settlement struct {
	offset  uint64
	kind    byte
	topic   string    // settleDead: the dead-letter topic
	marks   bool      // settleDead: the request in flight also stores the source record of the dead-letter topic
	waiters []*waiter // calls that wait until the log has the settlement
	parked  parked    // settlePark: the record
	op      int       // index of its first operation in the request in flight
}

// waiter is a call that waits for settlements. Keeper.mu guards it until done is closed.
type waiter struct {
	left int           // settlements that are not in the log yet, and the call itself until it waits
	err  error         // the first error
	done chan struct{} // closed when left is 0
}

func (w *waiter) add(s *settlement) {
	w.left++
	s.waiters = append(s.waiters, w)
}

func (w *waiter) end(err error) {
	if w.err == nil {
		w.err = err
	}
	if w.left--; w.left == 0 {
		close(w.done)
	}
}

func (s *settlement) answer(err error) {
	for _, w := range s.waiters {
		w.end(err)
	}
	s.waiters = nil
}

// itemHeap orders items by offset, or by time if byTime is set.
type itemHeap struct {
	list   []queued
	byTime bool
}

// queued is an entry of an itemHeap. It has a copy of the delivery time of its item, so that the heap stays in order
// when the delivery time of the item changes.
type queued struct {
	*item
	at uint64 // delivery time of the item when it was added
}

func (h *itemHeap) Len() int { return len(h.list) }

func (h *itemHeap) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	if h.byTime && a.at != b.at {
		return a.at < b.at
	}
	return a.offset < b.offset
}

func (h *itemHeap) Swap(i, j int) { h.list[i], h.list[j] = h.list[j], h.list[i] }

func (h *itemHeap) Push(x any) {
	i := x.(*item)
	h.list = append(h.list, queued{i, i.at})
}

func (h *itemHeap) Pop() any {
	last := h.list[len(h.list)-1].item
	h.list[len(h.list)-1] = queued{}
	h.list = h.list[:len(h.list)-1]
	return last
}

// find returns the consumer of a group, or nil if it is not in memory.
func (t *topic) find(group string) *consumer {
	for _, c := range t.consumers {
		if c.group == group {
			return c
		}
	}
	return nil
}

// consumer returns the consumer group with this name. If it is not in memory, consumer reads its records. It returns
// nil if the topic has no such group.
func (k *Keeper) consumer(t *topic, group string) (*consumer, error) {
	if c := t.find(group); c != nil {
		return c, nil
	}
	c := &consumer{t: t, group: group, concurrency: defaultConcurrency, backoff: defaultBackoff,
		most: cmp.Or(k.opts.open, maxOpen)}
	c.delayed.byTime = true
	found, err := c.load(k.machine, k.group.Now())
	if err != nil || !found {
		return nil, err
	}
	c.lifetime = c.ttl
	t.consumers = append(t.consumers, c)
	return c, nil
}

// load reads the records of the group, and replaces the items and the queues of c accordingly. It returns false if the
// group does not exist.
func (c *consumer) load(m *kv.Machine, now uint64) (found bool, err error) {
	v, err := m.Get(kv.TopicStore, c.t.key(tableGroup, c.group), 0)
	if err != nil || !v.Found {
		return false, err
	}
	cur, ok := readCursor(v.Value, v.Revision)
	if !ok {
		return false, errRecord("the cursor of group "+c.group, c.t.Topic)
	}
	c.cursor, c.read, c.more, c.parkedIn, c.buffered = cur, cur.upto, true, 0, 0
	c.items, c.unrecorded = make(map[uint64]*item), make(map[uint64]struct{})
	keys := make([]string, len(cur.open))
	for i, offset := range cur.open {
		keys[i] = c.t.messageKey(offset)
	}
	for some := range slices.Chunk(keys, page) {
		values, err := m.GetMany(kv.TopicStore, some, 0)
		if err != nil {
			return false, err
		}
		for i := range values {
			if !values[i].Found {
				continue // its TTL has ended
			}
			if err := c.add(offsetOf(some[i]), values[i].Value, values[i].ExpireAt, now); err != nil {
				return false, err
			}
		}
	}
	if err := c.loadParked(m, now); err != nil {
		return false, err
	}
	c.parkedIn = 0
	for _, i := range c.items { // a message may have been read twice
		if i.parked {
			c.parkedIn++
		}
	}
	c.rebuild()
	return true, nil
}

// add adds an item for a message that was read. A message whose delivery time has not come is parked.
func (c *consumer) add(offset uint64, value []byte, expireAt, now uint64) error {
	msg, ok := readMessage(value)
	if !ok {
		return errRecord("a message", c.t.Topic)
	}
	i := &item{offset: offset, key: msg.key, expireAt: expireAt}
	c.keep(i, value)
	c.items[offset], c.unrecorded[offset] = i, struct{}{}
	if msg.deliverAt > now {
		i.late = true
		c.park(i, msg.deliverAt)
	}
	return nil
}

// keep keeps the value of an item in memory if there is room.
func (c *consumer) keep(i *item, value []byte) {
	i.size = len(value)
	if i.value == nil && c.buffered+len(value) <= maxBuffer {
		i.value = value
		c.buffered += len(value)
	}
}

// free removes the value of an item from memory.
func (c *consumer) free(i *item) {
	c.buffered -= len(i.value)
	i.value = nil
}

// mark counts an item as parked.
func (c *consumer) mark(i *item) {
	if !i.parked {
		i.parked = true
		c.parkedIn++
	}
}

// park parks a message, and queues the settlement that stores the parked record. at is the cluster time before which
// the message is not delivered.
func (c *consumer) park(i *item, at uint64) {
	i.at = at
	c.mark(i)
	c.free(i)
	i.pending = &settlement{offset: i.offset, kind: settlePark,
		parked: parked{attempts: i.attempts, at: at, key: i.key}}
	c.settled = append(c.settled, i.pending)
}

// rebuild makes the queues and heaps from the items.
func (c *consumer) rebuild() {
	c.queues, c.blocked, c.short = make(map[string][]*item), map[string]bool{}, nil
	c.ready.list, c.delayed.list = nil, nil
	list := c.sorted()
	// Leased items come first, so that they are at the front of their queues.
	for _, leased := range []bool{true, false} {
		for _, i := range list {
			if (i.lease != nil) == leased {
				c.enqueue(i)
			}
		}
	}
	for name := range c.tails {
		if len(c.queues[name]) == 0 {
			c.short = append(c.short, name)
		}
	}
}

// sorted returns the items in the order of their offsets.
func (c *consumer) sorted() []*item {
	list := make([]*item, 0, len(c.items))
	for _, i := range c.items {
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b *item) int {
		if a.offset < b.offset {
			return -1
		}
		return 1
	})
	return list
}

// queueOf returns the name of the queue to which a message belongs. The messages of one queue are delivered one after
// another.
func (c *consumer) queueOf(i *item) string {
	switch {
	case i.late:
	case c.concurrency == 1:
		return single
	case i.key != "":
		return "k" + i.key
	}
	return "o" + string(binary.BigEndian.AppendUint64(nil, i.offset))
}

// enqueue adds an item at the end of its queue. If earlier messages are in the tail of the queue (see tail.go) and the
// item may wait there, enqueue adds it to the tail.
func (c *consumer) enqueue(i *item) {
	if i.over() || i.tailed {
		return
	}
	name := c.queueOf(i)
	if c.concurrency > 1 && c.isBehindTail(name, i.offset) && i.canWait() {
		c.toTail(name, i)
		return
	}
	c.queues[name] = append(c.queues[name], i)
	if len(c.queues[name]) == 1 {
		c.offer(i)
	} else {
		c.noteBlocked(name)
	}
}

// due puts an item whose time has come into the queue of its key.
func (c *consumer) due(i *item) {
	c.remove(i)
	i.late = false
	c.insert(i)
}

// insert puts an item into its queue, in the order of offsets. Leased items stay at the front of the queue.
func (c *consumer) insert(i *item) {
	if i.over() {
		return
	}
	name := c.queueOf(i)
	q := c.queues[name]
	first := 0
	for first < len(q) && q[first].lease != nil {
		first++
	}
	// A binary search, because many messages of one key may become due at the same time.
	at, _ := slices.BinarySearchFunc(q[first:], i.offset, func(o *item, offset uint64) int {
		return cmp.Compare(o.offset, offset)
	})
	at += first
	if c.queues[name] = slices.Insert(q, at, i); at == 0 {
		c.offer(i)
	}
}

// offer adds the first item of a queue to the heap of delayed items if the item has a delivery time, and otherwise to
// the heap of ready items. When the delivery time has come, advance takes the item from the heap of delayed items.
//
// In two cases, offer adds the item to neither heap:
//
//   - The item is leased or settled.
//   - The tail of the queue has an earlier message. offer then adds the queue to c.short, so that refill moves this
//     message back into the queue.
func (c *consumer) offer(i *item) {
	name := c.queueOf(i)
	c.noteBlocked(name)
	switch {
	case i.lease != nil || i.over():
	case c.isBehindTail(name, i.offset):
		c.short = append(c.short, name)
	case i.at > 0:
		heap.Push(&c.delayed, i)
	default:
		heap.Push(&c.ready, i)
	}
}

// available reports whether an item can be delivered at the given cluster time. Callers must also check the items in a
// heap, because an item may have changed since it was added to the heap.
func (c *consumer) available(i *item, now uint64) bool {
	name := c.queueOf(i)
	q := c.queues[name]
	return c.items[i.offset] == i && i.lease == nil && !i.over() && len(q) > 0 && q[0] == i && i.at <= now &&
		!c.isBehindTail(name, i.offset)
}

// remove takes an item out of its queue.
func (c *consumer) remove(i *item) {
	name := c.queueOf(i)
	q := c.queues[name]
	at := slices.Index(q, i)
	if at < 0 {
		return
	}
	if q = slices.Delete(q, at, at+1); len(q) == 0 {
		delete(c.queues, name)
		if len(c.tails[name]) > 0 {
			c.short = append(c.short, name)
		}
		return
	}
	c.queues[name] = q
	if at == 0 {
		c.offer(q[0])
	}
}

// readUntil reads new messages up to the offset least, and then further messages while the group has room.
func (c *consumer) readUntil(m *kv.Machine, least, now uint64) error {
	for c.more && (c.read < least || c.hasRoom()) {
		records, more, err := m.Records(kv.TopicStore, c.t.key(tableMessage, ""), c.t.messageKey(c.read),
			min(page, c.most), pageBytes, 0)
		if err != nil {
			return err
		}
		for i := range records {
			offset := offsetOf(records[i].Key)
			if err := c.add(offset, records[i].Value, records[i].ExpireAt, now); err != nil {
				return err // the group stops before the message, so that the message does not count as settled
			}
			c.read = offset
			c.enqueue(c.items[offset])
		}
		c.more = more
	}
	return nil
}

// advance reads new messages of a group, leases messages to members with room, and sets the timer for the next
// delayed message. If a read fails, advance logs the error, and repeats the read after a pause. The caller holds
// k.mu.
func (k *Keeper) advance(c *consumer) {
	if c.gone {
		return
	}
	now := k.group.Now()
	var err error
	if len(c.members) > 0 {
		if err = c.refill(k.machine); err == nil {
			err = c.readUntil(k.machine, 0, now)
		}
	}
	for len(c.delayed.list) > 0 && (c.delayed.list[0].at <= now || !c.available(c.delayed.list[0].item, ^uint64(0))) {
		i := heap.Pop(&c.delayed).(*item)
		if i.late && c.available(i, now) {
			c.due(i)
			continue
		}
		if c.available(i, now) {
			heap.Push(&c.ready, i)
		}
	}
	for len(c.ready.list) > 0 {
		i := c.ready.list[0].item
		if !c.available(i, now) {
			heap.Pop(&c.ready)
			continue
		}
		m := c.memberWithRoom()
		if m == nil {
			break
		}
		heap.Pop(&c.ready)
		k.leases++
		m.lease(i, k.leases)
		m.session.out = append(m.session.out, handed{m, i.offset})
		m.session.rouse()
	}
	k.flushSoon(c)
	if c.endTimer != nil {
		c.endTimer()
		c.endTimer = nil
	}
	pause := retryPause
	switch {
	case err != nil:
		k.failed(err)
	case len(c.delayed.list) > 0 && len(c.members) > 0:
		pause = pauseUntil(c.delayed.list[0].at, now)
	default:
		return
	}
	c.endTimer = k.after(pause, func() {
		c.endTimer = nil
		k.advance(c)
	})
}

func pauseUntil(at, now uint64) time.Duration {
	millis := min(max(at, now+1)-now, uint64(maxWait/time.Millisecond))
	return time.Duration(millis) * time.Millisecond //nolint:gosec // bounded
}

// memberWithRoom returns the member with the fewest messages among those with room for another message. It returns nil
// if no member has room.
func (c *consumer) memberWithRoom() (best *member) {
	for _, m := range c.members {
		if m.hasRoom() && (best == nil || m.outstanding < best.outstanding) {
			best = m
		}
	}
	return best
}

// release ends the lease of an item. It does not make the item available for delivery again (see giveBack).
func (c *consumer) release(i *item) {
	if i.lease != nil {
		i.lease.outstanding--
		i.lease.bytes -= i.size
		i.lease = nil
	}
}

// giveBack ends the lease of an item, and makes the item available for delivery again.
func (c *consumer) giveBack(i *item) {
	c.release(i)
	if q := c.queues[c.queueOf(i)]; len(q) > 0 && q[0] == i {
		c.offer(i)
	}
}

// finish queues a settlement that ends an item, and takes the item out of its queue.
func (c *consumer) finish(i *item, s *settlement) {
	s.offset = i.offset
	i.pending = s
	c.settled = append(c.settled, s)
	c.release(i)
	c.free(i)
	c.remove(i)
}

// failed records that an attempt to deliver a message has failed, and parks the message until the next attempt. It
// returns the settlement that stores the parked record.
func (c *consumer) failed(i *item, now uint64) *settlement {
	c.release(i)
	i.attempts++
	pause := lastBackoff
	if n := i.attempts - 1; n < 16 {
		pause = min(c.backoff<<n, lastBackoff)
	}
	// An earlier leader, whose clock was ahead, may have delivered the message before the time i.at.
	c.park(i, max(i.at, now+uint64(max(pause.Milliseconds(), 1)))) //nolint:gosec // positive
	c.giveBack(i)
	return i.pending
}

// drop records that a consumer is gone, and stops its timers. The calls that wait for its settlements return
// fault.NotLeader.
func (c *consumer) drop() {
	c.gone = true
	for _, stop := range []func() bool{c.endGather, c.endTimer} {
		if stop != nil {
			stop()
		}
	}
	for _, s := range c.settled {
		s.answer(errNotLeader(opSettle))
	}
	c.settled = nil
}

// dropIdle removes a consumer from memory if the consumer has neither members nor settlements.
func (k *Keeper) dropIdle(c *consumer) {
	if len(c.members) > 0 || len(c.settled) > 0 || c.flushing || c.gone {
		return
	}
	c.drop()
	c.t.consumers = slices.DeleteFunc(c.t.consumers, func(o *consumer) bool { return o == c })
}

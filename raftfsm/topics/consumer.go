package topics

import (
	"container/heap"
	"encoding/binary"
	"slices"
	"time"

	"github.com/quorate/quorate/raftfsm/kv"
)

// Bounds of a consumer.
const (
	page         = 128       // messages that are read at once
	pageBytes    = 256 << 10 // of their values
	maxBuffer    = 1 << 20   // bytes of values in memory that were not handed out yet
	maxParked    = 100_000   // parked messages of a group in memory; further messages wait
	maxBatch     = 512       // settlements of one entry
	maxBatchSize = 1 << 20   // bytes of dead letters in one entry, plus one
)

// consumer is a consumer group of a topic, at the leader. Keeper.mu guards it.
type consumer struct {
	t     *topic
	group string

	cursor // as it is in the log
	read   uint64
	more   bool // there may be messages after read

	items    map[uint64]*item // every message up to read that is not settled in the log
	queues   map[string][]*item
	ready    itemHeap // heads of queues that can be delivered now
	delayed  itemHeap // heads of queues that wait for their time
	parkedIn int      // items that are parked
	buffered int      // bytes of values of items

	concurrency int
	backoff     time.Duration // before the second attempt
	members     []*member

	settled   []*settlement // not in the log yet, in their order
	flushing  bool
	gone      bool // the Keeper has dropped it
	endGather func() bool
	endTimer  func() bool
}

// item is a message that a group has not settled in the log.
type item struct {
	offset   uint64
	key      string
	attempts uint64 // that have failed
	at       uint64 // cluster time before which it is not delivered
	expireAt uint64 // 0 = never
	value    []byte // nil = not in memory
	size     int    // of the value in bytes; 0 = not read yet
	parked   bool   // it has a parked record, or will have one
	recorded bool   // it has a parked record in the log
	lease    *member
	pending  *settlement // the last one that is not in the log yet
}

// over reports whether the message is settled, in the log or soon.
func (i *item) over() bool { return i.pending != nil && i.pending.kind != settlePark }

// The kinds of settlements.
const (
	settleDone = 1 + iota
	settlePark
	settleDead
)

// settlement is what becomes of a message.
type settlement struct {
	offset  uint64
	kind    byte
	topic   string    // of settleDead
	waiters []*waiter // calls that wait until it is in the log
	parked  parked    // of settlePark
}

// waiter is a call that waits for settlements. Keeper.mu guards it until done is closed.
type waiter struct {
	left int
	err  error // the first one
	done chan struct{}
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
	list   []*item
	byTime bool
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
func (h *itemHeap) Push(x any)    { h.list = append(h.list, x.(*item)) }

func (h *itemHeap) Pop() any {
	last := h.list[len(h.list)-1]
	h.list[len(h.list)-1] = nil
	h.list = h.list[:len(h.list)-1]
	return last
}

// find returns a consumer that is in memory.
func (t *topic) find(group string) *consumer {
	for _, c := range t.consumers {
		if c.group == group {
			return c
		}
	}
	return nil
}

// consumer returns a consumer, which it reads from the log if necessary. It returns nil if there is no such group.
func (k *Keeper) consumer(t *topic, group string) (*consumer, error) {
	if c := t.find(group); c != nil {
		return c, nil
	}
	c := &consumer{t: t, group: group, concurrency: defaultConcurrency, backoff: defaultBackoff}
	c.delayed.byTime = true
	found, err := c.load(k.machine, k.group.Now())
	if err != nil || !found {
		return nil, err
	}
	t.consumers = append(t.consumers, c)
	return c, nil
}

// load reads the records of the group.
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
	c.items = make(map[uint64]*item)
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
	prefix := c.t.parkedPrefix(c.group)
	for after, more := "", true; more; {
		var records []kv.Record
		if records, more, err = m.Records(kv.TopicStore, prefix, after, page, pageBytes, 0); err != nil {
			return false, err
		}
		for i := range records {
			p, ok := readParked(records[i].Value)
			if !ok || len(records[i].Key) != len(prefix)+8 {
				return false, errRecord("a parked message of group "+c.group, c.t.Topic)
			}
			after = records[i].Key
			c.items[offsetOf(after)] = &item{offset: offsetOf(after), key: p.key, attempts: p.attempts, at: p.at,
				parked: true, recorded: true}
		}
	}
	c.parkedIn = 0
	for _, i := range c.items { // some have been read twice
		if i.parked {
			c.parkedIn++
		}
	}
	c.rebuild()
	return true, nil
}

// add adds a message that was read. A message whose time has not come is parked.
func (c *consumer) add(offset uint64, value []byte, expireAt, now uint64) error {
	msg, ok := readMessage(value)
	if !ok {
		return errRecord("a message", c.t.Topic)
	}
	i := &item{offset: offset, key: msg.key, expireAt: expireAt}
	c.keep(i, value)
	c.items[offset] = i
	if msg.deliverAt > now {
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

// park notes that a message is delivered later.
func (c *consumer) park(i *item, at uint64) {
	i.at = at
	c.mark(i)
	c.free(i)
	i.pending = &settlement{offset: i.offset, kind: settlePark,
		parked: parked{attempts: i.attempts, at: at, key: i.key}}
	c.settled = append(c.settled, i.pending)
}

// rebuild makes the queues from the items.
func (c *consumer) rebuild() {
	c.queues = make(map[string][]*item)
	c.ready.list, c.delayed.list = nil, nil
	for _, i := range c.sorted() {
		c.enqueue(i)
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

// queueOf returns the name of the queue of a message. Messages of a queue are delivered one after another.
func (c *consumer) queueOf(i *item) string {
	switch {
	case c.concurrency == 1:
		return single
	case i.key != "":
		return "k" + i.key
	}
	return "o" + string(binary.BigEndian.AppendUint64(nil, i.offset))
}

// enqueue adds an item to its queue. Items must be added in the order of their offsets.
func (c *consumer) enqueue(i *item) {
	if i.over() {
		return
	}
	name := c.queueOf(i)
	c.queues[name] = append(c.queues[name], i)
	if len(c.queues[name]) == 1 {
		c.offer(i)
	}
}

// offer makes the head of a queue available. advance moves it on when its time has come.
func (c *consumer) offer(i *item) {
	switch {
	case i.lease != nil || i.over():
	case i.at > 0:
		heap.Push(&c.delayed, i)
	default:
		heap.Push(&c.ready, i)
	}
}

// available reports whether an item of a heap can be delivered at a time. It may have changed since it was offered.
func (c *consumer) available(i *item, now uint64) bool {
	q := c.queues[c.queueOf(i)]
	return c.items[i.offset] == i && i.lease == nil && !i.over() && len(q) > 0 && q[0] == i && i.at <= now
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
		return
	}
	c.queues[name] = q
	if at == 0 {
		c.offer(q[0])
	}
}

// readUntil reads messages until there are enough, and at least up to the offset least.
func (c *consumer) readUntil(m *kv.Machine, least, now uint64) error {
	for c.more && (c.read < least || len(c.items)-c.parkedIn < maxOpen && c.parkedIn < maxParked) {
		records, more, err := m.Records(kv.TopicStore, c.t.key(tableMessage, ""), c.t.messageKey(c.read), page,
			pageBytes, 0)
		if err != nil {
			return err
		}
		for i := range records {
			c.read = offsetOf(records[i].Key)
			if err := c.add(c.read, records[i].Value, records[i].ExpireAt, now); err != nil {
				return err
			}
			c.enqueue(c.items[c.read])
		}
		c.more = more
	}
	return nil
}

// advance reads messages, leases them to members, and sets the timer of the next delayed one. The caller holds k.mu.
func (k *Keeper) advance(c *consumer) error {
	if c.gone {
		return nil
	}
	now := k.group.Now()
	if len(c.members) > 0 {
		if err := c.readUntil(k.machine, 0, now); err != nil {
			return err
		}
	}
	for len(c.delayed.list) > 0 && (c.delayed.list[0].at <= now || !c.available(c.delayed.list[0], ^uint64(0))) {
		i := heap.Pop(&c.delayed).(*item)
		if c.available(i, now) {
			heap.Push(&c.ready, i)
		}
	}
	for len(c.ready.list) > 0 {
		i := c.ready.list[0]
		if !c.available(i, now) {
			heap.Pop(&c.ready)
			continue
		}
		m := c.memberWithRoom()
		if m == nil {
			break
		}
		heap.Pop(&c.ready)
		m.lease(i)
		m.session.out = append(m.session.out, handed{m, i.offset})
		m.session.rouse()
	}
	k.flushSoon(c)
	if c.endTimer != nil {
		c.endTimer()
		c.endTimer = nil
	}
	if len(c.delayed.list) > 0 && len(c.members) > 0 {
		c.endTimer = k.after(pauseUntil(c.delayed.list[0].at, now), func() {
			c.endTimer = nil
			if err := k.advance(c); err != nil {
				k.failed(err)
			}
		})
	}
	return nil
}

func pauseUntil(at, now uint64) time.Duration {
	millis := min(max(at, now+1)-now, uint64(maxWait/time.Millisecond))
	return time.Duration(millis) * time.Millisecond //nolint:gosec // bounded
}

// memberWithRoom returns the member with the fewest messages, or nil if none may get another one.
func (c *consumer) memberWithRoom() (best *member) {
	for _, m := range c.members {
		if m.hasRoom() && (best == nil || m.outstanding < best.outstanding) {
			best = m
		}
	}
	return best
}

// release ends the lease of an item.
func (c *consumer) release(i *item) {
	if i.lease != nil {
		i.lease.outstanding--
		i.lease.bytes -= i.size
		i.lease = nil
	}
}

// giveBack ends the lease of an item, which can be delivered again.
func (c *consumer) giveBack(i *item) {
	c.release(i)
	if q := c.queues[c.queueOf(i)]; len(q) > 0 && q[0] == i {
		c.offer(i)
	}
}

// finish settles an item for ever.
func (c *consumer) finish(i *item, s *settlement) {
	s.offset = i.offset
	i.pending = s
	c.settled = append(c.settled, s)
	c.release(i)
	c.free(i)
	c.remove(i)
}

// failed notes that an attempt has failed.
func (c *consumer) failed(i *item, now uint64) *settlement {
	c.release(i)
	i.attempts++
	pause := lastBackoff
	if n := i.attempts - 1; n < 16 {
		pause = min(c.backoff<<n, lastBackoff)
	}
	c.park(i, now+uint64(max(pause.Milliseconds(), 1))) //nolint:gosec // positive
	c.giveBack(i)
	return i.pending
}

// drop ends the timers of a consumer and the calls that wait for it.
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

// dropIdle removes a consumer that has neither members nor settlements from memory.
func (k *Keeper) dropIdle(c *consumer) {
	if len(c.members) > 0 || len(c.settled) > 0 || c.flushing || c.gone {
		return
	}
	c.drop()
	c.t.consumers = slices.DeleteFunc(c.t.consumers, func(o *consumer) bool { return o == c })
}

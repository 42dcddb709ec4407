package topics

import (
	"slices"
	"time"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// maxLetters bounds how many dead-letter topics the leader remembers for one topic.
const maxLetters = 1000

// flushSoon makes the leader store the settlements of a consumer after gatherPause. It does nothing if there is
// nothing to store, or if a flush is planned or in flight. The caller holds k.mu.
func (k *Keeper) flushSoon(c *consumer) {
	if c.gone || c.flushing || c.endGather != nil || len(c.settled) == 0 && !c.use {
		return
	}
	c.endGather = k.after(gatherPause, func() {
		c.endGather = nil
		if c.gone || c.flushing {
			return
		}
		batch, next, ops, err := k.request(c)
		if err != nil {
			k.failed(err)
			c.endGather = k.after(retryPause, func() { c.endGather = nil; k.flushSoon(c) })
			return
		}
		c.flushing, c.use = true, false
		g := k.group
		k.running.Go(func() { k.flush(g, c, batch, next, ops) })
	})
}

// request returns the operations that store the oldest settlements of c in one log entry. batch is the number of these
// settlements. next is the cursor after the entry is applied.
func (k *Keeper) request(c *consumer) (batch int, next cursor, ops []command.Op, err error) {
	next = cursor{upto: c.upto, used: k.group.Now(), ttl: c.lifetime}
	settled, named := map[uint64]bool{}, map[string]bool{}
	ops = make([]command.Op, 1, 1+len(c.settled))
	size := 0
	for _, s := range c.settled {
		if batch == maxBatch {
			break
		}
		some, err := k.settlementOps(c, s, named)
		if err != nil {
			return 0, next, nil, err
		}
		n := 0
		for i := range some {
			n += len(some[i].Key) + len(some[i].Value)
		}
		if batch > 0 && size+n > maxBatchSize {
			break
		}
		batch++
		size += n
		s.op = len(ops)
		ops = append(ops, some...)
		next.upto = max(next.upto, s.offset)
		settled[s.offset] = true
	}
	for offset := range c.unrecorded { // c.items may be much larger
		if offset <= next.upto && !settled[offset] {
			next.open = append(next.open, offset)
		}
	}
	slices.Sort(next.open)
	ops[0] = command.Op{Kind: command.OpSet, Cond: command.CondRevision, Revision: c.revision, Store: kv.TopicStore,
		Key: c.t.key(tableGroup, c.group), Value: next.encode()}
	return batch, next, ops, nil
}

// settlementOps returns the operations that store a settlement. The operation that moves the cursor is not among them.
// named contains the dead-letter topics for which the request already stores a source record. settlementOps adds
// further topics to named.
func (k *Keeper) settlementOps(c *consumer, s *settlement, named map[string]bool) (ops []command.Op, err error) {
	i := c.items[s.offset]
	if s.kind == settlePark {
		return []command.Op{i.unlessSettled(command.Op{Kind: command.OpSet, Store: kv.TopicStore,
			Key: c.t.parkedKey(c.group, s.offset), Value: s.parked.encode()})}, nil
	}
	if s.kind == settleDead {
		v, err := k.machine.Get(kv.TopicStore, c.t.messageKey(s.offset), 0)
		if err != nil {
			return nil, err
		}
		if v.Found && len(v.Value) >= 8 {
			to := c.t.Topic
			to.Name = s.topic
			ops = append(ops, command.Op{Kind: command.OpAppend, Store: kv.TopicStore, Key: to.key(tableMessage, ""),
				Value: withoutDelay(v.Value)})
			if !c.t.letters[to.Name] && !named[to.Name] {
				named[to.Name], s.marks = true, true
				ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore,
					Key: to.key(tableSource, c.t.Name), Value: []byte{recordVersion}})
			}
		}
	}
	if i != nil && i.parked {
		op := command.Op{Kind: command.OpDelete, Store: kv.TopicStore, Key: c.t.parkedKey(c.group, s.offset)}
		if s.kind == settleDead {
			op = i.unlessSettled(op)
		}
		ops = append(ops, op)
	}
	return ops, nil
}

// unlessSettled makes an operation on the parked record of the message fail if a transaction has acknowledged the
// message. Such a transaction removes the record, so unlessSettled adds the condition that the revision of the record
// is unchanged. If the log has no parked record, it returns op unchanged.
func (i *item) unlessSettled(op command.Op) command.Op {
	if i != nil && i.recorded {
		op.Cond, op.Revision = command.CondRevision, i.revision
	}
	return op
}

// withoutDelay returns the value of the dead letter for a stored message. The value has no delivery time, so the dead
// letter is delivered at once.
func withoutDelay(stored []byte) []byte {
	m, ok := decodeMessage(stored)
	if !ok {
		return stored[8:]
	}
	m.DeliverAt = time.Time{}
	return encodeMessage(&m)
}

// flush commits ops, the operations that store the oldest settlements of c. If ops were refused, or it is not known
// whether they were applied, flush reads the group again.
func (k *Keeper) flush(g records.Group, c *consumer, batch int, next cursor, ops []command.Op) {
	res, err := k.commit(g, ops)
	if err != nil { // the next attempt may also fail, for example while the disk is full
		k.pause(retryPause)
	}
	if err != nil || res.Outcome != kv.Applied || !k.flushed(c, batch, next, &res) {
		k.reload(g, c)
	}
}

// flushed updates the consumer after its oldest settlements were stored in the log. batch is the number of these
// settlements. If a replay or a removal has changed the record of the group, flushed returns false, and the caller must
// call reload.
func (k *Keeper) flushed(c *consumer, batch int, next cursor, res *kv.Result) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.gone {
		c.flushing = false
		return true // drop has ended the calls that waited
	}
	next.revision = res.Revisions[0]
	c.cursor = next
	for _, s := range c.settled[:batch] {
		if i := c.items[s.offset]; i != nil {
			if s.kind == settlePark {
				i.recorded, i.revision = true, res.Revisions[s.op]
				delete(c.unrecorded, s.offset)
			}
			if i.pending == s {
				if i.pending = nil; s.kind != settlePark || i.tailed {
					c.forget(i)
				}
			}
		}
		if s.marks {
			c.t.hasLettersIn(s.topic)
		}
		k.count(c, s)
		s.answer(nil)
	}
	c.settled = slices.Clone(c.settled[batch:])
	if c.t.held && !c.t.dirty {
		c.t.dirty = true
		k.sweepIn(sweepPause)
	}
	if c.moved {
		return false
	}
	c.flushing = false
	k.advance(c)
	k.dropIdle(c)
	return true
}

// hasLettersIn records in memory that the named topic has received dead letters of t, and has a source record for t. If
// maxLetters topics are recorded already, hasLettersIn first forgets all of them. The caller holds k.mu.
func (t *topic) hasLettersIn(name string) {
	if t.letters == nil || len(t.letters) >= maxLetters {
		t.letters = map[string]bool{}
	}
	t.letters[name] = true
}

// forget removes an item from memory, because the message is settled in the log or its offset is in a tail.
func (c *consumer) forget(i *item) {
	c.release(i)
	c.free(i)
	delete(c.items, i.offset)
	delete(c.unrecorded, i.offset)
	if i.parked {
		c.parkedIn--
	}
}

// reload reads the records of a consumer group again, and repeats this until it succeeds or the consumer ends. The
// caller has set c.flushing. The group must be read again in these cases:
//
//   - The outcome of a proposal is not known.
//   - A proposal was refused. For example, an earlier proposal with an unknown outcome was applied, or a transaction
//     has acknowledged a message.
//   - A replay or a removal has changed the record of the group.
func (k *Keeper) reload(g records.Group, c *consumer) {
	for {
		err := k.confirm(g)
		k.mu.Lock()
		if c.gone || k.closed {
			c.flushing = false
			k.mu.Unlock()
			return
		}
		if err == nil {
			c.moved = false
			if err = k.reloaded(c); err == nil {
				c.flushing = false
				k.advance(c)
				k.dropIdle(c)
				k.mu.Unlock()
				return
			}
			k.failed(err)
		}
		k.mu.Unlock()
		k.pause(retryPause)
	}
}

func (k *Keeper) pause(d time.Duration) {
	done := make(chan struct{})
	stop := k.opts.AfterFunc(d, func() { close(done) })
	select {
	case <-done:
	case <-k.closing.Done():
		stop()
	}
}

// reloaded replaces the items of c with those in the log. It then restores the leases, and the settlements that are not
// in the log yet. After an error, c is unchanged. The caller holds k.mu.
func (k *Keeper) reloaded(c *consumer) error {
	before := *c // a copy is enough: load replaces the maps and lists of c, and does not change them
	old, settled, now := c.items, c.settled, k.group.Now()
	var known []uint64 // offsets of messages that must be in memory again
	for offset, i := range old {
		if i.lease != nil {
			known = append(known, offset)
		}
	}
	for _, s := range settled {
		if s.kind != settlePark || s.parked.attempts > 0 || len(s.waiters) > 0 {
			known = append(known, s.offset)
		}
	}
	slices.Sort(known)
	c.settled = nil
	found, err := c.load(k.machine, now)
	for n := len(known) - 1; n >= 0 && found && err == nil; n-- {
		_, err = c.unsettled(k.machine, known[n], now)
	}
	if err != nil {
		*c = before // members keep their messages until the next attempt
		return err
	}
	if !found {
		c.settled = settled
		k.deleted(c, old)
		return nil
	}
	for offset, i := range old {
		if i.lease == nil {
			continue
		}
		if again := c.items[offset]; again != nil {
			again.lease, again.number, again.size = i.lease, i.number, i.size
		} else {
			c.release(i)
		}
	}
	own := c.settled // messages that are parked because their time has not come
	c.settled = nil
	for _, s := range settled {
		i := c.items[s.offset]
		switch {
		case i == nil:
			s.answer(nil) // the log has the settlement already
			continue
		case s.kind == settlePark:
			if i.attempts >= s.parked.attempts && i.parked {
				s.answer(nil)
				continue
			}
			i.attempts, i.at = s.parked.attempts, s.parked.at
			i.late = i.late && i.attempts == 0
			c.mark(i)
		}
		i.pending = s
		c.settled = append(c.settled, s)
	}
	for _, s := range own {
		if i := c.items[s.offset]; i.pending == s || i.pending == nil {
			c.settled = append(c.settled, s)
		}
	}
	c.rebuild()
	return nil
}

// deleted ends a consumer after the record of its group was removed from the log. Calls that wait for settlements of
// the consumer return without an error, although the settlements have no effect. old has the items that the consumer
// had before its records were read again.
func (k *Keeper) deleted(c *consumer, old map[uint64]*item) {
	for _, i := range old {
		c.release(i)
	}
	for _, s := range c.settled {
		s.answer(nil)
	}
	c.settled = nil
	c.drop()
	c.t.consumers = slices.DeleteFunc(c.t.consumers, func(o *consumer) bool { return o == c })
	for _, m := range slices.Clone(c.members) {
		k.endSession(m.session) // the node joins again, which creates the group
	}
}

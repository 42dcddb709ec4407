package topics

import (
	"slices"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// flushSoon stores the settlements of a consumer after gatherPause. The caller holds k.mu.
func (k *Keeper) flushSoon(c *consumer) {
	if c.gone || c.flushing || c.endGather != nil || len(c.settled) == 0 {
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
		c.flushing = true
		g := k.group
		k.running.Go(func() { k.flush(g, c, batch, next, ops) })
	})
}

// request returns the operations that store the first settlements of c, their number, and the cursor afterwards.
func (k *Keeper) request(c *consumer) (batch int, next cursor, ops []command.Op, err error) {
	next = cursor{upto: c.upto}
	settled := map[uint64]bool{}
	ops = make([]command.Op, 1, 1+len(c.settled))
	size := 0
	for _, s := range c.settled {
		if batch == maxBatch || size > maxBatchSize {
			break
		}
		batch++
		i := c.items[s.offset]
		next.upto = max(next.upto, s.offset)
		settled[s.offset] = true
		if s.kind == settlePark {
			ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore,
				Key: c.t.parkedKey(c.group, s.offset), Value: s.parked.encode()})
			continue
		}
		if s.kind == settleDead {
			v, err := k.machine.Get(kv.TopicStore, c.t.messageKey(s.offset), 0)
			if err != nil {
				return 0, next, nil, err
			}
			if v.Found && len(v.Value) >= 8 {
				to := c.t.Topic
				to.Name = s.topic
				size += len(v.Value)
				ops = append(ops, command.Op{Kind: command.OpAppend, Store: kv.TopicStore,
					Key: to.key(tableMessage, ""), Value: withoutDelay(v.Value)})
			}
		}
		if i != nil && i.parked {
			ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore,
				Key: c.t.parkedKey(c.group, s.offset)})
		}
	}
	for offset, i := range c.items {
		if offset > next.upto || settled[offset] || i.recorded {
			continue
		}
		next.open = append(next.open, offset)
	}
	slices.Sort(next.open)
	ops[0] = command.Op{Kind: command.OpSet, Cond: command.CondRevision, Revision: c.revision, Store: kv.TopicStore,
		Key: c.t.key(tableGroup, c.group), Value: next.encode()}
	return batch, next, ops, nil
}

// withoutDelay returns the value of an append for the stored value of a message. A dead letter is delivered at once.
func withoutDelay(stored []byte) []byte {
	m, ok := decodeMessage(stored)
	if !ok {
		return stored[8:]
	}
	m.DeliverAt = time.Time{}
	return encodeMessage(&m)
}

// flush commits the first settlements of a consumer.
func (k *Keeper) flush(g Group, c *consumer, batch int, next cursor, ops []command.Op) {
	res, err := k.commit(g, ops)
	if err != nil || res.Outcome != kv.Applied {
		k.reload(g, c)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c.flushing = false
	if c.gone {
		return // drop has answered
	}
	next.revision = res.Revisions[0]
	c.cursor = next
	for _, s := range c.settled[:batch] {
		if i := c.items[s.offset]; i != nil {
			i.recorded = i.recorded || s.kind == settlePark
			if i.pending == s {
				if i.pending = nil; s.kind != settlePark {
					c.forget(i)
				}
			}
		}
		k.count(c, s)
		s.answer(nil)
	}
	c.settled = slices.Clone(c.settled[batch:])
	if c.t.held && !c.t.dirty {
		c.t.dirty = true
		k.sweepIn(sweepPause)
	}
	if err := k.advance(c); err != nil {
		k.failed(err)
	}
	k.dropIdle(c)
}

// forget drops an item that is settled in the log.
func (c *consumer) forget(i *item) {
	c.release(i)
	c.free(i)
	delete(c.items, i.offset)
	if i.parked {
		c.parkedIn--
	}
}

// reload reads a consumer again after a proposal whose outcome is not known, or that was refused because an earlier
// one was applied after all.
func (k *Keeper) reload(g Group, c *consumer) {
	for {
		err := k.confirm(g)
		k.mu.Lock()
		if c.gone || k.closed {
			c.flushing = false
			k.mu.Unlock()
			return
		}
		if err == nil {
			if err = k.reloaded(c); err == nil {
				c.flushing = false
				if err = k.advance(c); err != nil {
					k.failed(err)
				}
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

// reloaded replaces the items of c by those of the log, and applies the leases and the settlements to them again.
func (k *Keeper) reloaded(c *consumer) error {
	old, settled, least, now := c.items, c.settled, uint64(0), k.group.Now()
	for offset, i := range old {
		if i.lease != nil {
			least = max(least, offset)
		}
	}
	for _, s := range settled {
		least = max(least, s.offset)
	}
	c.settled = nil
	found, err := c.load(k.machine, now)
	if err == nil && found {
		err = c.readUntil(k.machine, least, now)
	}
	if err != nil {
		c.items, c.settled = old, settled // for the next try
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
			again.lease, again.size = i.lease, i.size
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
			s.answer(nil) // the log has it already
			continue
		case s.kind == settlePark:
			if i.attempts >= s.parked.attempts && i.parked {
				s.answer(nil)
				continue
			}
			i.attempts, i.at = s.parked.attempts, s.parked.at
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

// deleted ends a consumer whose record is gone.
func (k *Keeper) deleted(c *consumer, old map[uint64]*item) {
	for _, i := range old {
		c.release(i)
	}
	for _, s := range c.settled {
		s.answer(fault.New(fault.NotFound, opSettle, "the consumer group was deleted"))
	}
	c.settled = nil
	c.drop()
	c.t.consumers = slices.DeleteFunc(c.t.consumers, func(o *consumer) bool { return o == c })
	for _, m := range c.members {
		m.session.end() // it joins again, which creates the group
		delete(k.sessions, m.session.id)
	}
}

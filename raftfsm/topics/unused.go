package topics

import (
	"time"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// A consumer group that is not used keeps its messages from being removed. With a time to live, such a group ends. The
// record of the group has that time to live and the time of the last use: a settlement, a replay, or a subscriber.
// While a group has subscribers and settles nothing, the leader stores the current time as the last use once in each
// step. A step is a tenth of the time to live. So the true last use is at most one step later than the stored last use.
// A group therefore ends when its time to live and one step have passed since the stored last use. A new leader ends no
// group in its first step. So subscribers can come back after an outage that was longer than the time to live.
//
// The request that ends a group names the revision of its record. So it is refused if the group was used meanwhile.

// maxGroupTTL bounds the time to live of a group.
const maxGroupTTL = 3650 * 24 * time.Hour

// useStep returns the interval, in milliseconds, at which the leader stores the last use of a group that has
// subscribers. ttl is the time to live of the group in milliseconds.
func useStep(ttl uint64) uint64 { return max(ttl/10, 1) }

// needsUse reports whether the leader must store the current time as the last use of a group that has subscribers.
// There are two reasons to do so:
//
//   - A subscriber has changed the time to live of the group.
//   - The group has a time to live, and the stored last use is at least useStep old.
func (c *consumer) needsUse(now uint64) bool {
	return c.ttl != c.lifetime || c.ttl > 0 && c.used+useStep(c.ttl) <= now
}

// lookBy plans a check for unused groups of a topic. The check begins when the cluster time reaches the given time, but
// not before sweepPause has passed. If an earlier check is planned, it is not postponed. The caller holds k.mu.
func (k *Keeper) lookBy(t *topic, at uint64) {
	if t.lookAt == 0 || at < t.lookAt {
		t.lookAt = at
	}
	k.sweepIn(max(pauseUntil(at, k.group.Now()), sweepPause))
}

// groupChanged processes a write to the record of a group. If the group is not in memory, it has no subscriber, and the
// leader checks whether it is unused. For example, a node may give up before its request to create the group is
// applied. The caller holds k.mu.
func (k *Keeper) groupChanged(t *topic, group string) {
	if t.find(group) == nil {
		k.lookBy(t, k.group.Now())
	}
}

// endUnused ends the groups of a topic that were not used for their time to live. For a group with subscribers, it
// makes the next flush store the time of the last use, if this is needed (see needsUse). The caller holds k.mu, which
// endUnused releases while an entry is committed.
func (k *Keeper) endUnused(t *topic) error {
	now, m := k.group.Now(), k.machine
	if t.lookAt == 0 || t.lookAt > now {
		return nil
	}
	t.lookAt = 0
	next := uint64(0)
	prefix := t.key(tableGroup, "")
	for after, more := "", true; more && k.machine == m; {
		var found []kv.Record
		var err error
		if found, more, err = m.Records(kv.TopicStore, prefix, after, page, pageBytes, 0); err != nil {
			t.lookAt = now
			return err
		}
		for i := range found {
			after = found[i].Key
			cur, ok := readCursor(found[i].Value, found[i].Revision)
			if !ok {
				t.lookAt = now
				return errRecord("a cursor", t.Topic)
			}
			if at := k.endOrUse(t, after[len(prefix):], &cur, now); at != 0 && (next == 0 || at < next) {
				next = at
			}
			if k.machine != m {
				return nil
			}
		}
	}
	if next != 0 && (t.lookAt == 0 || next < t.lookAt) { // a subscriber may have come meanwhile
		t.lookAt = next
	}
	return nil
}

// endOrUse ends a group that was not used for its time to live, or makes the next flush store that the group is in
// use. It returns the time at which to check the group again; 0 = never. The caller holds k.mu, which endOrUse
// releases while an entry is committed.
func (k *Keeper) endOrUse(t *topic, group string, cur *cursor, now uint64) (next uint64) {
	c := t.find(group)
	if c != nil && len(c.members) > 0 {
		if c.needsUse(now) {
			c.use = true
			k.flushSoon(c)
		}
		if c.lifetime == 0 {
			return 0
		}
		return now + useStep(c.lifetime)
	}
	if cur.ttl == 0 {
		return 0
	}
	step := useStep(cur.ttl)
	switch end := max(cur.used+cur.ttl, k.since) + step; {
	case end > now:
		return end
	case c != nil: // settlements of the group are not in the log yet
		return now + step
	}
	if !k.endGroup(t, group, *cur) {
		return now + uint64(sweepPause.Milliseconds())
	}
	return 0
}

// endGroup removes the records of a group. If there are too many parked messages for one log entry, it first moves
// the group back in several entries, as a replay does. It returns false if the group was used in the meantime, or
// after an error. The caller holds k.mu, which endGroup releases during the call.
func (k *Keeper) endGroup(t *topic, group string, cur cursor) bool {
	g, m := k.group, k.machine
	k.mu.Unlock()
	ended := func() bool {
		for {
			ops, last, err := back(m, t.Topic, group, &cur, 0)
			if err != nil {
				return false
			}
			if last {
				ops[0].Kind, ops[0].Value = command.OpDelete, nil
			}
			res, err := k.commit(g, ops)
			if err != nil || res.Outcome != kv.Applied {
				return false
			}
			if last {
				return true
			}
			v, err := m.Get(kv.TopicStore, ops[0].Key, 0)
			if err != nil || !v.Found || v.Revision != res.Revisions[0] {
				return false
			}
			next, ok := readCursor(v.Value, v.Revision)
			if !ok {
				return false
			}
			cur = next
		}
	}()
	k.mu.Lock()
	if !ended || k.machine != m {
		return ended
	}
	k.opts.Logger.Info("a consumer group has ended, because it was not used for its groupTTL", "topic", t.Name,
		"consumerGroup", group, "lastUse", timeOf(cur.used).UTC().Format(time.RFC3339), "groupTTL",
		(time.Duration(cur.ttl) * time.Millisecond).String()) //nolint:gosec // bounded
	t.touched = true
	if c := t.find(group); c != nil && !c.gone { // a subscriber came meanwhile: it joins again
		k.again(g, c)
	}
	return true
}

package topics

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Retention works in sweeps. A sweep counts the new messages of each topic, removes messages that the topic need not
// keep, and records which topics are full. A publish to a topic that is recorded as full is refused. A sweep may begin
// up to sweepPause after a publish. So a topic can exceed its limit by the messages that are published in that time.
const (
	sweepPause  = time.Second // from a new message to the next sweep, which counts it
	trimPage    = 512         // messages that one log entry removes
	maxPassed   = 100_000     // messages of a topic that one sweep passes because a group has not settled them
	maxBack     = 10_000      // parked records that one request removes when a group moves back or begins
	countEvery  = 4096        // the count is stored after this many new messages
	countBytes  = 16 << 20    // the count is stored after this many new bytes
	recountRest = 60_000      // milliseconds between full counts of one topic
	overhead    = 64          // bytes that a message counts in addition to its key and value
)

// sweepIn plans a sweep that begins after d. It does nothing if a sweep is running, or is planned for an earlier time.
// The caller holds k.mu.
func (k *Keeper) sweepIn(d time.Duration) {
	at := k.group.Now() + uint64(d.Milliseconds()) //nolint:gosec // not negative
	if k.sweeping || k.sweepAt != 0 && k.sweepAt <= at {
		return
	}
	if k.endSweep != nil {
		k.endSweep()
	}
	k.sweepAt = at
	k.endSweep = k.after(d, func() {
		k.sweepAt, k.endSweep = 0, nil
		if !k.sweeping && k.machine != nil {
			k.sweeping = true
			k.running.Go(k.sweep)
		}
	})
}

// sweep ends unused groups and applies the policy, for each topic that is due. It then sets the time of the next
// sweep.
func (k *Keeper) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	machine, now := k.machine, k.group.Now()
	var due []*topic
	for _, t := range k.topics {
		if t.dirty || t.lookAt != 0 && t.lookAt <= now || t.trimAt != 0 && t.trimAt <= now ||
			t.full && t.recounted+recountRest <= now {
			due = append(due, t)
		}
	}
	slices.SortFunc(due, func(a, b *topic) int { return compare(a.prefix(), b.prefix()) })
	failed := false
	for _, t := range due {
		if k.closed || k.machine != machine || machine == nil {
			break
		}
		t.dirty = false
		err := k.endUnused(t)
		if err == nil && k.machine == machine {
			err = k.retain(t)
		}
		if err != nil {
			k.failed(err)
			t.dirty, failed = true, true
		}
		k.mu.Unlock() // other goroutines may wait for it
		k.mu.Lock()
	}
	k.sweeping = false
	if k.closed || k.machine == nil {
		return
	}
	if failed {
		k.sweepIn(sweepPause)
		return
	}
	next := uint64(0)
	for _, t := range k.topics {
		if t.dirty {
			k.sweepIn(sweepPause)
			return
		}
		if t.trimAt != 0 && (next == 0 || t.trimAt < next) {
			next = t.trimAt
		}
		if t.lookAt != 0 && (next == 0 || t.lookAt < next) {
			next = t.lookAt
		}
		if again := t.recounted + recountRest; t.full && (next == 0 || again < next) {
			next = again
		}
	}
	if next != 0 {
		k.sweepIn(max(pauseUntil(next, k.group.Now()), sweepPause))
	}
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// retain applies the policy of a topic: it counts new messages, and removes messages that the topic need not keep. It
// also records that a topic has become full, and removes this record when the topic has room again. The caller holds
// k.mu, which retain releases from time to time.
func (k *Keeper) retain(t *topic) error {
	m := k.machine
	policy, err := policyOf(m, t.Topic)
	if err != nil {
		return err
	}
	records, err := m.GetMany(kv.TopicStore, []string{t.key(tableCount, ""), t.key(tableFull, "")}, 0)
	if err != nil {
		return err
	}
	stored := count{}
	if records[0].Found {
		var ok bool
		if stored, ok = readCount(records[0].Value, records[0].Revision); !ok {
			return errRecord("its count", t.Topic)
		}
	}
	if t.counted.revision != stored.revision || t.counted.upto < stored.upto {
		t.counted = stored
	}
	if t.full = records[1].Found; t.full {
		k.opts.Logger.Debug("the topic is full", "topic", t.Name)
	}
	if err := k.countNew(t, m); err != nil || k.machine != m {
		return err
	}
	limit := uint64(policy.MaxBytes) //nolint:gosec // positive
	fresh := t.stale
	if now := k.group.Now(); fresh || (t.counted.bytes > limit || t.full) && now >= t.recounted+recountRest {
		t.recounted, t.stale = now, false // the earlier count has messages whose TTL has ended since
		t.counted = count{revision: t.counted.revision}
		if err := k.countNew(t, m); err != nil || k.machine != m {
			return err
		}
	}
	for {
		ops, next, more, err := k.trim(t, &policy)
		if err != nil || k.machine != m {
			return err
		}
		full := next.bytes > limit
		switch {
		case more || t.passed > 0:
			full = t.full // no decision yet: the removal continues
		case t.full && next.bytes > limit-limit/10:
			full = true // the topic opens again when a tenth of its limit is free
		}
		switch {
		case full && !t.full:
			ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore, Key: t.key(tableFull, ""),
				Value: []byte{recordVersion}})
		case !full && t.full:
			ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore, Key: t.key(tableFull, "")})
		}
		if len(ops) == 0 && !fresh && next.messages-min(next.messages, stored.messages) < countEvery &&
			next.bytes-min(next.bytes, stored.bytes) < countBytes {
			t.counted = next
			return nil
		}
		head := command.Op{Kind: command.OpSet, Store: kv.TopicStore, Key: t.key(tableCount, ""), Value: next.encode()}
		if head.Cond = command.CondAbsent; next.revision != 0 {
			head.Cond, head.Revision = command.CondRevision, next.revision
		}
		g := k.group
		k.mu.Unlock()
		res, err := k.commit(g, append([]command.Op{head}, ops...))
		k.mu.Lock()
		if err != nil || res.Outcome != kv.Applied || k.machine != m {
			t.dirty, t.stale, t.passed = true, t.stale || fresh, 0 // the next sweep tries again
			return nil
		}
		if full != t.full {
			k.reportFull(t, full, &policy)
		}
		next.revision, fresh = res.Revisions[0], false
		t.counted, t.full, stored = next, full, next
		if !more {
			return nil
		}
	}
}

func (k *Keeper) reportFull(t *topic, full bool, p *Policy) {
	log := k.opts.Logger.With("topic", t.Name, "maxBytes", p.MaxBytes)
	if !full {
		log.Info("a topic accepts messages again")
		return
	}
	log.Warn("a topic is full: its consumer groups have not acknowledged its messages, and publishing is refused",
		"hint", "let the subscribers handle the messages, delete groups that are not needed with quorate topics "+
			"delete --group, or raise maxBytes")
}

// maxOrigins bounds how many topics policyOf looks at.
const maxOrigins = 16

// policyOf returns the policy of a topic. A topic that has only dead letters has no stored policy, because only
// publishing stores one. policyOf then returns the policy of a topic from which the dead letters come. If no such topic
// has a stored policy, it returns the default.
func policyOf(m *kv.Machine, t Topic) (Policy, error) {
	origins := []Topic{t}
	for n := 0; n < len(origins); n++ {
		p, found, err := storedPolicy(m, origins[n])
		if found || err != nil {
			return p, err
		}
		prefix := origins[n].key(tableSource, "")
		sources, _, err := m.List(kv.TopicStore, prefix, "", maxOrigins, 0)
		if err != nil {
			return p, err
		}
		for i := range sources {
			from := t
			from.Name = sources[i].Key[len(prefix):]
			if len(origins) < maxOrigins && !slices.Contains(origins, from) {
				origins = append(origins, from)
			}
		}
	}
	return Policy{DefaultRetention, DefaultMaxBytes}, nil
}

// storedPolicy returns the policy that a publish to the topic has stored.
func storedPolicy(m *kv.Machine, t Topic) (p Policy, found bool, err error) {
	v, err := m.Get(kv.TopicStore, t.key(tablePolicy, ""), 0)
	if err != nil || !v.Found {
		return p, false, err
	}
	p, ok := readPolicy(v.Value)
	if !ok {
		return p, false, errRecord("its policy", t)
	}
	return p, true, nil
}

// countNew adds the messages after t.counted.upto to t.counted. The caller holds k.mu, which countNew releases from
// time to time.
func (k *Keeper) countNew(t *topic, m *kv.Machine) error {
	for more := true; more && k.machine == m; {
		var found []kv.Listed
		var err error
		found, more, err = m.List(kv.TopicStore, t.key(tableMessage, ""), t.messageKey(t.counted.upto), 1000, 0)
		if err != nil {
			return err
		}
		for i := range found {
			t.counted.upto = offsetOf(found[i].Key)
			t.counted.messages++
			t.counted.bytes += sizeOf(found[i].Key, found[i].Size)
		}
		k.mu.Unlock() // other goroutines may wait for it
		k.mu.Lock()
	}
	return nil
}

func sizeOf(key string, value int) uint64 {
	return uint64(len(key)+value) + overhead //nolint:gosec // not negative
}

// trim returns operations that remove messages that every group has settled. It removes a message only if the message
// is older than the retention, or if the topic exceeds its size limit. trim also sets t.trimAt, t.held and t.passed.
//
// next is the count of the topic after the removal. more is true if further messages may have to be removed. The caller
// holds k.mu, which trim releases from time to time.
func (k *Keeper) trim(t *topic, p *Policy) (ops []command.Op, next count, more bool, err error) {
	m := k.machine
	next = t.counted
	t.trimAt, t.held = 0, t.passed > 0
	held, err := holdsOf(m, t.Topic)
	if err != nil {
		return nil, next, false, err
	}
	after, passed := "", 0
	if t.passed > 0 {
		after = t.messageKey(t.passed)
	}
	now, age := k.group.Now(), uint64(p.Retention.Milliseconds()) //nolint:gosec // positive
	for again := true; again && k.machine == m; {
		var found []kv.Record
		found, again, err = m.Records(kv.TopicStore, t.key(tableMessage, ""), after, trimPage, pageBytes, 0)
		if err != nil {
			return nil, next, false, err
		}
		for i := range found {
			r := &found[i]
			msg, _ := readMessage(r.Value) // the time can be read from a message of a newer format too
			after = r.Key
			large := next.bytes > uint64(p.MaxBytes) //nolint:gosec // positive
			if msg.at+age > now && !large {
				t.trimAt, t.passed = msg.at+age, 0
				return ops, next, false, nil
			}
			offset := offsetOf(r.Key)
			keep, err := held.has(offset)
			switch {
			case err != nil:
				return nil, next, false, err
			case keep:
				t.held, t.passed = true, offset
				passed++
				continue
			case offset > t.counted.upto:
				t.passed = 0
				return ops, next, false, nil // not counted yet
			}
			ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore, Key: r.Key})
			next.messages -= min(next.messages, 1)
			next.bytes -= min(next.bytes, sizeOf(r.Key, len(r.Value)))
			if len(ops) == trimPage {
				return ops, next, true, nil
			}
		}
		if held.rest(offsetOf(after)) {
			break // at least one group has settled no message after this one
		}
		if passed >= maxPassed {
			t.trimAt = now + uint64(sweepPause.Milliseconds())
			return ops, next, false, nil
		}
		k.mu.Unlock() // other goroutines may wait for it
		k.mu.Lock()
	}
	t.passed = 0
	return ops, next, false, nil
}

// trimFence returns an operation for requests that create a group or move a group back. The operation stores the count
// of the topic again, which gives the count a new revision. Removals that retention has proposed earlier are then
// refused, because they name the old revision. So the group gets the messages that the refused removals would have
// removed.
func trimFence(m *kv.Machine, t Topic) (command.Op, error) {
	op := command.Op{Kind: command.OpSet, Cond: command.CondAbsent, Store: kv.TopicStore, Key: t.key(tableCount, "")}
	v, err := m.Get(kv.TopicStore, op.Key, 0)
	if err != nil {
		return op, err
	}
	if !v.Found {
		op.Value = (&count{}).encode()
		return op, nil
	}
	op.Cond, op.Revision, op.Value = command.CondRevision, v.Revision, v.Value
	return op, nil
}

// holds finds the messages of a topic that must stay because at least one group has not settled them. The offsets in
// successive calls of holds.has must ascend.
type holds struct {
	m      *kv.Machine
	open   map[uint64]bool // offsets that are open in a group
	upto   uint64          // messages above this offset are held; the greatest number if there is no group
	parked []*parkedList
}

// has reports whether at least one group has not settled a message.
func (h *holds) has(offset uint64) (held bool, err error) {
	if offset > h.upto || h.open[offset] {
		return true, nil
	}
	for _, list := range h.parked {
		if held, err = list.has(h.m, offset); held || err != nil {
			return held, err
		}
	}
	return false, nil
}

func (h *holds) rest(offset uint64) bool { return offset >= h.upto }

// parkedList lists the parked messages of a group, page by page.
type parkedList struct {
	prefix string
	page   []uint64 // the next offsets
	last   bool     // there are no parked messages after page
}

func (l *parkedList) has(m *kv.Machine, offset uint64) (bool, error) {
	for {
		for len(l.page) > 0 && l.page[0] < offset {
			l.page = l.page[1:]
		}
		if len(l.page) > 0 || l.last {
			return len(l.page) > 0 && l.page[0] == offset, nil
		}
		after := l.prefix + string(binary.BigEndian.AppendUint64(nil, max(offset, 1)-1))
		found, more, err := m.List(kv.TopicStore, l.prefix, after, 1000, 0)
		if err != nil {
			return false, err
		}
		l.last = !more
		for i := range found {
			l.page = append(l.page, offsetOf(found[i].Key))
		}
	}
}

func holdsOf(m *kv.Machine, t Topic) (h holds, err error) {
	h = holds{m: m, open: map[uint64]bool{}, upto: ^uint64(0)}
	prefix := t.key(tableGroup, "")
	for after, more := "", true; more; {
		var groups []kv.Record
		if groups, more, err = m.Records(kv.TopicStore, prefix, after, page, pageBytes, 0); err != nil {
			return h, err
		}
		for i := range groups {
			after = groups[i].Key
			c, ok := readCursor(groups[i].Value, groups[i].Revision)
			if !ok {
				return h, errRecord("a cursor", t)
			}
			h.upto = min(h.upto, c.upto)
			for _, offset := range c.open {
				h.open[offset] = true
			}
			h.parked = append(h.parked, &parkedList{prefix: t.parkedPrefix(after[len(prefix):])})
		}
	}
	return h, nil
}

// Replay moves a group back, so that the group receives messages again. If offset is not 0, the group continues with
// the message at that offset. Otherwise it continues with the first message that was published at or after the cluster
// time since. Replay never moves a group forward. Earlier messages that the group has not settled stay unsettled.
//
// Replay returns fault.NotFound if the group does not exist. If it fails after some of its requests were applied, it
// returns fault.Indeterminate.
func (k *Keeper) Replay(t Topic, group string, offset, since uint64) error {
	if err := checkNames(opReplay, t.Name, group); err != nil {
		return err
	}
	for changed := false; ; {
		applied, done, err := k.moveBack(t, group, offset, since)
		switch {
		case err != nil && changed:
			return errPartlyReplayed(err)
		case err != nil:
			return err
		case done:
			return nil
		}
		changed = changed || applied
	}
}

// moveBack proposes one request of a replay. applied is false if the request was refused, because the group or the
// count of the topic has changed in the meantime. The caller must call moveBack until done is true.
func (k *Keeper) moveBack(t Topic, group string, offset, since uint64) (applied, done bool, err error) {
	k.mu.Lock()
	err = k.lead(opReplay)
	g, m := k.group, k.machine
	k.mu.Unlock()
	if err == nil {
		err = k.confirm(g)
	}
	if err != nil {
		return false, false, err
	}
	v, err := m.Get(kv.TopicStore, t.key(tableGroup, group), 0)
	if err != nil {
		return false, false, err
	}
	if !v.Found {
		return false, false, fault.New(fault.NotFound, opReplay, "topic "+t.Name+" has no consumer group "+group)
	}
	c, ok := readCursor(v.Value, v.Revision)
	if !ok {
		return false, false, errRecord("a cursor", t)
	}
	from := offset
	if from == 0 {
		if from, err = firstSince(m, t, since); err != nil {
			return false, false, err
		}
	}
	c.used = g.Now()
	ops, last, err := back(m, t, group, &c, max(from, 1)-1)
	if err != nil {
		return false, false, err
	}
	fence, err := trimFence(m, t)
	if err != nil {
		return false, false, err
	}
	res, err := k.commit(g, append(ops, fence))
	if err != nil || res.Outcome != kv.Applied {
		return false, false, err
	}
	k.moved(t, group, g, m)
	return true, last, nil
}

// back returns the operations that move a group back to the offset upto. c is the present cursor of the group. The
// operations also remove the parked records of later messages, because the group reads these messages again. If there
// are too many parked records for one request, done is false: the operations move the group back only in part, and
// further requests are needed.
func back(m *kv.Machine, t Topic, group string, c *cursor, upto uint64) (ops []command.Op, done bool, err error) {
	next := cursor{upto: min(c.upto, upto), used: c.used, ttl: c.ttl}
	var parked []string
	done = true
	for after, more := t.parkedKey(group, next.upto), true; more; {
		var found []kv.Listed
		if found, more, err = m.List(kv.TopicStore, t.parkedPrefix(group), after, 1000, 0); err != nil {
			return nil, false, err
		}
		for i := range found {
			after = found[i].Key
			parked = append(parked, after)
		}
		if n := len(parked) - maxBack; n > 0 {
			parked, done = slices.Clone(parked[n:]), false
		}
	}
	if !done {
		next.upto = offsetOf(parked[0]) - 1
	}
	for _, o := range c.open {
		if o <= next.upto {
			next.open = append(next.open, o)
		}
	}
	ops = []command.Op{{Kind: command.OpSet, Cond: command.CondRevision, Revision: c.revision, Store: kv.TopicStore,
		Key: t.key(tableGroup, group), Value: next.encode()}}
	for _, key := range parked {
		ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore, Key: key})
	}
	return ops, done, nil
}

// moved makes the leader read a group again, because a replay has moved its cursor in the log.
func (k *Keeper) moved(t Topic, group string, g records.Group, m *kv.Machine) {
	k.mu.Lock()
	defer k.mu.Unlock()
	one := k.topics[t]
	if one == nil || k.machine != m {
		return
	}
	if c := one.find(group); c != nil {
		k.again(g, c)
	}
}

// again makes the leader read a consumer group again: now, or after the current flush has ended. The caller holds
// k.mu.
func (k *Keeper) again(g records.Group, c *consumer) {
	if c.moved = true; !c.flushing {
		c.flushing = true
		k.running.Go(func() { k.reload(g, c) })
	}
}

// firstSince returns the offset of the first message that was published at or after a cluster time. If there is none,
// it returns an offset that no message has yet.
func firstSince(m *kv.Machine, t Topic, since uint64) (uint64, error) {
	for after, more := "", true; more; {
		found, again, err := m.Records(kv.TopicStore, t.key(tableMessage, ""), after, page, pageBytes, 0)
		if err != nil {
			return 0, err
		}
		for i := range found {
			after = found[i].Key
			if msg, ok := readMessage(found[i].Value); ok && msg.at >= since {
				return offsetOf(after), nil
			}
		}
		more = again
	}
	return m.Revision() + 1, nil
}

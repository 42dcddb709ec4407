package topics

import (
	"slices"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Retention counts the messages of each topic, removes those that are not needed, and marks a topic that is full.
// A publish checks the mark in its own request. So a topic can exceed its limit by what is published in sweepPause.
const (
	sweepPause  = time.Second // from a new message to the count
	trimPage    = 512         // messages that one entry removes
	countEvery  = 4096        // messages or
	countBytes  = 16 << 20    // bytes after which the count is stored
	recountRest = 60_000      // milliseconds between full counts of one topic
	overhead    = 64          // bytes of a message beside its key and value
)

// sweepIn sets the time of the next sweep. The caller holds k.mu.
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

// sweep looks at the topics that need it, one after another.
func (k *Keeper) sweep() {
	k.mu.Lock()
	defer k.mu.Unlock()
	machine, now := k.machine, k.group.Now()
	var due []*topic
	for _, t := range k.topics {
		if t.dirty || t.trimAt != 0 && t.trimAt <= now || t.full && t.recounted+recountRest <= now {
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
		if err := k.retain(t); err != nil {
			k.failed(err)
			t.dirty, failed = true, true
		}
		k.mu.Unlock() // for those who wait
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

// retain counts the new messages of a topic, removes what it need not keep, and sets or removes the mark of a full
// topic. The caller holds k.mu, which retain releases while an entry is committed.
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
	if now := k.group.Now(); (t.counted.bytes > limit || t.full) && now >= t.recounted+recountRest {
		t.recounted = now // messages whose TTL has ended were not subtracted
		t.counted = count{revision: t.counted.revision}
		if err := k.countNew(t, m); err != nil || k.machine != m {
			return err
		}
	}
	for {
		ops, next, more, err := k.trim(t, &policy)
		if err != nil {
			return err
		}
		full := next.bytes > limit
		if t.full && !full && next.bytes > limit-limit/10 {
			full = true // it opens again when a tenth is free
		}
		switch {
		case full && !t.full:
			ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore, Key: t.key(tableFull, ""),
				Value: []byte{recordVersion}})
		case !full && t.full:
			ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore, Key: t.key(tableFull, "")})
		}
		if len(ops) == 0 && next.messages-min(next.messages, stored.messages) < countEvery &&
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
			t.dirty = true // look again
			return nil
		}
		if full != t.full {
			k.reportFull(t, full, &policy)
		}
		next.revision = res.Revisions[0]
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
		"hint", "let the subscribers handle the messages, delete groups that are not needed, or raise maxBytes")
}

func policyOf(m *kv.Machine, t Topic) (Policy, error) {
	v, err := m.Get(kv.TopicStore, t.key(tablePolicy, ""), 0)
	if err != nil || !v.Found {
		return Policy{DefaultRetention, DefaultMaxBytes}, err
	}
	p, ok := readPolicy(v.Value)
	if !ok {
		return p, errRecord("its policy", t)
	}
	return p, nil
}

// countNew counts the messages after those that were counted.
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
		k.mu.Unlock() // for those who wait
		k.mu.Lock()
	}
	return nil
}

func sizeOf(key string, value int) uint64 {
	return uint64(len(key)+value) + overhead //nolint:gosec // not negative
}

// trim returns the operations that remove messages which all groups have settled, if they are older than the
// retention or the topic has too much. next is the count afterwards. It also sets when the next message is due.
func (k *Keeper) trim(t *topic, p *Policy) (ops []command.Op, next count, more bool, err error) {
	next = t.counted
	t.trimAt, t.held = 0, false
	held, err := holdsOf(k.machine, t.Topic)
	if err != nil {
		return nil, next, false, err
	}
	now, age := k.group.Now(), uint64(p.Retention.Milliseconds()) //nolint:gosec // positive
	for after, again := "", true; again && len(ops) < trimPage; {
		var found []kv.Record
		found, again, err = k.machine.Records(kv.TopicStore, t.key(tableMessage, ""), after, trimPage, pageBytes, 0)
		if err != nil {
			return nil, next, false, err
		}
		for i := range found {
			r := &found[i]
			msg, ok := readMessage(r.Value)
			if !ok {
				return nil, next, false, errRecord("a message", t.Topic)
			}
			after = r.Key
			large := next.bytes > uint64(p.MaxBytes) //nolint:gosec // positive
			if msg.at+age > now && !large {
				t.trimAt = msg.at + age
				return ops, next, false, nil
			}
			offset := offsetOf(r.Key)
			if held.has(offset) {
				t.held = true
				continue
			}
			if offset > t.counted.upto {
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
			return ops, next, false, nil // no group has settled anything after it
		}
	}
	return ops, next, false, nil
}

// holds are the messages that a group of a topic has not settled.
type holds struct {
	open map[uint64]bool // up to upto
	upto uint64          // every message above it is held; the greatest number if there is no group
}

func (h *holds) has(offset uint64) bool  { return offset > h.upto || h.open[offset] }
func (h *holds) rest(offset uint64) bool { return offset >= h.upto }

// maxHolds bounds the parked messages of a group that are looked at. Messages after them count as held.
const maxHolds = 10_000

func holdsOf(m *kv.Machine, t Topic) (h holds, err error) {
	h = holds{open: map[uint64]bool{}, upto: ^uint64(0)}
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
			if err := h.addParked(m, t.parkedPrefix(after[len(prefix):])); err != nil {
				return h, err
			}
		}
	}
	return h, nil
}

func (h *holds) addParked(m *kv.Machine, prefix string) error {
	for n, after, more := 0, "", true; more; {
		found, again, err := m.List(kv.TopicStore, prefix, after, 1000, 0)
		if err != nil {
			return err
		}
		for i := range found {
			after = found[i].Key
			h.open[offsetOf(after)] = true
		}
		if n += len(found); n >= maxHolds && again {
			h.upto = min(h.upto, offsetOf(after))
			return nil
		}
		more = again
	}
	return nil
}

// Replay makes a group receive every message from an offset on again, or from a time on if offset is 0. The messages
// that the group has not settled yet stay unsettled.
func (k *Keeper) Replay(t Topic, group string, offset, since uint64) error {
	if err := checkNames("topics.Replay", t.Name, group); err != nil {
		return err
	}
	for {
		k.mu.Lock()
		err := k.lead("topics.Replay")
		g, m := k.group, k.machine
		k.mu.Unlock()
		if err == nil {
			err = k.confirm(g)
		}
		if err != nil {
			return err
		}
		v, err := m.Get(kv.TopicStore, t.key(tableGroup, group), 0)
		if err != nil {
			return err
		}
		if !v.Found {
			return fault.New(fault.NotFound, "topics.Replay", "topic "+t.Name+" has no consumer group "+group)
		}
		c, ok := readCursor(v.Value, v.Revision)
		if !ok {
			return errRecord("a cursor", t)
		}
		from := offset
		if from == 0 {
			if from, err = firstSince(m, t, since); err != nil {
				return err
			}
		}
		next := cursor{upto: min(c.upto, max(from, 1)-1)}
		for _, o := range c.open {
			if o <= next.upto {
				next.open = append(next.open, o)
			}
		}
		ops := []command.Op{{Kind: command.OpSet, Cond: command.CondRevision, Revision: c.revision,
			Store: kv.TopicStore, Key: t.key(tableGroup, group), Value: next.encode()}}
		parked, _, err := m.List(kv.TopicStore, t.parkedPrefix(group), t.parkedKey(group, next.upto), maxHolds, 0)
		if err != nil {
			return err
		}
		for i := range parked {
			ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore, Key: parked[i].Key})
		}
		res, err := k.commit(g, ops)
		if err != nil {
			return err
		}
		if res.Outcome != kv.Applied {
			continue // the group has settled something meanwhile
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if one := k.topics[t]; one != nil && k.machine == m {
			if c := one.find(group); c != nil && !c.flushing {
				c.flushing = true
				k.running.Go(func() { k.reload(g, c) })
			}
		}
		return nil
	}
}

// firstSince returns the offset of the first message that was published at or after a time.
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

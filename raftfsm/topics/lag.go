package topics

import (
	"math"
	"slices"
	"sync"

	"github.com/quorate/quorate/raftfsm/kv"
)

// The lag of groups is measured when metrics are collected, from the records: the cursor, the offsets below it that
// are open, and the parked messages. Counters in memory would be wrong, because a transaction acknowledges a message
// by removing its parked record, and a new leader begins without counters.
//
// The messages above the cursor of a group are counted once, in parts. Later measurements add the messages that were
// published since, and drop the parts that the cursor has passed. A topic in which no group has a lag is measured
// again only after a record of the topic was written.

// Bounds of a measurement.
const (
	maxMeasured = 200_000 // keys of messages of a group that one measurement lists
	exactBelow  = 10_000  // a group with fewer messages above its cursor is counted anew each time
	partSize    = 10_000  // messages of a part, which is counted again when the cursor has passed some of them
	maxWaiting  = 64      // if a group has at most this many open and parked messages, expired ones are left out
)

// measured is what a measurement has found for a group.
type measured struct {
	group   string
	lag     uint64
	partial bool    // the messages are not all counted yet
	age     float64 // how long the oldest message that could be delivered has waited, in seconds
}

// gauges are the measurements of a Keeper.
type gauges struct {
	mu      sync.Mutex // held during a measurement; locked before Keeper.mu
	machine *kv.Machine
	term    uint64
	restore uint64 // number of the last restore of the machine
	topics  map[Topic]*gauge
}

// gauge is the last measurement of a topic.
type gauge struct {
	found  []measured
	counts map[string]*aboveCursor
}

// behind reports whether a group has a lag.
func (g *gauge) behind() bool {
	return slices.ContainsFunc(g.found, func(m measured) bool { return m.lag > 0 || m.partial })
}

// aboveCursor counts the messages of a topic above the cursor of a group.
type aboveCursor struct {
	cursor  uint64
	n       uint64 // the sum of the messages of parts
	parts   []part // in the order of their offsets
	partial bool   // there are messages after the last part
}

// part is a range of offsets that ends at upto and contains n messages. The range begins after the previous part. The
// first part begins after the cursor.
type part struct{ upto, n uint64 }

// measure returns two values for each group of each topic: the number of unsettled messages, and how long the oldest of
// them that could be delivered has waited. It leaves out topics that cannot be read. It returns nil if this server does
// not lead.
func (k *Keeper) measure() map[Topic][]measured {
	g := &k.gauges
	g.mu.Lock()
	defer g.mu.Unlock()
	m, now, due := k.toMeasure(g)
	if m == nil {
		return nil
	}
	for _, t := range due {
		last := g.topics[t]
		if last == nil {
			last = &gauge{}
		}
		next, err := last.measure(m, t, now)
		if err != nil {
			k.failed(err)
			delete(g.topics, t) // the next call measures the topic again
			continue
		}
		g.topics[t] = next
	}
	out := make(map[Topic][]measured, len(g.topics))
	for t, one := range g.topics {
		out[t] = one.found
	}
	return out
}

// toMeasure returns the topics whose lag may have changed (due), and the state machine and the cluster time with which
// to measure them. If this server does not lead, m is nil. The caller holds g.mu.
func (k *Keeper) toMeasure(g *gauges) (m *kv.Machine, now uint64, due []Topic) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.machine == nil || k.closed || !k.group.Leading() {
		g.machine, g.topics = nil, nil
		return nil, 0, nil
	}
	if g.machine != k.machine || g.term != k.term || g.restore != k.restored {
		g.machine, g.term, g.restore, g.topics = k.machine, k.term, k.restored, map[Topic]*gauge{}
	}
	for t, one := range k.topics {
		if one.purged {
			delete(g.topics, t) // messages that were counted may be gone
		}
		if last := g.topics[t]; one.touched || last == nil || last.behind() {
			due = append(due, t)
		}
		one.touched, one.purged = false, false
	}
	return k.machine, k.group.Now(), due
}

// measure returns a new measurement of the groups of a topic. It reuses the counts of g, the previous measurement, so g
// must not be used afterwards.
func (g *gauge) measure(m *kv.Machine, t Topic, now uint64) (*gauge, error) {
	groups, err := waitingOf(m, t)
	if err != nil {
		return nil, err
	}
	next := &gauge{counts: make(map[string]*aboveCursor, len(groups))}
	for _, w := range groups {
		above := g.counts[w.Name]
		if above == nil {
			above = &aboveCursor{}
		}
		if err := above.count(m, t, w.Cursor, now); err != nil {
			return nil, err
		}
		if err := w.countWaiting(m, t, now); err != nil {
			return nil, err
		}
		next.counts[w.Name] = above
		one := measured{group: w.Name, lag: w.Lag + above.n, partial: above.partial}
		if err := w.look(m, t, now); err != nil {
			return nil, err
		}
		if w.OldestAt != 0 && w.OldestAt < now {
			one.age = float64(now-w.OldestAt) / 1000
		}
		next.found = append(next.found, one)
	}
	return next, nil
}

// count updates the number of messages above the cursor of a group. It lists only new messages, and the messages of the
// part that contains the cursor. For each part that the cursor has passed as a whole, count subtracts the recorded
// number of messages. It does not list them, because retention may have removed some.
//
// count lists all messages again in these cases:
//
//   - The cursor has gone back.
//   - The previous number was below exactBelow. Such a small number must not include expired messages.
func (a *aboveCursor) count(m *kv.Machine, t Topic, cursor, now uint64) error {
	if cursor < a.cursor || a.n < exactBelow {
		*a = aboveCursor{cursor: cursor}
	}
	for len(a.parts) > 0 && a.parts[0].upto <= cursor {
		a.n -= a.parts[0].n
		a.parts = a.parts[1:]
	}
	if cursor > a.cursor && len(a.parts) > 0 {
		first := &a.parts[0]
		n, _, _, err := countMessages(m, t, cursor, first.upto, maxMeasured, now)
		if err != nil {
			return err
		}
		a.n, first.n = a.n-first.n+n, n
	}
	a.cursor = cursor
	for left := maxMeasured; ; {
		last := part{upto: cursor}
		if len(a.parts) > 0 {
			last = a.parts[len(a.parts)-1]
		}
		n, upto, more, err := countMessages(m, t, last.upto, math.MaxUint64, min(left, partSize), now)
		if err != nil {
			return err
		}
		a.add(n, upto)
		if left -= int(n); !more || left <= 0 { //nolint:gosec // a page above partSize
			a.partial = more
			return nil
		}
	}
}

// add counts n messages that follow the last part. upto is the offset of the last of them.
func (a *aboveCursor) add(n, upto uint64) {
	if n == 0 {
		return
	}
	a.n += n
	if last := len(a.parts) - 1; last >= 0 && a.parts[last].n+n <= partSize {
		a.parts[last] = part{upto, a.parts[last].n + n}
		return
	}
	a.parts = append(a.parts, part{upto, n})
}

// countMessages counts the messages of a topic whose offsets are in the interval (after, upto]. It reads pages of 1,000
// messages, and stops after the page in which the number reaches most.
//
// last is the offset of the last message that was counted, or after if there was none. more is true if messages may
// remain.
func countMessages(m *kv.Machine, t Topic, after, upto uint64, most int, now uint64) (n, last uint64, more bool,
	err error) {
	prefix := t.key(tableMessage, "")
	for last = after; last < upto; {
		found, again, err := m.List(kv.TopicStore, prefix, t.messageKey(last), 1000, now)
		if err != nil {
			return n, last, false, err
		}
		for i := range found {
			offset := offsetOf(found[i].Key)
			if offset > upto {
				return n, last, false, nil
			}
			n, last = n+1, offset
		}
		if !again {
			return n, last, false, nil
		}
		if n >= uint64(most) { //nolint:gosec // positive
			return n, last, true, nil
		}
	}
	return n, last, false, nil
}

// countWaiting adds the open and the parked messages of a group to its lag.
func (w *waiting) countWaiting(m *kv.Machine, t Topic, now uint64) error {
	offsets := make([]uint64, 0, len(w.open)+len(w.parked))
	for offset := range w.open {
		offsets = append(offsets, offset)
	}
	for offset := range w.parked {
		if !w.open[offset] {
			offsets = append(offsets, offset)
		}
	}
	slices.Sort(offsets)
	for _, offset := range offsets {
		if len(offsets) <= maxWaiting {
			v, err := m.GetWithin(kv.TopicStore, t.messageKey(offset), now, 1)
			if err != nil {
				return err
			}
			if !v.Found {
				continue // the message has expired, and the leader has not settled it yet
			}
		}
		if err := w.count(m, t, offset, now); err != nil {
			return err
		}
	}
	return nil
}

// look searches the first maxLooked messages above the cursor for the oldest waiting message. It does nothing if a
// waiting message was already found below the cursor.
func (w *waiting) look(m *kv.Machine, t Topic, now uint64) error {
	if w.seen {
		return nil
	}
	found, _, err := m.List(kv.TopicStore, t.key(tableMessage, ""), t.messageKey(w.Cursor), maxLooked, now)
	if err != nil {
		return err
	}
	w.looked = 0
	for i := range found {
		if err := w.count(m, t, offsetOf(found[i].Key), now); err != nil || w.seen {
			return err
		}
	}
	return nil
}

package inmemory

import (
	"container/heap"
	"slices"
	"time"

	"github.com/quorate/quorate/internal/signal"
)

// group is a consumer group of a topic. All its fields are guarded by Broker.mu.
type group struct {
	broker  *Broker
	topic   *topic
	members map[*member]bool
	lanes   map[string]*lane // by sequence; only lanes that have one
	ready   lanes            // lanes whose first item can be delivered, the oldest message first
	due     lanes            // lanes whose first item waits for a time, the earliest first
	changed *signal.Signal   // fired when a waiting Receive may find something new
}

// lane holds messages that must be delivered one after another, because they have the same sequence. A message without
// a sequence has a lane of its own.
type lane struct {
	sequence string  // "" = none
	items    []*item // items that are not settled, in their order
	held     int     // number of items that a member holds; these come first
	late     bool    // the lane has one delayed item, which joins its sequence when it is due
}

// item is a message that a group has not settled.
type item struct {
	*entry
	seq       uint64 // position in the order of delivery
	lane      *lane
	holder    *member // the member that has the item; nil = none
	ref       string  // of the newest delivery
	attempts  int
	notBefore time.Time // zero = at once
}

func newGroup(b *Broker, t *topic) *group {
	return &group{broker: b, topic: t, members: map[*member]bool{}, lanes: map[string]*lane{},
		ready:   lanes{less: func(x, y *lane) bool { return x.items[0].seq < y.items[0].seq }},
		due:     lanes{less: func(x, y *lane) bool { return x.items[0].notBefore.Before(y.items[0].notBefore) }},
		changed: signal.New()}
}

// take adds a message to the group.
func (g *group) take(e *entry, now time.Time) {
	g.broker.need(e)
	g.broker.seq++
	i := &item{entry: e, seq: g.broker.seq, notBefore: e.DeliverAt}
	if i.notBefore.After(now) {
		i.lane = &lane{items: []*item{i}, late: true}
		g.schedule(i.lane)
		return
	}
	g.enqueue(i)
}

// enqueue adds an item to the end of the lane of its sequence.
func (g *group) enqueue(i *item) {
	sequence := i.Key
	if g.broker.concurrency == 1 {
		sequence = single
	}
	l := g.lanes[sequence]
	if l == nil || sequence == "" {
		l = &lane{sequence: sequence}
		if sequence != "" {
			g.lanes[sequence] = l
		}
	}
	i.lane = l
	l.items = append(l.items, i)
	if len(l.items) == 1 {
		g.schedule(l)
	}
}

// schedule adds a lane to the heap g.ready if its first item can be delivered now, or to the heap g.due if the item
// must wait. It removes an empty lane. No member may hold items of the lane.
func (g *group) schedule(l *lane) {
	if len(l.items) == 0 {
		delete(g.lanes, l.sequence)
		return
	}
	if l.items[0].notBefore.IsZero() {
		heap.Push(&g.ready, l)
	} else {
		heap.Push(&g.due, l)
	}
	g.changed.Fire()
}

// wake moves each lane whose wait has ended from the heap g.due to the heap g.ready. It returns the time until the next
// lane is due, or 0 if no lane is waiting.
func (g *group) wake(now time.Time) time.Duration {
	for len(g.due.list) > 0 {
		l := g.due.list[0]
		if wait := l.items[0].notBefore.Sub(now); wait > 0 {
			return wait
		}
		heap.Pop(&g.due)
		i := l.items[0]
		i.notBefore = time.Time{}
		if !l.late {
			g.schedule(l)
			continue
		}
		g.broker.seq++
		i.seq = g.broker.seq // the item comes after messages that were published meanwhile
		g.enqueue(i)
	}
	return 0
}

// expire drops the messages that have expired and that no member holds.
func (g *group) expire(now time.Time) {
	for _, h := range []*lanes{&g.ready, &g.due} {
		all := slices.Clone(h.list)
		h.list = nil
		for _, l := range all {
			g.dropExpired(l, now)
			g.schedule(l)
		}
	}
}

func (g *group) dropExpired(l *lane, now time.Time) {
	l.items = slices.DeleteFunc(l.items, func(i *item) bool {
		expired := i.holder == nil && i.expired(now)
		if expired {
			g.broker.spare(i.entry)
		}
		return expired
	})
}

func (i *item) expired(now time.Time) bool { return !i.expires.IsZero() && !i.expires.After(now) }

// settled removes an acknowledged item from its lane.
func (g *group) settled(i *item) {
	l := i.lane
	if at := slices.Index(l.items, i); at >= 0 {
		l.items = slices.Delete(l.items, at, at+1)
	}
	g.broker.spare(i.entry)
	g.returned(l)
}

// returned records that a member has settled or returned one item of a lane. When no item of the lane is held any more,
// the lane is scheduled again.
func (g *group) returned(l *lane) {
	if l.held--; l.held == 0 {
		g.schedule(l)
	}
}

// lanes is a heap of lanes. less defines its order.
type lanes struct {
	list []*lane
	less func(x, y *lane) bool
}

// Len implements heap.Interface.
func (h *lanes) Len() int { return len(h.list) }

// Less implements heap.Interface.
func (h *lanes) Less(i, j int) bool { return h.less(h.list[i], h.list[j]) }

// Swap implements heap.Interface.
func (h *lanes) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
}

// Push implements heap.Interface.
func (h *lanes) Push(x any) { h.list = append(h.list, x.(*lane)) }

// Pop implements heap.Interface.
func (h *lanes) Pop() any {
	last := len(h.list) - 1
	l := h.list[last]
	h.list[last] = nil
	h.list = h.list[:last]
	return l
}

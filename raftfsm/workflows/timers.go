package workflows

import (
	"container/heap"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// maxFiring bounds the timers that fire at the same time. Other timers wait in their records.
const maxFiring = 4096

// minOrder is how many items timers.order may have in addition to twice the number of items in timers.next. When it has
// more items, timers.order is rebuilt without outdated ones.
const minOrder = 64

// dueItem is the time at which a record of a bucket becomes due.
type dueItem struct {
	at    uint64 // cluster time in milliseconds
	place place
}

// dueOrder is a heap of due items, the earliest first.
type dueOrder []dueItem

func (o dueOrder) Len() int           { return len(o) }
func (o dueOrder) Less(i, j int) bool { return o[i].at < o[j].at }
func (o dueOrder) Swap(i, j int)      { o[i], o[j] = o[j], o[i] }
func (o *dueOrder) Push(x any)        { *o = append(*o, x.(dueItem)) } //nolint:forcetypeassert // only items

func (o *dueOrder) Pop() any {
	last := (*o)[len(*o)-1]
	(*o)[len(*o)-1] = dueItem{}
	*o = (*o)[:len(*o)-1]
	return last
}

// timers has the time of the first due record of each bucket. All later due records are only in the log. In this file,
// a timer means any due record. Keeper.mu guards the fields.
type timers struct {
	next   map[place]uint64 // time of the first timer of each bucket, in milliseconds of cluster time
	order  dueOrder         // the items of next, and outdated items; see first
	firing map[string]bool  // keys of timers whose event is on its way into the log
	at     uint64           // cluster time for which the alarm is set; 0 = no alarm is set
	stop   func() bool      // stops the alarm
	reads  bool             // a goroutine reads the timers that are due
}

// load finds the first timer of a bucket in the records, and notes the time at which this timer becomes due. The caller
// holds k.mu.
func (t *timers) load(k *Keeper, p place) error {
	found, _, err := k.machine.List(kv.WorkflowStore, p.table(tableDue), "", 1, 0)
	if err != nil || len(found) == 0 {
		return err
	}
	at, r, _, _, ok := splitDue(found[0].Key)
	if !ok {
		k.failed(errRecord("a timer", r)) // fire skips it
		at = 1
	}
	t.add(k, dueItem{at, p})
	return nil
}

// add notes the time at which a timer of a bucket becomes due, and sets the alarm if this timer is the first of the
// bucket. The caller holds k.mu.
func (t *timers) add(k *Keeper, d dueItem) {
	if t.next == nil {
		t.next, t.firing = map[place]uint64{}, map[string]bool{}
	}
	if at := t.next[d.place]; at == 0 || d.at < at {
		t.note(d)
		t.arm(k)
	}
}

// note sets the time at which the first timer of a bucket fires. It rebuilds t.order when there are too many outdated
// items. This happens rarely, so the average cost of a call is small.
func (t *timers) note(d dueItem) {
	t.next[d.place] = d.at
	heap.Push(&t.order, d)
	if len(t.order) > 2*len(t.next)+minOrder {
		t.order = t.order[:0]
		for p, at := range t.next {
			t.order = append(t.order, dueItem{at, p})
		}
		heap.Init(&t.order)
	}
}

// first returns the bucket with the earliest timer, and the time of that timer. ok is false if there is no timer.
// first also drops outdated items from t.order.
func (t *timers) first() (d dueItem, ok bool) {
	for len(t.order) > 0 {
		d = t.order[0]
		if at, known := t.next[d.place]; known && at == d.at {
			return d, true
		}
		heap.Pop(&t.order)
	}
	return dueItem{}, false
}

// again makes the Keeper read the timers of a bucket again. Call it after an entry of an instance in the bucket has
// failed. The caller holds k.mu.
func (t *timers) again(k *Keeper, p place) { t.add(k, dueItem{1, p}) }

// arm sets the alarm for the first timer. If the alarm is already set for the same or an earlier time, arm keeps it.
// arm does nothing while a goroutine reads due timers, or while at least maxFiring timers are firing. The caller holds
// k.mu.
func (t *timers) arm(k *Keeper) {
	d, any := t.first()
	first := d.at
	if !any || t.reads || len(t.firing) >= maxFiring || t.at != 0 && t.at <= first {
		return
	}
	if t.stop != nil {
		t.stop()
	}
	now := k.group.Now()
	t.at = max(first, 1)
	left := min(first-min(first, now), uint64(maxTimer.Milliseconds())) //nolint:gosec // positive
	wait := time.Duration(left) * time.Millisecond                      //nolint:gosec // bounded
	t.stop = k.after(wait, func() {
		t.at, t.stop = 0, nil
		if now := k.group.Now(); !t.isDue(now) {
			t.arm(k)
			return
		}
		t.reads = true
		m, reign := k.machine, k.reign
		k.spawn("timers", func() { t.read(k, m, reign) })
	})
}

func (t *timers) isDue(now uint64) bool {
	d, any := t.first()
	return any && d.at <= now
}

func (t *timers) drop() {
	if t.stop != nil {
		t.stop()
	}
	*t = timers{}
}

// read reads the buckets in which a timer is due, and fires the timers. reign is k.reign when the read was planned.
func (t *timers) read(k *Keeper, m *kv.Machine, reign uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.reigns(reign) {
		return
	}
	now := k.group.Now()
	var due []place
	for t.isDue(now) {
		due = append(due, heap.Pop(&t.order).(dueItem).place) //nolint:forcetypeassert // only items
	}
	slices.SortFunc(due, comparePlaces)
	for _, p := range slices.Compact(due) {
		delete(t.next, p) // a timer that is added while the bucket is read counts on its own
		for after, more := "", true; more; {
			k.mu.Unlock()
			found, _, err := m.Records(kv.WorkflowStore, p.table(tableDue), after, page, pageBytes, 0)
			k.mu.Lock()
			if !k.reigns(reign) {
				return
			}
			if err != nil {
				k.unread(err)
				return
			}
			after, more = t.fire(k, p, found, now)
		}
	}
	t.reads = false
	t.arm(k)
}

// fire fires the timers that are due at the given time. found is one page of a bucket's records, in the order of their
// times.
//
// If all timers were handled, fire returns the last key of the page, and more is true. If it reaches a timer that is
// not due, or if too many timers are firing, it notes the time of the next timer, and more is false. For an empty page,
// more is false, too. The caller holds k.mu.
func (t *timers) fire(k *Keeper, p place, found []kv.Record, now uint64) (after string, more bool) {
	if len(found) == 0 {
		return "", false
	}
	reign := k.reign
	for n := range found {
		key, value, revision := found[n].Key, found[n].Value, found[n].Revision
		at, r, kind, _, ok := splitDue(key)
		d, readable := readDue(value)
		switch {
		case !ok || !readable:
			k.failed(errRecord("a timer", r))
			continue
		case at > now:
			t.add(k, dueItem{at, p})
			return "", false
		case t.firing[key]:
			continue
		case len(t.firing) >= maxFiring:
			t.add(k, dueItem{at, p})
			return "", false
		}
		t.firing[key] = true
		// If the instance cannot be changed, the bucket is read again.
		done := func(err error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			if !k.reigns(reign) {
				return
			}
			delete(t.firing, key)
			if err != nil {
				k.after(retryPause, func() { t.again(k, p) })
			} else if len(t.firing) == maxFiring/2 || len(t.firing) == 0 {
				t.arm(k)
			}
		}
		k.push(r, step{fail: func(err error) { k.spawn("timer "+key, func() { done(err) }) },
			do: func(c *change) { c.due(key, revision, kind, &d, done) }})
	}
	return found[len(found)-1].Key, true
}

// due is the step that executes a due record when its time has come. revision is the revision of the record. due calls
// done with the result.
func (c *change) due(key string, revision uint64, kind byte, d *dueRecord, done func(error)) {
	stale := !c.i.exists() || d.execution != c.i.head.creation
	switch {
	case !stale && kind == dueRetention && terminal(c.head.status):
		if c.postpone() {
			return
		}
		if err := c.purge(); err != nil {
			done(err)
			return
		}
		c.add(remove(key))
		c.replies = append(c.replies, done)
		return
	case !stale && kind == dueStart && c.head.startAt != 0, !stale && kind == dueTimer &&
		d.generation == c.head.generation && !terminal(c.head.status):
		e, err := decodeEvent(d.event)
		if err != nil {
			c.k.failed(err)
			done(err)
			return
		}
		if kind == dueStart {
			c.head.startAt, c.needed = 0, true
		} else {
			e.Timestamp = timestamppb.New(c.time())
		}
		c.arrive(&arrival{event: e, raw: encodeEvent(e), ops: ops(remove(key)), reply: done})
		return
	}
	// The instance of the timer does not exist any more, or has continued as new.
	op := command.Op{Kind: command.OpDelete, Cond: command.CondRevision, Revision: revision, Store: kv.WorkflowStore,
		Key: key}
	if c.exists() && !terminal(c.head.status) { // a separate entry would be refused if the instance is busy
		c.add(op)
		c.replies = append(c.replies, done)
		return
	}
	c.verified(ops(op), done)
}

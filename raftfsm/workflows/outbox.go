package workflows

import (
	"context"
	"time"

	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Bounds of an outbox.
const (
	maxMessages = 4096     // messages in memory; further messages wait in their records
	maxOutbox   = 64 << 20 // bytes of the messages in memory
	maxSenders  = 64       // messages that are sent at the same time
	flushPause  = 20 * time.Millisecond
)

// message is a message for another instance.
type message struct {
	from Ref
	key  string // key of the record of the message
	outRecord
}

// outbox sends messages to other instances. The messages for one instance are sent in their order. Keeper.mu guards the
// outbox.
//
// The outbox repeats a message until its target has stored the message in the log. The outbox then removes the record
// of the message. So a target may get a message twice, and must ignore the second copy. These rules make this possible:
//
//   - The head of an instance has the newest idempotency keys.
//   - A parent accepts only one result of each child.
//   - A child is created only once.
type outbox struct {
	targets map[Ref][]*message // messages in their order; the first message of each list is on its way
	known   map[string]int     // sizes of the events in bytes, by the keys of the messages in targets and sent
	bytes   int                // sum of known
	order   []Ref              // targets that wait for a sender
	senders int                // goroutines that send
	sent    []string           // keys of messages whose records can be removed
	flush   func() bool        // stops the timer of clean; nil = no removal is planned or under way
	more    map[place]bool     // buckets whose records have further messages
	doubts  map[Ref]bool       // instances whose further messages wait in their records, see doubt
}

func (o *outbox) drop() {
	if o.flush != nil {
		o.flush()
	}
	*o = outbox{}
}

// doubt makes further messages of an instance wait in their records, because the outcome of an entry with earlier
// messages is unknown. Keeper.recheck ends the wait, and reads all messages in their order. The caller holds k.mu.
func (o *outbox) doubt(r Ref) {
	if o.doubts == nil {
		o.doubts = map[Ref]bool{}
	}
	o.doubts[r] = true
}

// load reads the messages of a bucket, as far as they fit into memory. The caller holds k.mu.
func (o *outbox) load(k *Keeper, p place) error {
	for after, more := "", true; more; {
		found, again, err := k.machine.Records(kv.WorkflowStore, p.table(tableOutbox), after, page, pageBytes, 0)
		if err != nil {
			return err
		}
		for n := range found {
			r, _, _, ok := instanceOf(found[n].Key)
			m, readable := readOut(found[n].Value)
			if after = found[n].Key; !ok || !readable {
				k.failed(errRecord("a message", r))
				continue
			}
			if o.doubts[r] {
				continue
			}
			o.add(k, &message{from: r, key: after, outRecord: m})
			if o.more[p] {
				return nil
			}
		}
		more = again
	}
	return nil
}

// add queues a message whose record is in the log. If memory is full, the message waits in its record. The caller
// holds k.mu.
func (o *outbox) add(k *Keeper, m *message) {
	if o.targets == nil {
		o.targets, o.known, o.more = map[Ref][]*message{}, map[string]int{}, map[place]bool{}
	}
	if _, ok := o.known[m.key]; ok || o.doubts[m.from] {
		return
	}
	if p := m.from.place(); o.more[p] || len(o.known) >= maxMessages || o.bytes >= maxOutbox {
		o.more[p] = true
		return
	}
	o.known[m.key] = len(m.event)
	o.bytes += len(m.event)
	list := append(o.targets[m.to], m)
	if o.targets[m.to] = list; len(list) == 1 {
		o.order = append(o.order, m.to)
	}
	o.start(k)
}

// start starts senders for targets that wait. The caller holds k.mu.
func (o *outbox) start(k *Keeper) {
	for len(o.order) > 0 && o.senders < maxSenders {
		to := o.order[0]
		o.order = o.order[1:]
		o.senders++
		reign := k.reign
		k.spawn("send "+to.ID, func() { o.send(k, reign, to) })
	}
}

// send sends the messages for an instance, one after another. It holds k.mu from the removal of a sent message until it
// has looked for the next one, so an instance never has two senders.
func (o *outbox) send(k *Keeper, reign uint64, to Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for k.reigns(reign) {
		list := o.targets[to]
		if len(list) == 0 {
			delete(o.targets, to)
			o.senders--
			o.start(k)
			return
		}
		k.mu.Unlock()
		err := k.send(list[0])
		k.mu.Lock()
		switch {
		case !k.reigns(reign):
			return
		case err != nil: // another target gets the sender until the next attempt
			o.senders--
			o.start(k)
			k.after(retryPause, func() {
				o.order = append(o.order, to)
				o.start(k)
			})
			return
		}
		o.targets[to] = o.targets[to][1:]
		o.delivered(k, list[0])
	}
}

// send sends one message to its target. If the target refuses to create a child, send delivers a failure to the
// parent instead.
func (k *Keeper) send(m *message) error {
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	err := k.route(ctx, &m.outRecord)
	if err == nil || !refusal(err) {
		return err
	}
	e, decodeErr := decodeEvent(m.event)
	if decodeErr != nil {
		return decodeErr
	}
	k.opts.Logger.Warn("a message of a workflow is refused", "app", m.from.App, "instance", m.from.ID,
		"target", m.to.ID, "error", err)
	k.mu.Lock()
	now := time.UnixMilli(int64(k.group.Now())).UTC() //nolint:gosec // bounded
	k.mu.Unlock()
	back, ok := turn.Refused(m.to.App, m.outRecord.key, e.GetExecutionStarted(), "AlreadyExists", err.Error(), now)
	if !ok {
		return nil // no parent waits for a result
	}
	return k.Deliver(ctx, &outRecord{to: m.from, execution: back.Execution, key: back.Key,
		event: encodeEvent(back.Event)})
}

// refusal reports whether err means that the target has refused a message, so that it would refuse the message again.
func refusal(err error) bool {
	return fault.Is(err, fault.Conflict) || fault.Is(err, fault.Invalid) || fault.Is(err, fault.TooLarge)
}

// route passes a message to the group of its target.
func (k *Keeper) route(ctx context.Context, r *outRecord) error {
	if err := r.to.check(opChange); err != nil {
		return err
	}
	if k.opts.Sender == nil {
		return k.Deliver(ctx, r)
	}
	gid, err := k.opts.Sender.Locate(ctx, r.to)
	if err != nil {
		return err
	}
	if gid == k.opts.Group {
		return k.Deliver(ctx, r)
	}
	_, _, err = k.opts.Sender.Ask(ctx, gid, Method, (&call{what: callDeliver, data: r.encode()}).append())
	return err
}

// delivered makes the Keeper remove the record of a message after flushPause, because the target has stored the
// message. The caller holds k.mu.
func (o *outbox) delivered(k *Keeper, m *message) {
	o.sent = append(o.sent, m.key)
	if o.flush == nil {
		o.flush = k.after(flushPause, func() { o.clean(k) })
	}
}

// clean removes the records of sent messages, maxBatch at a time. The caller holds k.mu.
func (o *outbox) clean(k *Keeper) {
	part := o.sent[:min(len(o.sent), maxBatch)]
	g, reign := k.group, k.reign
	k.spawn("clean", func() {
		list := make([]command.Op, len(part))
		for n, key := range part {
			list[n] = remove(key)
		}
		_, err := k.commit(g, list)
		if err != nil {
			k.pause(retryPause)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.reigns(reign) {
			return
		}
		if o.flush = nil; err == nil {
			o.sent = o.sent[len(part):]
			for _, key := range part {
				o.bytes -= o.known[key]
				delete(o.known, key)
			}
		}
		if len(o.sent) > 0 {
			o.flush = k.after(0, func() { o.clean(k) })
		}
		if len(o.more) > 0 && len(o.known) <= maxMessages/2 && o.bytes <= maxOutbox/2 {
			o.reload(k)
		}
	})
}

// reload reads messages that did not fit into memory. The caller holds k.mu.
func (o *outbox) reload(k *Keeper) {
	places := o.more
	o.more = map[place]bool{}
	for p := range places {
		if err := o.load(k, p); err != nil {
			k.unread(err)
			return
		}
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

package inmemory

import (
	"container/heap"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// member is one subscription. Its fields are guarded by Broker.mu.
type member struct {
	group   *group
	held    map[string]*item // items that the member holds, by ref
	lanes   int              // number of lanes of which the member holds items
	allowed int              // bound of lanes
	left    bool             // the member has left the group
}

// Receive implements pubsub.Subscription.
func (m *member) Receive(ctx context.Context, limit int) ([]pubsub.Delivery, error) {
	for {
		// Get the channel before look: a change after look closes the channel.
		changed := m.group.changed.Wait()
		out, wait, err := m.look(max(limit, 1))
		if len(out) > 0 || err != nil {
			return out, err
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-changed:
		case <-due:
		case <-ctx.Done():
			return nil, &fault.Error{Code: fault.Timeout, Op: "inmemory.Receive", Msg: "there was no message",
				Err: ctx.Err()}
		}
	}
}

// look takes up to limit messages that can be delivered now. It also returns the time until the next waiting message is
// due, or 0 if no message is waiting.
func (m *member) look(limit int) ([]pubsub.Delivery, time.Duration, error) {
	g := m.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	if m.left {
		return nil, 0, closedError("inmemory.Receive")
	}
	now := time.Now()
	wait := g.wake(now)
	var out []pubsub.Delivery
	for len(out) < limit && len(g.ready.list) > 0 && m.lanes < m.allowed {
		l := heap.Pop(&g.ready).(*lane)
		g.dropExpired(l, now)
		if len(l.items) == 0 || !l.items[0].notBefore.IsZero() {
			g.schedule(l)
			continue
		}
		out = m.hold(l, limit, out)
	}
	return out, wait, nil
}

// hold assigns the first items of a lane to the member. It appends their deliveries to out and returns the result. It
// stops when out has limit deliveries, or at an item that must wait.
func (m *member) hold(l *lane, limit int, out []pubsub.Delivery) []pubsub.Delivery {
	m.lanes++
	for _, i := range l.items {
		if len(out) == limit || !i.notBefore.IsZero() {
			break
		}
		i.holder, i.ref = m, strconv.FormatUint(i.seq, 10)
		i.attempts++
		m.held[i.ref] = i
		l.held++
		out = append(out, pubsub.Delivery{Message: i.Message, Topic: i.topic.name, Sequence: l.sequence,
			Attempt: i.attempts, Ref: i.ref})
	}
	return out
}

// Settle implements pubsub.Subscription.
func (m *member) Settle(_ context.Context, d *pubsub.Delivery, o pubsub.Outcome) error {
	m.group.broker.mu.Lock()
	defer m.group.broker.mu.Unlock()
	i, err := m.find(d)
	if err != nil {
		return err
	}
	m.settle(i, o)
	return nil
}

// DeadLetter implements pubsub.Subscription.
func (m *member) DeadLetter(_ context.Context, d *pubsub.Delivery, name string) error {
	b := m.group.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	i, err := m.find(d)
	if err != nil {
		return err
	}
	b.spare(i.entry) // makeRoom may remove the original to make room for the dead letter
	moved := i.Message
	moved.TTL, moved.DeliverAt = 0, time.Time{}
	err = b.publish(name, []pubsub.Message{moved})
	b.need(i.entry)
	if err != nil {
		return err
	}
	m.settle(i, pubsub.Acknowledged)
	return nil
}

func (m *member) find(d *pubsub.Delivery) (*item, error) {
	if m.left {
		return nil, closedError("inmemory.Settle")
	}
	i, ok := m.held[d.Ref]
	if !ok {
		return nil, fault.New(fault.NotFound, "inmemory.Settle",
			fmt.Sprintf("the delivery %s of topic %s was settled already", d.Ref, d.Topic))
	}
	return i, nil
}

func (m *member) settle(i *item, o pubsub.Outcome) {
	delete(m.held, i.ref)
	i.holder = nil
	l := i.lane
	switch o {
	case pubsub.Acknowledged:
		m.group.settled(i)
	case pubsub.Failed:
		i.notBefore = time.Now().Add(m.group.broker.pause(i.attempts))
		m.group.returned(l)
	default:
		i.attempts--
		m.group.returned(l)
	}
	if l.held == 0 {
		m.lanes--
		m.group.changed.Fire()
	}
}

// pause returns the wait after the given number of failed attempts.
func (b *Broker) pause(attempts int) time.Duration {
	wait := b.interval
	for ; attempts > 1 && wait < maxRedeliverInterval; attempts-- {
		wait *= 2
	}
	return min(wait, max(maxRedeliverInterval, b.interval))
}

// Close implements pubsub.Subscription.
func (m *member) Close() {
	m.group.broker.mu.Lock()
	defer m.group.broker.mu.Unlock()
	m.leave()
}

// leave removes the member from its group, and releases the items that it holds.
func (m *member) leave() {
	if m.left {
		return
	}
	m.left = true
	delete(m.group.members, m)
	for _, i := range m.held {
		m.settle(i, pubsub.Released)
	}
	m.group.changed.Fire()
}

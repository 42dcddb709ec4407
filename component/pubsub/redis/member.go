package redis

import (
	"context"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// member is one subscription. Its fields are guarded by group.mu.
type member struct {
	group   *group
	allowed int              // bound of the deliveries that are not settled
	held    map[string]*item // deliveries that are not settled, by ref
	left    bool             // the member has left the group
}

var _ pubsub.Subscription = (*member)(nil)

// Receive implements pubsub.Subscription. It returns permanent errors of Redis, but keeps waiting during temporary
// errors (see passes).
func (m *member) Receive(ctx context.Context, limit int) ([]pubsub.Delivery, error) {
	const op = "redis.Receive"
	for {
		// Get the channel before look: a change after look closes the channel.
		changed := m.group.changed.Wait()
		out, err := m.look(op, max(limit, 1))
		if len(out) > 0 || err != nil {
			return out, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, &fault.Error{Code: fault.Timeout, Op: op, Msg: "there was no message", Err: ctx.Err()}
		}
	}
}

func (m *member) look(op string, limit int) (out []pubsub.Delivery, err error) {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.left {
		return nil, closedError(op)
	}
	now := time.Now()
	for len(out) < limit && len(m.held) < m.allowed {
		i := g.next(now)
		if i == nil {
			break
		}
		out = append(out, g.hold(i, m))
	}
	if len(out) == 0 {
		return nil, g.failure
	}
	g.changed.Fire() // the reader may fill the queue again
	return out, nil
}

// take removes a delivery from those that the member holds, so that no other call can settle it too. It returns
// fault.NotFound if the delivery was already settled.
func (m *member) take(op string, d *pubsub.Delivery) (*item, error) {
	g := m.group
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.left {
		return nil, closedError(op)
	}
	i := m.held[d.Ref]
	if i == nil {
		return nil, fault.New(fault.NotFound, op, "the delivery "+d.Ref+" of topic "+d.Topic+" was settled already")
	}
	delete(m.held, d.Ref)
	i.holder, i.settling = nil, true
	g.changed.Fire() // the member has room for another delivery
	return i, nil
}

// Settle implements pubsub.Subscription. A failed message stays pending in Redis.
func (m *member) Settle(ctx context.Context, d *pubsub.Delivery, o pubsub.Outcome) error {
	const op = "redis.Settle"
	i, err := m.take(op, d)
	if err != nil {
		return err
	}
	g := m.group
	switch o {
	case pubsub.Acknowledged:
		return m.acknowledge(ctx, op, i)
	case pubsub.Failed:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.drop(i)
	default:
		g.mu.Lock()
		defer g.mu.Unlock()
		g.enqueue(i)
	}
	return nil
}

// acknowledge sends an acknowledgement to Redis. If this fails, it returns the error, and the group repeats the
// acknowledgement in the background until it succeeds or the group ends. If maxUnacked acknowledgements already wait
// for a repetition, this one is not repeated.
func (m *member) acknowledge(ctx context.Context, op string, i *item) error {
	g := m.group
	err := g.acknowledge(ctx, i.id)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil && len(g.unacked) < maxUnacked {
		g.unacked[i.id] = true
	}
	g.drop(i)
	return g.broker.explain(op, g.key.topic, err)
}

// DeadLetter implements pubsub.Subscription. It publishes the message to the given topic, and then acknowledges the
// delivery. If the node crashes between these two steps, the message is delivered again and may reach the given topic
// twice.
func (m *member) DeadLetter(ctx context.Context, d *pubsub.Delivery, topic string) error {
	const op = "redis.DeadLetter"
	i, err := m.take(op, d)
	if err != nil {
		return err
	}
	g := m.group
	_, err = g.broker.Publish(ctx, pubsub.PublishRequest{Topic: topic, Messages: []pubsub.Message{i.message}})
	if err == nil {
		if err = m.acknowledge(ctx, op, i); err != nil && passes(err) {
			err = nil // the dead letter is stored, and the acknowledgement is repeated
		}
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.left {
		g.enqueue(i)
		return err
	}
	i.settling, i.holder = false, m
	m.held[i.ref] = i
	return err
}

// Close implements pubsub.Subscription.
func (m *member) Close() { m.group.broker.leave(m) }

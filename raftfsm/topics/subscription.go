package topics

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// subscription implements pubsub.Subscription.
type subscription struct {
	b            *Broker
	id           uint64
	topic, group string
	concurrency  int
	unsettled    int // see pubsub.SubscribeRequest
	newest       bool
	groupTTL     time.Duration
	links        []*link

	mu      sync.Mutex
	window  int
	closed  bool
	buffer  []*held          // messages that Receive has not returned yet
	held    map[string]*held // by Ref: messages without an outcome, and acknowledged ones that may be handed out again
	out     int              // number of messages that Receive has returned and that have no outcome
	changed chan struct{}    // closed when Receive may have something to return
}

// held is a message that this node has.
type held struct {
	delivery pubsub.Delivery
	link     *link
	offset   uint64
	given    bool   // Receive has returned the message
	token    string // the token that Receive has returned
	refused  bool   // a transaction with this token was refused; see refuse
	settling bool   // the message is being settled, or is settled
	acked    bool   // acknowledged or moved to the dead letters; the leader may not know it yet
	lease    uint64 // see Handed
	leases   uint64 // newest lease when the leader noted the outcome; 0 = the leader has not answered yet
}

// refOf returns the reference of a delivery.
func refOf(gid uint32, offset uint64) string { return fmt.Sprintf("%d-%d", gid, offset) }

// notify wakes the callers of Receive. The caller holds s.mu.
func (s *subscription) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// arrived processes a message that the leader has handed out. If this node already has the message, arrived updates the
// lease and the attempt of the message, so that the leader accepts the outcome. A node gets a message again after a
// change of the leader: the new leader may have counted the earlier delivery as a failed attempt.
func (s *subscription) arrived(l *link, h *Handed) {
	ref := refOf(l.gid, h.Offset)
	m, ok := decodeMessage(h.Value)
	attempt := int(min(h.Attempt, math.MaxInt32)) //nolint:gosec // bounded
	at := token{topic: Topic{Group: l.gid, Name: s.topic}, offset: h.Offset, attempt: h.Attempt,
		proof: proofOf(h.Value)}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch have := s.held[ref]; {
	case s.closed:
		return
	case have == nil, have.leases != 0 && h.Lease > have.leases: // a new message, or a replay
	case have.acked: // handed out before the leader knew of the acknowledgement
		l.send(outgoing{settle: s.outcome(have, pubsub.Acknowledged)})
		return
	default:
		if have.lease = h.Lease; have.delivery.Attempt < attempt {
			have.delivery.Attempt, have.delivery.Token = attempt, at.String()
		}
		return
	}
	one := &held{link: l, offset: h.Offset, lease: h.Lease, delivery: pubsub.Delivery{Message: m, Topic: s.topic,
		Sequence: m.Key, Attempt: attempt, Ref: ref, Token: at.String()}}
	if h.Serial {
		one.delivery.Sequence = single
	}
	if !ok {
		s.b.opts.Logger.Error("a message cannot be decoded", "topic", s.topic, "offset", h.Offset, "hint",
			"run the newest version on every node")
		s.settle(one, pubsub.Failed)
		return
	}
	s.held[ref] = one
	s.buffer = append(s.buffer, one)
	s.notify()
}

// Receive implements pubsub.Subscription.
func (s *subscription) Receive(ctx context.Context, limit int) ([]pubsub.Delivery, error) {
	if limit < 1 {
		return nil, fault.New(fault.Invalid, opReceive, "the limit must be at least 1")
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, fault.Wrap(err, opReceive, "no message came in time")
		}
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, fault.New(fault.Unavailable, opReceive, "the subscription is closed")
		}
		s.widen(limit)
		if n := s.allowed(limit); n > 0 {
			list := make([]pubsub.Delivery, n)
			for i, h := range s.buffer[:n] {
				h.given, h.token, list[i] = true, h.delivery.Token, h.delivery
			}
			s.buffer = append(s.buffer[:0:0], s.buffer[n:]...)
			s.out += n
			s.mu.Unlock()
			return list, nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// allowed returns how many messages Receive may return now if it is called with the given limit. The caller holds s.mu.
func (s *subscription) allowed(limit int) int {
	return min(limit, len(s.buffer), max(s.concurrency, s.unsettled, limit)-s.out)
}

// widen enlarges the window to twice the limit of a call of Receive, up to maxWindow. The caller holds s.mu.
func (s *subscription) widen(limit int) {
	if want := min(2*limit, maxWindow); want > s.window {
		s.window = want
		s.b.running.Go(func() {
			for _, l := range s.links {
				_, _ = l.join(s.b.pulling, s, false) // after a failure, the next join sends the window
			}
		})
	}
}

// Settle implements pubsub.Subscription.
func (s *subscription) Settle(_ context.Context, d *pubsub.Delivery, o pubsub.Outcome) error {
	if o < pubsub.Acknowledged || o > pubsub.Released {
		return fault.New(fault.Invalid, opSettle, "unknown outcome")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h, err := s.take(d)
	if err != nil {
		return err
	}
	if o == pubsub.Acknowledged && h.refused {
		o = pubsub.Released
	}
	s.settle(h, o)
	s.out--
	s.notify()
	return nil
}

// refuse records that a transaction with the given token was refused, because the message is settled or was handed out
// again. The application still answers the delivery with a success (see docs/pubsub.md). That answer must not settle
// the message: if the message is delivered again, a new transaction stores the effect.
func (s *subscription) refuse(ref, token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[ref]; h != nil && h.token == token {
		h.refused = true
	}
}

// take returns the message of the delivery d. It returns fault.NotFound if Receive has not returned the delivery, or if
// the delivery is settled. The caller holds s.mu.
func (s *subscription) take(d *pubsub.Delivery) (*held, error) {
	h := s.held[d.Ref]
	if h == nil || !h.given || h.settling {
		return nil, fault.New(fault.NotFound, opSettle, "this subscription has no delivery with this reference that "+
			"is not settled")
	}
	return h, nil
}

// settle queues the outcome of a delivery, to be sent to the leader. The caller holds s.mu.
func (s *subscription) settle(h *held, o pubsub.Outcome) {
	out := outgoing{settle: s.outcome(h, o)}
	if o == pubsub.Acknowledged {
		// After a change of the leader, the message can come again until the new leader knows the outcome.
		h.settling, h.acked = true, true
		out.sent = func(leases uint64) { s.forget(h, leases) }
	} else {
		delete(s.held, h.delivery.Ref)
	}
	h.link.send(out)
}

// outcome returns the Settle value that reports the outcome o of a delivery to the leader. The caller holds s.mu.
func (s *subscription) outcome(h *held, o pubsub.Outcome) Settle {
	return Settle{Topic: Topic{Group: h.link.gid, Store: s.b.store, Name: s.topic}, Group: s.group, Offset: h.offset,
		Lease: h.lease, Attempt: uint64(max(h.delivery.Attempt, 1)), Outcome: o} //nolint:gosec // positive
}

// forget drops the payload of a delivery whose outcome was sent. The link drops the delivery itself when no pull
// in flight can return it again.
func (s *subscription) forget(h *held, leases uint64) {
	s.mu.Lock()
	h.leases, h.delivery.Message = leases, pubsub.Message{}
	s.mu.Unlock()
	h.link.forget(s, h)
}

func (s *subscription) drop(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[h.delivery.Ref] == h {
		delete(s.held, h.delivery.Ref)
	}
}

// DeadLetter implements pubsub.Subscription.
func (s *subscription) DeadLetter(ctx context.Context, d *pubsub.Delivery, topic string) error {
	if err := checkNames(opSettle, topic, ""); err != nil {
		return err
	}
	s.mu.Lock()
	h, err := s.take(d)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	h.settling = true
	st := s.outcome(h, pubsub.Acknowledged)
	s.mu.Unlock()
	st.DeadLetter = topic
	_, a, err := h.link.ask(ctx, &call{what: callSettle, settles: []Settle{st}})
	s.mu.Lock()
	if err != nil {
		h.settling = false
		s.mu.Unlock()
		return err
	}
	h.acked = true
	s.out--
	s.notify()
	s.mu.Unlock()
	s.forget(h, a.Number)
	return nil
}

// Close implements pubsub.Subscription.
func (s *subscription) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.buffer = nil
	clear(s.held)
	s.notify()
	s.mu.Unlock()
	for _, l := range s.links {
		l.remove(s)
	}
}

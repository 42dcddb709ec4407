package topics

import (
	"context"
	"fmt"
	"math"
	"sync"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
)

// subscription implements pubsub.Subscription.
type subscription struct {
	b            *Broker
	id           uint64
	topic, group string
	concurrency  int
	newest       bool
	links        []*link

	mu      sync.Mutex
	window  int
	closed  bool
	buffer  []*held          // that Receive has not returned
	held    map[string]*held // by Ref; not settled, or settled and not sent yet
	out     int              // that Receive has returned and that are not settled
	changed chan struct{}    // closed when Receive may have something to return
}

// held is a message that this node has.
type held struct {
	delivery pubsub.Delivery
	link     *link
	offset   uint64
	given    bool // to a caller of Receive
	settling bool
}

// notify wakes the callers of Receive. The caller holds s.mu.
func (s *subscription) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// arrived processes a message that the leader has handed out. A message that this node has already comes again after
// a change of the leader.
func (s *subscription) arrived(l *link, h *Handed) {
	ref := fmt.Sprintf("%d-%d", l.gid, h.Offset)
	m, ok := decodeMessage(h.Value)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.held[ref] != nil {
		return
	}
	one := &held{link: l, offset: h.Offset, delivery: pubsub.Delivery{Message: m, Topic: s.topic, Sequence: m.Key,
		Attempt: int(min(h.Attempt, math.MaxInt32)), Ref: ref}} //nolint:gosec // bounded
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
		if n := min(limit, len(s.buffer), max(s.concurrency, limit)-s.out); n > 0 {
			list := make([]pubsub.Delivery, n)
			for i, h := range s.buffer[:n] {
				h.given, list[i] = true, h.delivery
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

// widen makes the window fit the limit of a Receive. The caller holds s.mu.
func (s *subscription) widen(limit int) {
	if want := min(2*limit, maxWindow); want > s.window {
		s.window = want
		s.b.running.Go(func() {
			for _, l := range s.links {
				_ = l.join(s.b.pulling, s) // after a failure, the next join has the window
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
	s.settle(h, o)
	s.out--
	s.notify()
	return nil
}

// take returns a delivery that can be settled. The caller holds s.mu.
func (s *subscription) take(d *pubsub.Delivery) (*held, error) {
	h := s.held[d.Ref]
	if h == nil || !h.given || h.settling {
		return nil, fault.New(fault.NotFound, opSettle, "this subscription has no delivery with this reference that "+
			"is not settled")
	}
	return h, nil
}

// settle sends the outcome of a delivery. The caller holds s.mu.
func (s *subscription) settle(h *held, o pubsub.Outcome) {
	out := outgoing{settle: s.outcome(h, o)}
	if o == pubsub.Acknowledged {
		// Until the leader knows it, the message can come again after a change of the leader.
		h.settling = true
		out.sent = func() { s.forget(h) }
	} else {
		delete(s.held, h.delivery.Ref)
	}
	h.link.send(out)
}

func (s *subscription) outcome(h *held, o pubsub.Outcome) Settle {
	return Settle{Topic: Topic{Group: h.link.gid, Store: s.b.store, Name: s.topic}, Group: s.group, Offset: h.offset,
		Attempt: uint64(max(h.delivery.Attempt, 1)), Outcome: o} //nolint:gosec // positive
}

func (s *subscription) forget(h *held) {
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
	s.mu.Unlock()
	st := s.outcome(h, pubsub.Acknowledged)
	st.DeadLetter = topic
	_, _, err = h.link.ask(ctx, &call{what: callSettle, settles: []Settle{st}})
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.settling = false; err != nil {
		return err
	}
	delete(s.held, d.Ref)
	s.out--
	s.notify()
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

package topics

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
)

// deliveries receives messages until no more come, and settles each of them at once. fails says which attempts fail.
// deliveries returns the offsets of the handled messages in the order of their handling.
func (l *lab) deliveries(session string, number *uint64, fails func(h *Handed) bool) (handled []uint64) {
	l.T.Helper()
	for {
		a, known := l.next(session, *number)
		if !known {
			l.T.Fatal("the session has ended")
		}
		if *number = a.Number; len(a.List) == 0 {
			return handled
		}
		var outcomes []Settle
		for i := range a.List {
			h := &a.List[i]
			st := Settle{Topic: orders, Group: "g", Offset: h.Offset, Attempt: h.Attempt, Lease: h.Lease}
			if fails(h) {
				st.Outcome = pubsub.Failed
			} else {
				handled = append(handled, h.Offset)
			}
			outcomes = append(outcomes, st)
		}
		l.run(func(ctx context.Context) error {
			_, err := l.Settle(ctx, session, outcomes)
			return err
		})
	}
}

// tailsOf returns how many items group g has in memory, and how many messages it has in tails.
func (l *lab) tailsOf() (items, tailed int) {
	l.Keeper.mu.Lock()
	defer l.Keeper.mu.Unlock()
	c := l.Keeper.topics[orders].find("g")
	if c == nil {
		return 0, 0
	}
	return len(c.items), c.tailed
}

// A key whose first message fails has more messages than a group may have open. Other keys go on meanwhile. When
// the first message is handled, the messages behind it come in their order, also from another leader.
func TestKeeper_FailingKeyHoldsUpNoOther(t *testing.T) {
	for name, change := range map[string]bool{"one leader": false, "another leader": true} {
		t.Run(name, func(t *testing.T) {
			withLab(t, func(t *testing.T, l *lab) {
				l.subscribe("node", 1, orders, "g")
				const behind = 3 * maxOpen
				messages := slices.Repeat([]pubsub.Message{{Key: "bad"}}, 1+behind)
				bad := l.publishTo(orders, messages...)
				good := l.publishTo(orders, pubsub.Message{Key: "good"}, pubsub.Message{})
				number := uint64(0)
				fails := func(h *Handed) bool { return h.Offset == bad[0] && h.Attempt < 4 }
				handled := []uint64{}
				for !slices.Contains(handled, good[1]) {
					a, _ := l.next("node", number)
					if number = a.Number; len(a.List) == 0 {
						t.Fatal("the other keys wait")
					}
					for i := range a.List {
						h := &a.List[i]
						st := Settle{Topic: orders, Group: "g", Offset: h.Offset, Attempt: h.Attempt, Lease: h.Lease}
						if h.Offset == bad[0] {
							st.Outcome = pubsub.Failed
						} else {
							handled = append(handled, h.Offset)
						}
						l.run(func(ctx context.Context) error {
							_, err := l.Settle(ctx, "node", []Settle{st})
							return err
						})
					}
				}
				if !slices.Equal(handled, good) {
					t.Errorf("handled %v before the failing message, want %v", handled, good)
				}
				if items, tailed := l.tailsOf(); items > maxOpen || tailed < behind-maxOpen {
					t.Errorf("%d messages in memory and %d in tails", items, tailed)
				}
				if change {
					l.Depose(l.Members[0])
					l.Elect(l.Members[0])
					l.subscribe("node", 1, orders, "g")
					number = 0
				}
				later := l.publishTo(orders, pubsub.Message{Key: "bad"})
				handled = l.deliveries("node", &number, fails)
				if !slices.Equal(handled, slices.Concat(bad, later)) {
					t.Errorf("handled %d messages in another order, want %d", len(handled), len(bad)+1)
				}
				l.Pass(uint64(time.Second.Milliseconds()))
				l.answer()
				if items, tailed := l.tailsOf(); items+tailed > 0 {
					t.Errorf("%d messages in memory and %d in tails at the end", items, tailed)
				}
			})
		})
	}
}

// While messages are in tails, a subscription joins again with concurrency 1. The messages of all tails then come in
// one queue, in the order of their offsets.
func TestKeeper_ConcurrencyChangesTails(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.server(l.Members[0]).keeper.opts.open = 4
		join := func(id uint64, concurrency int) {
			l.run(func(ctx context.Context) error {
				_, err := l.Join(ctx, "node", true, &Join{ID: id, Topic: orders, Group: "g", Concurrency: concurrency,
					Window: 4, RetryBackoff: time.Second})
				return err
			})
		}
		join(1, 10)
		var sent []uint64
		for n := range 20 {
			sent = append(sent, l.publishTo(orders, pubsub.Message{Key: []string{"a", "b"}[n%2]})...)
		}
		number := uint64(0)
		a, _ := l.next("node", number)
		number = a.Number
		for i := range a.List {
			l.run(func(ctx context.Context) error {
				_, err := l.Settle(ctx, "node", []Settle{{Topic: orders, Group: "g", Offset: a.List[i].Offset,
					Attempt: 1, Lease: a.List[i].Lease, Outcome: pubsub.Failed}})
				return err
			})
		}
		if _, tailed := l.tailsOf(); tailed == 0 {
			t.Fatal("no message is in a tail")
		}
		join(1, 1)
		handled := l.deliveries("node", &number, func(*Handed) bool { return false })
		if !slices.Equal(handled, sent) {
			t.Errorf("handled %v, want %v", handled, sent)
		}
	})
}

// A node acknowledges a message that is in a tail. This happens when an earlier leader has delivered the message.
func TestKeeper_SettlesMessageInTail(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.server(l.Members[0]).keeper.opts.open = 4
		l.subscribe("node", 1, orders, "g")
		sent := l.publishTo(orders, slices.Repeat([]pubsub.Message{{Key: "k"}}, 12)...)
		number := uint64(0)
		a, _ := l.next("node", number)
		number = a.Number
		settle := func(offset, attempt uint64, o pubsub.Outcome) {
			l.run(func(ctx context.Context) error {
				_, err := l.Settle(ctx, "node", []Settle{{Topic: orders, Group: "g", Offset: offset, Attempt: attempt,
					Outcome: o}})
				return err
			})
		}
		settle(a.List[0].Offset, 1, pubsub.Failed)
		settle(sent[7], 1, pubsub.Acknowledged)
		handled := l.deliveries("node", &number, func(*Handed) bool { return false })
		if want := slices.Delete(slices.Clone(sent), 7, 8); !slices.Equal(handled, want) {
			t.Errorf("handled %v, want %v", handled, want)
		}
	})
}

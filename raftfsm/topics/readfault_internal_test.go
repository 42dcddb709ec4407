package topics

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

// damage stores a parked record of group g that cannot be decoded, or removes it.
func (l *lab) damage(kind command.OpKind) {
	op := command.Op{Kind: kind, Store: kv.TopicStore, Key: orders.parkedKey("g", 1<<40)}
	if kind == command.OpSet {
		op.Value = []byte("?")
	}
	l.Propose("damage", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{op}})
}

// The outcome of a flush is not known, and the leader cannot read the group again. The messages that the node already
// has are not handed out a second time.
func TestKeeper_FailedReloadKeepsLeases(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		sent := l.publishTo(orders, pubsub.Message{}, pubsub.Message{}, pubsub.Message{})
		a, _ := l.next("node", 0)
		if len(a.List) != 3 {
			t.Fatalf("%d messages", len(a.List))
		}
		l.settles("node", orders, "g", sent[0])
		l.damage(command.OpSet)
		l.Answer(l.Calls()[0], grouptest.Reply{Err: fault.New(fault.Indeterminate, "test", "no answer")})
		l.answer()
		l.Pass(uint64(retryPause.Milliseconds()))
		l.answer() // the leader tries to read the group, and fails
		last := l.publishTo(orders, pubsub.Message{})
		if a, _ = l.next("node", a.Number); len(a.List) != 1 || a.List[0].Offset != last[0] {
			t.Errorf("handed out: %v, want %v", a.List, last)
		}
		l.damage(command.OpDelete)
		l.Pass(uint64(retryPause.Milliseconds()))
		l.answer()
		if a, _ = l.next("node", a.Number); len(a.List) != 0 {
			t.Errorf("handed out after the group was read: %v", a.List)
		}
	})
}

// A subscription joins with another concurrency, but the leader cannot read the tails. The next join changes the
// concurrency.
func TestKeeper_ConcurrencyChangesAfterFailedRead(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.server(l.Members[0]).keeper.opts.open = 4
		join := func(concurrency int) (err error) {
			l.run(func(ctx context.Context) error {
				_, err = l.Join(ctx, "node", true, &Join{ID: 1, Topic: orders, Group: "g", Concurrency: concurrency,
					Window: 4, RetryBackoff: time.Second})
				return nil
			})
			return err
		}
		if err := join(10); err != nil {
			t.Fatal(err)
		}
		var sent []uint64
		for n := range 20 {
			sent = append(sent, l.publishTo(orders, pubsub.Message{Key: []string{"a", "b"}[n%2]})...)
		}
		a, _ := l.next("node", 0)
		number := a.Number
		for i := range a.List {
			l.run(func(ctx context.Context) error {
				_, err := l.Settle(ctx, "node", []Settle{{Topic: orders, Group: "g", Offset: a.List[i].Offset,
					Attempt: 1, Lease: a.List[i].Lease, Outcome: pubsub.Failed}})
				return err
			})
		}
		items, tailed := l.tailsOf()
		if tailed == 0 {
			t.Fatal("no message is in a tail")
		}
		l.damage(command.OpSet)
		if err := join(1); !fault.Is(err, fault.Corrupt) {
			t.Fatalf("the join returns %v", err)
		}
		if i, n := l.tailsOf(); i != items || n != tailed {
			t.Errorf("%d items and %d in tails, want %d and %d", i, n, items, tailed)
		}
		l.damage(command.OpDelete)
		if err := join(1); err != nil {
			t.Fatal(err)
		}
		if handled := l.deliveries("node", &number, func(*Handed) bool { return false }); !slices.Equal(handled, sent) {
			t.Errorf("handled %v, want %v", handled, sent)
		}
	})
}

// A new leader cannot read its records at first. The leader reads them again after a pause, although no call comes
// and no record changes. So retention removes the message.
func TestKeeper_ReadsAgainAfterFailedRead(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.Propose("policy", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet,
			Store: kv.TopicStore, Key: orders.key(tablePolicy, ""),
			Value: (&Policy{Retention: time.Second, MaxBytes: DefaultMaxBytes}).encode()}}})
		l.publishTo(orders, pubsub.Message{})
		repair := l.Members[0].BreakReads()
		l.Elect(l.Members[0])
		l.Pass(uint64(retryPause.Milliseconds())) // the second read fails, too
		repair()
		for range 100 {
			l.Pass(1000)
			l.answer()
		}
		left, _, err := l.Tip.List(kv.TopicStore, orders.key(tableMessage, ""), "", 1, 0)
		testutil.Must(t, err)
		if len(left) > 0 {
			t.Error("retention has not ended the message")
		}
	})
}

// A leader cannot decode a message, for example of a newer format. The group stops before the message, and its session
// and other topics continue. The message does not count as settled, and is delivered when it can be decoded.
func TestKeeper_UndecodableMessageStopsOnlyItsGroup(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		l.subscribe("node", 2, others, "g")
		first := l.publishTo(orders, pubsub.Message{})[0]
		number := uint64(0)
		never := func(*Handed) bool { return false }
		if handled := l.deliveries("node", &number, never); !slices.Equal(handled, []uint64{first}) {
			t.Fatalf("handled %v", handled)
		}
		second := AppendOp(orders, &pubsub.Message{})
		value := second.Value
		second.Value = []byte("?")
		bad := l.Propose("damage", nil,
			&command.Request{Kind: command.KindWrite, Ops: []command.Op{second}}).Revisions[0]
		third := l.publishTo(orders, pubsub.Message{})[0]
		other := l.publishTo(others, pubsub.Message{})[0]
		a, known := l.next("node", number)
		if !known || len(a.List) != 1 || a.List[0].ID != 2 || a.List[0].Offset != other {
			t.Fatalf("the node gets %v, and its session is known: %v", a.List, known)
		}
		number = a.Number
		l.settles("node", others, "g", other)
		l.answer()
		l.Propose("repair", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet,
			Store: kv.TopicStore, Key: orders.messageKey(bad), Value: append(make([]byte, 8), value...)}}})
		l.Pass(uint64(retryPause.Milliseconds()))
		if handled := l.deliveries("node", &number, never); !slices.Equal(handled, []uint64{bad, third}) {
			t.Errorf("handled %v, want %d and %d", handled, bad, third)
		}
	})
}

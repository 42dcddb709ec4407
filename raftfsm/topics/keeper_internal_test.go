package topics

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/grouptest"
	"github.com/quorate/quorate/raftfsm/kv"
)

// lab is a Raft group with one server, which leads. The calls of its Keeper to the group wait until the test answers
// them.
type lab struct {
	*model
	*Keeper
}

func withLab(t *testing.T, f func(t *testing.T, l *lab)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &model{Group: grouptest.New(t, 1, 1)}
		m.Changed = func(s *grouptest.Member) { m.server(s).keeper.Update() }
		s := &server{Member: m.Members[0], model: m}
		m.servers = append(m.servers, s)
		s.open()
		m.Group.Settle()
		m.Elect(s.Member)
		defer func() {
			s.keeper.Close()
			m.Group.Settle()
			m.Close()
		}()
		f(t, &lab{m, s.keeper})
	})
}

// answer answers the waiting calls, until no call waits any more.
func (l *lab) answer() {
	l.Group.Settle()
	for calls := l.Calls(); len(calls) > 0; calls = l.Calls() {
		l.Release(calls[0], true)
	}
}

// run executes f, a call to the Keeper. It answers the calls that the Keeper makes, and lets time pass until f
// returns. It fails the test if f returns an error.
func (l *lab) run(f func(ctx context.Context) error) {
	l.T.Helper()
	done := make(chan error, 1)
	go func() { done <- f(grouptest.WithClient(l.T.Context(), "test")) }()
	for {
		l.answer()
		select {
		case err := <-done:
			testutil.Must(l.T, err)
			return
		default:
		}
		d, any := l.NextTimer()
		if !any {
			l.T.Fatal("the call does not return")
		}
		l.Pass(d)
	}
}

func (l *lab) publishTo(t Topic, messages ...pubsub.Message) (offsets []uint64) {
	var ops []command.Op
	for i := range messages {
		ops = append(ops, AppendOp(t, &messages[i]))
	}
	return l.Propose("publish", nil, &command.Request{Kind: command.KindWrite, Ops: ops}).Revisions
}

func (l *lab) subscribe(session string, id uint64, t Topic, group string) {
	l.T.Helper()
	l.run(func(ctx context.Context) error {
		_, err := l.Join(ctx, session, true, &Join{ID: id, Topic: t, Group: group, Concurrency: 10, Window: 4,
			RetryBackoff: time.Second})
		return err
	})
}

// next pulls messages for a session, and returns the answer.
func (l *lab) next(session string, received uint64) (a Answer, known bool) {
	l.T.Helper()
	l.run(func(ctx context.Context) (err error) {
		a, known, err = l.Pull(ctx, session, received, nil)
		return err
	})
	return a, known
}

// settles begins to settle a message, without answering the calls of the Keeper.
func (l *lab) settles(session string, t Topic, group string, offset uint64) {
	go func() {
		_, _ = l.Settle(l.T.Context(), session, []Settle{{Topic: t, Group: group, Offset: offset, Attempt: 1}})
	}()
	l.Group.Settle()
	l.Pass(uint64(gatherPause.Milliseconds()))
}

var others = Topic{Store: orders.Store, Name: "others"}

// A group is deleted. Its members end with their session, whose other subscriptions get their messages again.
func TestKeeper_DeletedGroupGivesBackWholeSession(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		l.subscribe("node", 2, others, "g")
		first := l.publishTo(orders, pubsub.Message{})[0]
		l.publishTo(others, pubsub.Message{})
		a, _ := l.next("node", 0)
		if len(a.List) != 2 {
			t.Fatalf("%d messages", len(a.List))
		}
		l.Propose("delete", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpDelete,
			Store: kv.TopicStore, Key: orders.key(tableGroup, "g")}}})
		l.settles("node", orders, "g", first)
		l.answer()
		if _, known := l.next("node", a.Number); known {
			t.Fatal("the session has not ended")
		}
		l.subscribe("node", 2, others, "g")
		if a, _ = l.next("node", a.Number); len(a.List) != 1 || a.List[0].ID != 2 {
			t.Errorf("the other subscription gets %v", a.List)
		}
	})
}

// A node reports a dead letter so late that another node has the message. The message stays with the other node, whose
// application handles the message. So the message does not become a dead letter.
func TestKeeper_LateDeadLetterChangesNothing(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		first := l.publishTo(orders, pubsub.Message{})[0]
		l.next("node", 0)
		l.Pass(uint64(2 * sessionLife.Milliseconds()))
		l.answer()
		l.subscribe("other", 1, orders, "g")
		if a, _ := l.next("other", 0); len(a.List) != 1 {
			t.Fatalf("the other node gets %v", a.List)
		}
		for _, session := range []string{"node", "other"} {
			letter := map[string]string{"node": "dead"}[session]
			l.run(func(ctx context.Context) error {
				_, err := l.Settle(ctx, session, []Settle{{Topic: orders, Group: "g", Offset: first, Attempt: 1,
					DeadLetter: letter}})
				return err
			})
		}
		letters := Topic{Store: orders.Store, Name: "dead"}.prefix()
		if left, _, err := l.Tip.List(kv.TopicStore, letters, "", 1, 0); err != nil || len(left) > 0 {
			t.Errorf("the dead letters are %v, %v", left, err)
		}
	})
}

// A group is deleted while a message moves to the dead letters. fault.NotFound would mean that the message was settled
// earlier. The node would then keep the message as one that the application handles.
func TestKeeper_DeletedGroupHasNoOutcomes(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		first := l.publishTo(orders, pubsub.Message{})[0]
		l.next("node", 0)
		done := make(chan error, 1)
		go func() {
			_, err := l.Settle(t.Context(), "node", []Settle{{Topic: orders, Group: "g", Offset: first, Attempt: 1,
				DeadLetter: "dead"}})
			done <- err
		}()
		l.Group.Settle()
		l.Propose("delete", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpDelete,
			Store: kv.TopicStore, Key: orders.key(tableGroup, "g")}}})
		l.Pass(uint64(gatherPause.Milliseconds()))
		l.answer()
		testutil.Must(t, <-done)
		letters := Topic{Store: orders.Store, Name: "dead"}.prefix()
		if left, _, err := l.Tip.List(kv.TopicStore, letters, "", 1, 0); err != nil || len(left) > 0 {
			t.Errorf("the dead letters are %v, %v", left, err)
		}
	})
}

// during applies the entry of the flush that is under way, executes f, and then answers the flush.
func (l *lab) during(f func() error) {
	flush := l.Calls()[0]
	r := grouptest.Reply{Result: l.Propose("flush", nil, flush.Request)}
	go func() { testutil.Must(l.T, f()) }()
	l.Group.Settle()
	for done := false; !done; {
		done = true
		for _, c := range l.Calls() {
			if c != flush {
				l.Release(c, true)
				done = false
				break
			}
		}
	}
	l.Answer(flush, r)
	l.answer()
}

// A replay moves the cursor back while the outcome of a message is being stored.
func TestKeeper_ReplayDuringFlush(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		first := l.publishTo(orders, pubsub.Message{})[0]
		a, _ := l.next("node", 0)
		l.settles("node", orders, "g", first)
		l.during(func() error { return l.Replay(orders, "g", first, 0) })
		if a, _ = l.next("node", a.Number); len(a.List) != 1 || a.List[0].Offset != first {
			t.Errorf("the replayed messages are %v", a.List)
		}
	})
}

// A group is removed while the outcome of a message is being stored. Its subscribers begin again.
func TestKeeper_RemovalDuringFlush(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		first := l.publishTo(orders, pubsub.Message{})[0]
		a, _ := l.next("node", 0)
		l.settles("node", orders, "g", first)
		l.during(func() error {
			_, err := l.Remove(t.Context(), &Removal{Topic: orders, Group: "g", Force: true})
			return err
		})
		if _, known := l.next("node", a.Number); known {
			t.Error("the session has not ended")
		}
	})
}

// trim lets time pass until the Keeper proposes to remove messages by retention. It returns the proposal, which is not
// applied yet.
func (l *lab) trim() *grouptest.Call {
	l.T.Helper()
	for len(l.Calls()) == 0 {
		d, any := l.NextTimer()
		if !any {
			l.T.Fatal("nothing trims the topic")
		}
		l.Pass(d)
	}
	return l.Calls()[0]
}

// ahead executes f, a call to the Keeper. The entries of f are applied before the entry of the waiting call of.
func (l *lab) ahead(of *grouptest.Call, f func(ctx context.Context) error) {
	l.T.Helper()
	done := make(chan error, 1)
	go func() { done <- f(l.T.Context()) }()
	l.Group.Settle()
	for i := 0; i < len(l.Calls()); {
		if c := l.Calls()[i]; c != of {
			l.Release(c, true)
			i = 0
			continue
		}
		i++
	}
	l.answer()
	testutil.Must(l.T, <-done)
}

// Retention has proposed to remove a message that no group needs. Before the proposal is applied, a group is created
// or moved back, so that it needs the message. The message then stays.
func TestKeeper_GroupExcludesEarlierTrim(t *testing.T) {
	join := func(l *lab) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := l.Join(ctx, "node", true, &Join{ID: 1, Topic: orders, Group: "g", Concurrency: 10, Window: 4,
				RetryBackoff: time.Second})
			return err
		}
	}
	for name, replay := range map[string]bool{"created": false, "moved back": true} {
		t.Run(name, func(t *testing.T) {
			withLab(t, func(t *testing.T, l *lab) {
				l.Propose("policy", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{
					Kind: command.OpSet, Store: kv.TopicStore, Key: orders.key(tablePolicy, ""),
					Value: (&Policy{Retention: time.Second, MaxBytes: DefaultMaxBytes}).encode()}}})
				offset := l.publishTo(orders, pubsub.Message{})[0]
				begin := join(l)
				if replay {
					l.run(begin)
					l.next("node", 0)
					l.settles("node", orders, "g", offset)
					l.answer()
					begin = func(context.Context) error { return l.Replay(orders, "g", offset, 0) }
				}
				l.ahead(l.trim(), begin)
				if v, err := l.Tip.Get(kv.TopicStore, orders.messageKey(offset), 0); err != nil || !v.Found {
					t.Errorf("the message is stored: %t %v", v.Found, err)
				}
			})
		})
	}
}

// parkAll stores a group with the cursor upto, and with parked records for the offsets.
func (l *lab) parkAll(group string, offsets []uint64, upto uint64) {
	all := cursor{upto: upto}
	ops := []command.Op{{Kind: command.OpSet, Store: kv.TopicStore, Key: orders.key(tableGroup, group),
		Value: all.encode()}}
	for _, offset := range offsets {
		ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore,
			Key: orders.parkedKey(group, offset), Value: (&parked{attempts: 1, at: 1}).encode()})
	}
	l.Propose("park", nil, &command.Request{Kind: command.KindWrite, Ops: ops})
}

// Retention removes a message that all groups have settled, also if it follows many messages that they have not
// settled.
func TestKeeper_TrimsAfterManyParkedMessages(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		const count = maxBack + 2000
		l.Propose("policy", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet,
			Store: kv.TopicStore, Key: orders.key(tablePolicy, ""),
			Value: (&Policy{Retention: time.Second, MaxBytes: DefaultMaxBytes}).encode()}}})
		offsets := l.publishTo(orders, make([]pubsub.Message, count+1)...)
		l.parkAll("g", offsets[:count], offsets[count])
		l.parkAll("h", offsets[:1], offsets[count])
		l.trim()
		l.answer()
		left, _, err := l.Tip.List(kv.TopicStore, orders.key(tableMessage, ""), "", count+1, 0)
		testutil.Must(t, err)
		if len(left) != count || offsetOf(left[count-1].Key) != offsets[count-1] {
			t.Errorf("%d messages are left, want the %d that wait", len(left), count)
		}
	})
}

// A replay moves the cursor of a group with more parked messages than one request removes.
func TestKeeper_ReplayWithManyParkedMessages(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		const count = maxBack + 1
		l.subscribe("node", 1, orders, "g")
		offsets := l.publishTo(orders, make([]pubsub.Message, count)...)
		l.parkAll("g", offsets, offsets[count-1])
		l.run(func(context.Context) error { return l.Replay(orders, "g", offsets[0], 0) })
		left, _, err := l.Tip.List(kv.TopicStore, orders.parkedPrefix("g"), "", 1, 0)
		testutil.Must(t, err)
		if len(left) > 0 {
			t.Error("messages after the cursor are parked")
		}
		if a, _ := l.next("node", 0); len(a.List) == 0 || a.List[0].Offset != offsets[0] || a.List[0].Attempt != 1 {
			t.Errorf("the replayed messages are %v", a.List)
		}
	})
}

// The sizes of parked messages are not known when they are leased. The bound for the bytes of a member applies to
// them, too.
func TestKeeper_BoundsBytesOfParkedMessages(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		const size, most = 6 << 20, 3
		l.subscribe("node", 1, orders, "g")
		at := time.UnixMilli(int64(l.server(l.Members[0]).Now()) + 1000)
		data := make([]byte, size)
		var sent []uint64
		for range most + 1 {
			sent = append(sent, l.publishTo(orders, pubsub.Message{Data: data, DeliverAt: at})...)
		}
		l.Pass(10)
		l.answer() // the messages are parked in the log
		l.Depose(l.Members[0])
		l.Elect(l.Members[0])
		l.subscribe("node", 1, orders, "g")
		l.Pass(4000) // less than sessionLife
		l.answer()
		var got []uint64
		number := uint64(0)
		for {
			a, _ := l.next("node", number)
			if number = a.Number; len(a.List) == 0 {
				break
			}
			for i := range a.List {
				got = append(got, a.List[i].Offset)
			}
		}
		if !slices.Equal(got, sent[:most]) {
			t.Fatalf("received %d messages before the first was settled", len(got))
		}
		l.run(func(ctx context.Context) error {
			_, err := l.Settle(ctx, "node", []Settle{{Topic: orders, Group: "g", Offset: got[0], Attempt: 1}})
			return err
		})
		if a, _ := l.next("node", number); len(a.List) != 1 || a.List[0].Offset != sent[most] {
			t.Errorf("then %d messages", len(a.List))
		}
	})
}

// Two pulls of a node are under way, because the node has given up the first one. The failure of the first pull does
// not affect the messages that the second pull returns.
func TestKeeper_FailureOfEarlierPull(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		l.publishTo(orders, pubsub.Message{})
		early, late := make(chan error, 1), make(chan Answer, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, _, err := l.Pull(ctx, "node", 0, nil)
			early <- err
		}()
		l.Group.Settle()
		go func() {
			a, _, err := l.Pull(t.Context(), "node", 0, nil)
			testutil.Must(t, err)
			late <- a
		}()
		l.Group.Settle()
		cancel()
		l.Group.Settle()
		if err := <-early; err == nil {
			t.Fatal("the first pull has an answer")
		}
		l.answer()
		a := <-late
		if len(a.List) != 1 {
			t.Errorf("the second pull returns %v", a.List)
		}
		if a, _ = l.next("node", a.Number); len(a.List) != 0 {
			t.Errorf("the next pull returns %v again", a.List)
		}
	})
}

// Outcomes that cannot be stored are tried again with pauses.
func TestKeeper_PausesAfterFailedFlush(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		first := l.publishTo(orders, pubsub.Message{})[0]
		l.next("node", 0)
		begun, failures := l.Elapsed, uint64(0)
		go func() {
			_, _ = l.Settle(t.Context(), "node", []Settle{{Topic: orders, Group: "g", Offset: first, Attempt: 1}})
		}()
		for l.Group.Settle(); failures < 20; l.Group.Settle() {
			calls := l.Calls()
			switch {
			case len(calls) == 0:
				d, _ := l.NextTimer()
				l.Pass(d)
			case calls[0].Kind == grouptest.Commit:
				failures++
				l.Answer(calls[0], grouptest.Reply{Err: fault.New(fault.Overloaded, "test", "the disk is full")})
			default:
				l.Release(calls[0], true)
			}
		}
		if pause := (l.Elapsed - begun) / failures; pause < 90 {
			t.Errorf("%d ms between tries", pause)
		}
		l.answer()
	})
}

// A node repeats the call that releases a message, because the answer was lost. By then the message has a newer lease,
// which the repeated call does not end.
func TestKeeper_RepeatedRelease(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		first := l.publishTo(orders, pubsub.Message{})[0]
		a, _ := l.next("node", 0)
		release := []Settle{{Topic: orders, Group: "g", Offset: first, Attempt: 1, Lease: a.List[0].Lease,
			Outcome: pubsub.Released}}
		for n := range 2 {
			l.run(func(ctx context.Context) error {
				_, err := l.Settle(ctx, "node", release)
				return err
			})
			if a, _ = l.next("node", a.Number); len(a.List) != 1-n {
				t.Errorf("after call %d: %v", n+1, a.List)
			}
		}
	})
}

// A publisher delays a message. Until its delivery time, the message does not hold up other messages with its key.
func TestKeeper_DelayedMessageHoldsUpNoOther(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		at := time.UnixMilli(int64(l.server(l.Members[0]).Now()) + 2000)
		offsets := l.publishTo(orders, pubsub.Message{Key: "k", DeliverAt: at}, pubsub.Message{Key: "k"},
			pubsub.Message{Key: "k"})
		number := uint64(0)
		for n, i := range []int{1, 0, 2} {
			a, _ := l.next("node", number)
			if len(a.List) != 1 || a.List[0].Offset != offsets[i] {
				t.Fatalf("delivery %d is %v, want %d", n, a.List, offsets[i])
			}
			if number = a.Number; n == 0 {
				l.Pass(3000) // the delayed message becomes due while this message is being handled
				l.answer()
			}
			l.run(func(ctx context.Context) error {
				_, err := l.Settle(ctx, "node", []Settle{{Topic: orders, Group: "g", Attempt: 1, Offset: offsets[i]}})
				return err
			})
		}
	})
}

// Many delayed messages of one key become due at the same time. insert finds the place of each by a binary search. In
// the test, the items that such a search does not compare are nil.
func TestConsumer_InsertSearchesQueue(t *testing.T) {
	const count, place = 100_000, 70_000
	positions, queue := make([]int, count), make([]*item, count)
	for n := range positions {
		positions[n] = n
	}
	queue[0] = &item{key: "k"}
	_, _ = slices.BinarySearchFunc(positions, place, func(n, to int) int {
		queue[n] = &item{key: "k", offset: uint64(2 * n)}
		return n - to
	})
	due := &item{key: "k", offset: 2*place - 1}
	c := &consumer{concurrency: 10, queues: map[string][]*item{"kk": queue}}
	c.insert(due)
	if got := slices.Index(c.queues["kk"], due); got != place {
		t.Errorf("the message has place %d of its queue, want %d", got, place)
	}
}

// The cursor of a group lists the messages without a parked record. The function request does not look at the parked
// messages, of which there may be 100,000. In the test, the item of a parked message is nil.
func TestConsumer_RequestLooksAtOpenMessagesOnly(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		at := time.UnixMilli(int64(l.server(l.Members[0]).Now()) + 60_000)
		offsets := l.publishTo(orders, pubsub.Message{}, pubsub.Message{DeliverAt: at}, pubsub.Message{})
		l.Pass(10)
		l.answer() // the second message is parked in the log
		l.mu.Lock()
		defer l.mu.Unlock()
		c := l.topics[orders].find("g")
		c.items[offsets[1]-1] = nil
		defer delete(c.items, offsets[1]-1)
		c.finish(c.items[offsets[2]], &settlement{kind: settleDone})
		_, next, _, err := l.request(c)
		testutil.Must(t, err)
		if !slices.Equal(next.open, offsets[:1]) {
			t.Errorf("the cursor names the messages %v, want %v", next.open, offsets[:1])
		}
	})
}

// A message waits for its next attempt. It then fails at a node that got it from an earlier leader, whose clock was
// ahead. The message waits longer, and does not hold up a message with another key.
func TestKeeper_FailureOfWaitingMessageHoldsUpNoOther(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		offsets := l.publishTo(orders, pubsub.Message{Key: "a"}, pubsub.Message{Key: "b"})
		now := l.server(l.Leader).Now()
		ops := []command.Op{{Kind: command.OpSet, Store: kv.TopicStore, Key: orders.key(tableGroup, "g"),
			Value: (&cursor{upto: offsets[1]}).encode()}}
		for n, key := range []string{"a", "b"} {
			p := parked{attempts: 3, at: now + 1000 + 10*uint64(n), key: key}
			ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore,
				Key: orders.parkedKey("g", offsets[n]), Value: p.encode()})
		}
		l.Propose("park", nil, &command.Request{Kind: command.KindWrite, Ops: ops})
		l.subscribe("node", 1, orders, "g")
		go func() {
			_, _ = l.Settle(t.Context(), "node", []Settle{{Topic: orders, Group: "g", Offset: offsets[0], Attempt: 4,
				Outcome: pubsub.Failed}})
		}()
		l.Group.Settle()
		l.answer()
		a, _ := l.next("node", 0)
		late := l.server(l.Leader).Now() - now
		if len(a.List) != 1 || a.List[0].Offset != offsets[1] || late > 2000 {
			t.Errorf("%d ms later, these messages come: %v", late, a.List)
		}
	})
}

// A large dead letter has a log entry of its own. Together with other dead letters, it could exceed the limit of an
// entry.
func TestKeeper_LargeDeadLetterIsAlone(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.subscribe("node", 1, orders, "g")
		const large = maxBatchSize + 1
		offsets := l.publishTo(orders, pubsub.Message{Data: make([]byte, maxBatchSize-1000)},
			pubsub.Message{Data: make([]byte, large)}, pubsub.Message{})
		var list []Settle
		for _, offset := range offsets {
			list = append(list, Settle{Topic: orders, Group: "g", Offset: offset, Attempt: 1, DeadLetter: "dead"})
		}
		settled := make(chan error, 1)
		go func() {
			_, err := l.Settle(t.Context(), "node", list)
			settled <- err
		}()
		l.Group.Settle()
		l.Pass(uint64(gatherPause.Milliseconds()))
		for done := false; !done; {
			size, count := 0, 0
			for _, op := range l.Calls()[0].Request.Ops {
				if op.Kind == command.OpAppend {
					size, count = size+len(op.Value), count+1
				}
			}
			if size > large && count > 1 {
				t.Errorf("an entry has %d dead letters with %d bytes", count, size)
			}
			l.Release(l.Calls()[0], true)
			l.Pass(uint64(gatherPause.Milliseconds()))
			select {
			case err := <-settled:
				testutil.Must(t, err)
				done = true
			default:
			}
		}
	})
}

// A topic of dead letters has the policy of the topic from which the dead letters come.
func TestKeeper_DeadLettersHavePolicyOfTheirSource(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		dead, deader := Topic{Store: orders.Store, Name: "dead"}, Topic{Store: orders.Store, Name: "deader"}
		want := Policy{Retention: 2 * DefaultRetention, MaxBytes: 1 << 20}
		l.Propose("policy", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet,
			Store: kv.TopicStore, Key: orders.key(tablePolicy, ""), Value: want.encode()}}})
		at, offset := orders, l.publishTo(orders, pubsub.Message{})[0]
		for n, to := range []Topic{dead, deader} {
			l.subscribe("node", uint64(n+1), at, "g")
			l.run(func(ctx context.Context) error {
				_, err := l.Settle(ctx, "node", []Settle{{Topic: at, Group: "g", Offset: offset, Attempt: 1,
					DeadLetter: to.Name}})
				return err
			})
			found, _, err := l.Tip.List(kv.TopicStore, to.key(tableMessage, ""), "", 1, 0)
			testutil.Must(t, err)
			at, offset = to, offsetOf(found[0].Key)
			if have, err := policyOf(l.Tip, to); err != nil || have != want {
				t.Errorf("topic %s keeps %v, %v", to.Name, have, err)
			}
		}
		for range DefaultRetention/time.Hour + 2 {
			l.Pass(uint64(time.Hour.Milliseconds()))
			l.answer()
		}
		if v, err := l.Tip.Get(kv.TopicStore, at.messageKey(offset), 0); err != nil || !v.Found {
			t.Errorf("the dead letter is stored: %t, %v", v.Found, err)
		}
	})
}

// The removal of a group was cut short after its first log entry. A subscriber creates the group again, and gets each
// message as the first attempt.
func TestKeeper_GroupBeginsWithoutParkedMessagesOfRemovedOne(t *testing.T) {
	for name, count := range map[string]int{"few": 1, "more than one entry removes": maxBack + 1} {
		t.Run(name, func(t *testing.T) {
			withLab(t, func(t *testing.T, l *lab) {
				offsets := l.publishTo(orders, make([]pubsub.Message, count)...)
				l.parkAll("g", offsets, offsets[count-1])
				l.Propose("remove", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{
					Kind: command.OpDelete, Store: kv.TopicStore, Key: orders.key(tableGroup, "g")}}})
				l.subscribe("node", 1, orders, "g")
				a, _ := l.next("node", 0)
				if len(a.List) == 0 || a.List[0].Offset != offsets[0] || a.List[0].Attempt != 1 {
					t.Errorf("these messages come: %v", a.List)
				}
				left, _, err := l.Tip.List(kv.TopicStore, orders.parkedPrefix("g"), "", 1, 0)
				testutil.Must(t, err)
				if len(left) > 0 {
					t.Error("the group has parked messages of the removed one")
				}
			})
		})
	}
}

// A removal removes the parked messages of a group. Before its proposal is applied, the group is created again and
// parks a message of its own, which stays.
func TestKeeper_RemovalKeepsParkedMessagesOfNewGroup(t *testing.T) {
	for name, group := range map[string]string{"group": "g", "topic": ""} {
		t.Run(name, func(t *testing.T) {
			withLab(t, func(t *testing.T, l *lab) {
				offset := l.publishTo(orders, pubsub.Message{})[0]
				l.parkAll("g", []uint64{offset}, offset)
				l.answer()
				done := make(chan error, 1)
				go func() {
					_, err := l.Remove(t.Context(), &Removal{Topic: orders, Group: group, Force: true})
					done <- err
				}()
				l.Group.Settle()
				parked := orders.parkedKey("g", offset)
				removes := func(c *grouptest.Call) bool {
					return c.Request != nil && slices.ContainsFunc(c.Request.Ops, func(o command.Op) bool {
						return o.Key == parked
					})
				}
				for !removes(l.Calls()[0]) {
					l.Release(l.Calls()[0], true)
				}
				l.parkAll("g", []uint64{offset}, offset)
				l.Release(l.Calls()[0], true)
				if v, err := l.Tip.Get(kv.TopicStore, parked, 0); err != nil || !v.Found {
					t.Errorf("the parked message of the new group is stored: %t, %v", v.Found, err)
				}
				l.answer()
				testutil.Must(t, <-done)
				if v, err := l.Tip.Get(kv.TopicStore, parked, 0); err != nil || v.Found {
					t.Errorf("the parked message is stored after the removal: %t, %v", v.Found, err)
				}
			})
		})
	}
}

// A removal needs several log entries, and one of them fails. Remove then returns what the earlier ones have removed,
// and the next call removes the rest.
func TestRemove_KeepsProgressWhenAnEntryFails(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.publishTo(orders, make([]pubsub.Message, removePage+1)...)
		l.answer()
		remove := func() (p Progress, err error) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				p, err = l.Remove(grouptest.WithClient(t.Context(), "test"), &Removal{Topic: orders})
			}()
			l.Group.Settle()
			for fail := false; len(l.Calls()) > 0; {
				c := l.Calls()[0]
				switch {
				case c.Kind == grouptest.Confirm || !fail:
					fail = fail || c.Kind == grouptest.Commit
					l.Release(c, true)
				default:
					l.Answer(c, grouptest.Reply{Err: fault.New(fault.Overloaded, "test", "too many entries wait")})
				}
			}
			<-done
			return p, err
		}
		p, err := remove()
		if err != nil || p.Done != removePage || !p.More {
			t.Fatalf("the first call: %+v, %v", p, err)
		}
		if p, err = remove(); err != nil || p.Done != 1 || p.More {
			t.Errorf("the second call: %+v, %v", p, err)
		}
	})
}

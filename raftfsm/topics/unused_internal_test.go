package topics

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

const lifetime = time.Hour

// use subscribes to group g with a time to live.
func (l *lab) use(session string) {
	l.T.Helper()
	l.run(func(ctx context.Context) error {
		_, err := l.Join(ctx, session, true, &Join{ID: 1, Topic: orders, Group: "g", Concurrency: 10, Window: 4,
			RetryBackoff: time.Second, GroupTTL: lifetime})
		return err
	})
}

// wait lets the duration d pass. Timers fire when they are due, and the calls of the Keeper are answered.
func (l *lab) wait(d time.Duration) {
	for end := l.Elapsed + uint64(d.Milliseconds()); l.Elapsed < end; {
		step, any := l.NextTimer()
		if step = max(step, 1); !any || step > end-l.Elapsed {
			step = end - l.Elapsed
		}
		l.Pass(step)
		l.answer()
	}
}

// cursorOf returns the record of group g.
func (l *lab) cursorOf() (c cursor, found bool) {
	l.T.Helper()
	v, err := l.Tip.Get(kv.TopicStore, orders.key(tableGroup, "g"), 0)
	testutil.Must(l.T, err)
	c, ok := readCursor(v.Value, v.Revision)
	if v.Found && !ok {
		l.T.Fatal("the cursor cannot be read")
	}
	return c, v.Found
}

func (l *lab) keepFor(retention time.Duration) {
	l.Propose("policy", nil, &command.Request{Kind: command.KindWrite, Ops: []command.Op{{Kind: command.OpSet,
		Store: kv.TopicStore, Key: orders.key(tablePolicy, ""),
		Value: (&Policy{Retention: retention, MaxBytes: DefaultMaxBytes}).encode()}}})
}

// A group that is not used for its time to live ends, and retention removes its messages. Without a time to live, a
// group does not end.
func TestKeeper_UnusedGroupEnds(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.keepFor(time.Second)
		l.use("node")
		l.subscribe("node", 2, others, "forever")
		offset := l.publishTo(orders, pubsub.Message{})[0]
		l.next("node", 0)
		l.run(func(ctx context.Context) error {
			_, err := l.Settle(ctx, "node", []Settle{{Topic: orders, Group: "g", Offset: offset, Attempt: 1,
				Outcome: pubsub.Failed}})
			return err
		})
		l.wait(lifetime)
		if _, found := l.cursorOf(); !found {
			t.Fatal("the group has ended too early")
		}
		l.wait(lifetime / 5)
		if _, found := l.cursorOf(); found {
			t.Error("the group has not ended")
		}
		left, _, err := l.Tip.List(kv.TopicStore, orders.parkedPrefix("g"), "", 10, 0)
		testutil.Must(t, err)
		if v, err := l.Tip.Get(kv.TopicStore, orders.messageKey(offset), 0); err != nil || v.Found || len(left) > 0 {
			t.Errorf("the message is stored: %t %v; parked: %d", v.Found, err, len(left))
		}
		l.wait(10 * lifetime)
		if v, err := l.Tip.Get(kv.TopicStore, others.key(tableGroup, "forever"), 0); err != nil || !v.Found {
			t.Errorf("the group without a time to live is stored: %t %v", v.Found, err)
		}
	})
}

// An unused group ends although it has more parked messages than one log entry removes.
func TestKeeper_UnusedGroupWithManyParkedMessagesEnds(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		offsets := l.publishTo(orders, make([]pubsub.Message, 2*maxBack+1)...)
		l.use("node")
		l.wait(time.Minute) // the session ends
		var ops []command.Op
		for _, offset := range offsets {
			ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore,
				Key: orders.parkedKey("g", offset), Value: (&parked{attempts: 1, at: 1}).encode()})
		}
		c, _ := l.cursorOf()
		c.upto = offsets[len(offsets)-1]
		ops = append(ops, command.Op{Kind: command.OpSet, Store: kv.TopicStore, Key: orders.key(tableGroup, "g"),
			Value: c.encode()})
		l.Propose("park", nil, &command.Request{Kind: command.KindWrite, Ops: ops})
		l.wait(lifetime * 6 / 5)
		left, _, err := l.Tip.List(kv.TopicStore, orders.parkedPrefix("g"), "", 1, 0)
		testutil.Must(t, err)
		if _, found := l.cursorOf(); found || len(left) > 0 {
			t.Errorf("the group is stored: %t; its parked messages: %t", found, len(left) > 0)
		}
	})
}

// A group with a subscriber does not end, although no message comes. The log gets only few entries that store the use.
func TestKeeper_IdleSubscriberKeepsGroup(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		l.use("node")
		begun, _ := l.cursorOf()
		revision := l.Tip.Revision()
		for l.Elapsed < uint64((3 * lifetime).Milliseconds()) {
			if _, known := l.next("node", 0); !known {
				t.Fatal("the session has ended")
			}
		}
		c, found := l.cursorOf()
		if !found || c.used < begun.used+uint64((2*lifetime).Milliseconds()) {
			t.Errorf("the group is stored: %t, and was used %d ms after its begin", found, c.used-begun.used)
		}
		if n := l.Tip.Revision() - revision; n > 31 {
			t.Errorf("%d records of its use in three times its time to live", n)
		}
	})
}

// The cluster is down for longer than the time to live of a group. The group does not end if a subscriber comes back
// soon after the election of a leader.
func TestKeeper_GroupSurvivesOutage(t *testing.T) {
	for name, back := range map[string]bool{"a subscriber comes back": true, "none comes back": false} {
		t.Run(name, func(t *testing.T) {
			withLab(t, func(t *testing.T, l *lab) {
				l.use("node")
				l.Depose(l.Members[0])
				l.Pass(uint64((5 * lifetime).Milliseconds()))
				l.Elect(l.Members[0])
				l.wait(lifetime / 11)
				if _, found := l.cursorOf(); !found {
					t.Fatal("the group has ended before a subscriber could come back")
				}
				if back {
					l.use("node")
				}
				l.wait(lifetime / 5)
				if _, found := l.cursorOf(); found != back {
					t.Errorf("the group is stored: %t", found)
				}
			})
		})
	}
}

// A subscriber joins while the end of its group is proposed. The session of the subscriber ends. After the next join,
// it gets every message.
func TestKeeper_SubscriberDuringEndOfGroup(t *testing.T) {
	withLab(t, func(t *testing.T, l *lab) {
		offset := l.publishTo(orders, pubsub.Message{})[0]
		l.use("early")
		for end := uint64((2 * lifetime).Milliseconds()); l.Elapsed < end; {
			d, _ := l.NextTimer()
			l.Pass(d)
			if calls := l.Calls(); len(calls) > 0 && l.Elapsed > uint64(lifetime.Milliseconds()) {
				break
			}
			l.answer()
		}
		calls := l.Calls()
		if len(calls) == 0 {
			t.Fatal("no end of the group is proposed")
		}
		l.ahead(calls[0], func(ctx context.Context) error {
			_, err := l.Join(ctx, "late", true, &Join{ID: 1, Topic: orders, Group: "g", Concurrency: 10, Window: 4,
				RetryBackoff: time.Second, GroupTTL: lifetime})
			return err
		})
		for known := true; known; {
			_, known = l.next("late", 0)
		}
		l.use("late")
		if a, _ := l.next("late", 0); len(a.List) != 1 || a.List[0].Offset != offset {
			t.Errorf("the subscriber gets %v", a.List)
		}
	})
}

// The time to live of a group is a field of the component, and metadata of a subscription.
func TestGroupTTL_IsChecked(t *testing.T) {
	b := NewBroker(&idRecords{}, "s", BrokerOptions{GroupTTL: 90 * 24 * time.Hour})
	for text, want := range map[string]time.Duration{"": 90 * 24 * time.Hour, "0s": 0, "1m": time.Minute,
		"87600h": maxGroupTTL, "59s": -1, "87601h": -1, "-1h": -1, "60.0001s": -1, "soon": -1} {
		s, err := b.newSubscription(&pubsub.SubscribeRequest{Topic: "orders", Group: "g",
			Metadata: map[string]string{metadataGroupTTL: text}})
		switch {
		case want < 0:
			if err == nil || !strings.Contains(err.Error(), "is neither 0s nor a duration from 1m0s to") {
				t.Errorf("%q: %v", text, err)
			}
		case err != nil || s.groupTTL != want:
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

package topics

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/records"
)

// scriptedLeader answers the calls of one link as a leader does. Pulls wait until the test gives an answer.
type scriptedLeader struct {
	records.Access
	pulls   chan Answer
	settled chan Settle
	leases  uint64 // in answers to settlements

	mu      sync.Mutex
	waiting int             // number of pulls that have waited for an answer
	members map[uint64]bool // of the session; nil = the leader does not know the session
	refuse  map[uint64]int  // by subscription: how many joins fail
	code    fault.Code      // of these failures
	changed chan struct{}   // closed when members changes
}

func newScriptedLeader() *scriptedLeader {
	return &scriptedLeader{pulls: make(chan Answer), settled: make(chan Settle, 10), refuse: map[uint64]int{},
		code: fault.Unavailable, changed: make(chan struct{})}
}

// Ask implements records.Access.
func (f *scriptedLeader) Ask(ctx context.Context, gid uint32, _ string, body []byte) ([]byte, bool, error) {
	c, err := readCall(&lenprefix.Reader{Rest: body}, gid)
	if err != nil {
		return nil, false, err
	}
	if c.what == callSettle {
		for i := range c.settles {
			f.settled <- c.settles[i]
		}
		return appendAnswer([]byte{1}, &Answer{Number: f.leases}), false, nil
	}
	if c.what == callPull {
		return f.pull(ctx, c.members)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := c.join.ID
	switch {
	case c.what == callLeave:
		delete(f.members, id)
	case f.refuse[id] > 0:
		f.refuse[id]--
		return nil, false, fault.New(f.code, "test", "refused")
	case f.members == nil && !c.fresh:
		return []byte{0}, false, nil
	case f.members == nil:
		f.members = map[uint64]bool{}
		fallthrough
	default:
		f.members[id] = true
	}
	close(f.changed)
	f.changed = make(chan struct{})
	return []byte{1}, false, nil
}

func (f *scriptedLeader) pull(ctx context.Context, members []uint64) ([]byte, bool, error) {
	f.mu.Lock()
	known := f.members != nil
	for _, id := range members {
		known = known && f.members[id]
	}
	if known {
		f.waiting++
	}
	f.mu.Unlock()
	if !known {
		return []byte{0}, false, nil
	}
	select {
	case a := <-f.pulls:
		f.mu.Lock()
		defer f.mu.Unlock()
		return appendAnswer([]byte{byte(records.Bit(f.members != nil))}, &a), false, nil
	case <-ctx.Done():
		return nil, false, fault.Wrap(ctx.Err(), "test", "the pull was given up")
	}
}

// forget makes the leader forget the session, like a leader that was just elected.
func (f *scriptedLeader) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = nil
}

// await waits until the session has exactly these subscriptions.
func (f *scriptedLeader) await(t *testing.T, ids ...uint64) {
	t.Helper()
	for {
		f.mu.Lock()
		var have []uint64
		for id := range f.members {
			have = append(have, id)
		}
		slices.Sort(have)
		changed := f.changed
		f.mu.Unlock()
		if slices.Equal(have, ids) {
			return
		}
		select {
		case <-changed:
		case f.pulls <- Answer{}: // the pull returns, and the next pull finds that a subscription is missing
		case <-t.Context().Done():
			t.Fatalf("the leader knows %v, want %v", have, ids)
		}
	}
}

func newLinkTo(t *testing.T, f *scriptedLeader) *link {
	b := NewBroker(f, "s", BrokerOptions{})
	t.Cleanup(func() { _ = b.Close() })
	return newLink(b, 0)
}

func (l *link) subscribe(t *testing.T, id uint64) *subscription {
	t.Helper()
	s, err := l.b.newSubscription(&pubsub.SubscribeRequest{Topic: "orders", Group: "app"})
	if err != nil {
		t.Fatal(err)
	}
	s.id, s.links = id, []*link{l}
	if err := l.add(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	return s
}

// A new leader first gets the join of a new subscription. The node then joins its earlier subscriptions, too.
func TestLink_NewSubscriptionAtNewLeader(t *testing.T) {
	f := newScriptedLeader()
	l := newLinkTo(t, f)
	l.subscribe(t, 1)
	f.await(t, 1)
	f.forget()
	l.subscribe(t, 2)
	f.await(t, 1, 2)
}

// A new leader refuses the join of one subscription at first. The node joins again until the leader knows all.
func TestLink_JoinsUntilLeaderKnowsAll(t *testing.T) {
	f := newScriptedLeader()
	l := newLinkTo(t, f)
	l.subscribe(t, 1)
	l.subscribe(t, 2)
	f.await(t, 1, 2)
	f.mu.Lock()
	f.members, f.refuse[2] = nil, 2
	f.mu.Unlock()
	f.await(t, 1, 2)
}

// A delayed join, which was meant for an earlier leader, begins the session at a new leader. The node then joins the
// other subscriptions, which the new leader does not know.
func TestLink_LateJoinBeginsSession(t *testing.T) {
	f := newScriptedLeader()
	l := newLinkTo(t, f)
	l.subscribe(t, 1)
	l.subscribe(t, 2)
	f.await(t, 1, 2)
	f.mu.Lock()
	f.members = map[uint64]bool{2: true}
	f.mu.Unlock()
	f.await(t, 1, 2)
}

// A subscription that a leader refuses does not keep the others from their messages.
func TestLink_RefusedSubscription(t *testing.T) {
	f := newScriptedLeader()
	l := newLinkTo(t, f)
	l.subscribe(t, 1)
	l.subscribe(t, 2)
	f.await(t, 1, 2)
	f.mu.Lock()
	f.members, f.refuse[1], f.code = nil, 1<<30, fault.Invalid
	f.mu.Unlock()
	f.await(t, 2)
	f.pulls <- Answer{}
}

// A join can reach a new leader after the subscription has ended. When messages of that subscription arrive, the node
// makes the leader remove it.
func TestLink_LeavesForSubscriptionThatHasEnded(t *testing.T) {
	f := newScriptedLeader()
	l := newLinkTo(t, f)
	l.subscribe(t, 1)
	f.mu.Lock()
	f.members[7] = true
	f.mu.Unlock()
	f.pulls <- Answer{Number: 1, List: []Handed{{ID: 7, Offset: 1, Attempt: 1}, {ID: 7, Offset: 2, Attempt: 1}}}
	f.await(t, 1)
}

// A new leader hands out a message that this node is still handling, and counts the first delivery as failed. The
// node reports the outcome of the handling for the second delivery, because it does not handle the message again.
func TestSubscription_OutcomeIsOfNewestAttempt(t *testing.T) {
	f := newScriptedLeader()
	l := newLinkTo(t, f)
	s := l.subscribe(t, 1)
	value := append(make([]byte, 8), encodeMessage(&pubsub.Message{ID: "1"})...)
	f.pulls <- Answer{Number: 1, List: []Handed{{ID: 1, Offset: 5, Attempt: 1, Value: value}}}
	list, err := s.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	f.pulls <- Answer{Number: 2, List: []Handed{{ID: 1, Offset: 5, Attempt: 2, Value: value}}}
	f.pulls <- Answer{} // when a pull takes this answer, the previous answer was processed
	if err := s.Settle(t.Context(), &list[0], pubsub.Failed); err != nil {
		t.Fatal(err)
	}
	if got := <-f.settled; got.Offset != 5 || got.Attempt != 2 || got.Outcome != pubsub.Failed {
		t.Errorf("the outcome is %+v", got)
	}
}

// A transaction is refused because the message was handed out again: a new leader has counted the first delivery as
// failed. The application answers with a success, as the documentation says. This must not settle the message, because
// no transaction has stored its effect.
func TestSubscription_RefusedTransactionSettlesNothing(t *testing.T) {
	f := newScriptedLeader()
	l := newLinkTo(t, f)
	l.b.links[0] = l
	s := l.subscribe(t, 1)
	value := append(make([]byte, 8), encodeMessage(&pubsub.Message{ID: "1"})...)
	hand := func(number, offset, attempt, lease uint64) {
		f.pulls <- Answer{Number: number, List: []Handed{{ID: 1, Offset: offset, Attempt: attempt, Lease: lease,
			Value: value}}}
	}
	receive := func() pubsub.Delivery {
		list, err := s.Receive(t.Context(), 1)
		testutil.Must(t, err)
		return list[0]
	}
	hand(1, 5, 1, 3)
	first := receive()
	hand(2, 5, 2, 4)
	hand(3, 6, 1, 5)
	other := receive()
	for _, one := range []struct{ group, token string }{{"app", first.Token}, {"another", other.Token}} {
		stale, ok := parseToken(one.token)
		if !ok {
			t.Fatal("the token cannot be read")
		}
		stale.topic.Store = "s"
		e := &acknowledgement{token: stale, broker: l.b, group: one.group, settled: errSettled("is settled")}
		if err := e.Refused(0, stale.topic.parkedKey(one.group, stale.offset)); !fault.Is(err, fault.DeliverySettled) {
			t.Errorf("the transaction ends with %v", err)
		}
		e.Unsettled()
	}
	testutil.Must(t, s.Settle(t.Context(), &first, pubsub.Acknowledged))
	if got := <-f.settled; got.Offset != 5 || got.Lease != 4 || got.Outcome != pubsub.Released {
		t.Fatalf("the outcome is %+v, want that the message is released", got)
	}
	testutil.Must(t, s.Settle(t.Context(), &other, pubsub.Acknowledged))
	if got := <-f.settled; got.Offset != 6 || got.Outcome != pubsub.Acknowledged {
		t.Errorf("the outcome of the other message is %+v", got)
	}
	hand(4, 5, 2, 7)
	if again := receive(); again.Attempt != 2 || again.Token == first.Token {
		t.Errorf("the message comes again with attempt %d and the token %s", again.Attempt, again.Token)
	}
}

// A member collects a batch with several calls of Receive. The messages that the member already has leave room for the
// rest of the batch.
func TestSubscription_ReceiveFillsBatch(t *testing.T) {
	b := NewBroker(nil, "s", BrokerOptions{})
	s, err := b.newSubscription(&pubsub.SubscribeRequest{Topic: "orders", Group: "app", Unsettled: 100})
	testutil.Must(t, err)
	if s.window != 200 {
		t.Errorf("the leader hands out up to %d messages", s.window)
	}
	for got := 0; got < 100; got += 10 {
		for range 10 {
			s.buffer = append(s.buffer, &held{})
		}
		if n := s.allowed(100 - got); n != 10 {
			t.Fatalf("with %d of 100 messages, Receive returns %d of 10", got, n)
		}
		list, err := s.Receive(t.Context(), 100-got)
		testutil.Must(t, err)
		if len(list) != 10 {
			t.Fatalf("%d messages", len(list))
		}
	}
	testutil.Must(t, b.Close())
}

// until waits for a state that is guarded by mu. The state must last until the test goes on.
func until(mu *sync.Mutex, reached func() bool) {
	for done := false; !done; runtime.Gosched() {
		mu.Lock()
		done = reached()
		mu.Unlock()
	}
}

// A new leader hands out a message before it knows that this node has acknowledged the message. The node does not
// deliver the message a second time, and ends the lease. A lease after the acknowledgement is a replay, which the node
// delivers.
func TestSubscription_HandedOutBeforeAcknowledgement(t *testing.T) {
	f := newScriptedLeader()
	f.leases = 7
	l := newLinkTo(t, f)
	s := l.subscribe(t, 1)
	value := append(make([]byte, 8), encodeMessage(&pubsub.Message{ID: "1"})...)
	hand := func(number, lease uint64) Answer {
		return Answer{Number: number, List: []Handed{{ID: 1, Offset: 5, Attempt: 1, Lease: lease, Value: value}}}
	}
	f.pulls <- hand(1, 3)
	list, err := s.Receive(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	until(&f.mu, func() bool { return f.waiting == 2 })
	if err := s.Settle(t.Context(), &list[0], pubsub.Acknowledged); err != nil {
		t.Fatal(err)
	}
	<-f.settled
	until(&l.mu, func() bool { return len(l.done) == 1 })
	f.pulls <- hand(2, 6)
	if again := <-f.settled; again.Offset != 5 || again.Outcome != pubsub.Acknowledged {
		t.Errorf("the second lease ends with %+v", again)
	}
	f.pulls <- hand(3, 8)
	if list, err = s.Receive(t.Context(), 1); err != nil || list[0].Ref != "0-5" {
		t.Errorf("replayed: %v, %v", list, err)
	}
}

// readOnly is a leader that fails every pull except the twentieth.
type readOnly struct {
	records.Access
	pulls int
}

func (l *readOnly) Ask(_ context.Context, gid uint32, _ string, body []byte) ([]byte, bool, error) {
	c, err := readCall(&lenprefix.Reader{Rest: body}, gid)
	if err != nil || c.what != callPull {
		return []byte{1}, false, err
	}
	if l.pulls++; l.pulls == 20 {
		return appendAnswer([]byte{1}, &Answer{}), false, nil
	}
	return nil, false, fault.New(fault.ReadOnly, "test", "the group is read-only")
}

// When pulls keep failing for the same reason, the link logs the reason once. After a successful pull, it logs the
// reason again.
func TestLink_LogsAReasonOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		leader := &readOnly{}
		b := NewBroker(leader, "s", BrokerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		newLink(b, 0).subscribe(t, 1)
		<-time.After(time.Minute)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "cannot be received"); n != 2 || leader.pulls < 40 {
			t.Errorf("%d lines about %d pulls: %s", n, leader.pulls, log.String())
		}
	})
}

// corruptGroup is a leader that cannot read the records of one consumer group.
type corruptGroup struct {
	records.Access
	mu      sync.Mutex
	group   string // "" = the leader can read all groups
	settled []Settle
	calls   int
}

func (l *corruptGroup) Ask(_ context.Context, gid uint32, _ string, body []byte) ([]byte, bool, error) {
	c, err := readCall(&lenprefix.Reader{Rest: body}, gid)
	if err != nil {
		return nil, false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	for i := range c.settles {
		if c.settles[i].Group == l.group {
			return nil, false, fault.New(fault.Corrupt, "test", "a record cannot be decoded")
		}
	}
	l.settled = append(l.settled, c.settles...)
	return appendAnswer([]byte{1}, &Answer{}), false, nil
}

// The leader cannot read one consumer group. The outcomes of other groups reach the leader, although some of them
// shared a call with outcomes of the bad group. The outcomes of the bad group are repeated until the leader can read
// the group.
func TestLink_CorruptGroupHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader := &corruptGroup{group: "bad"}
		b := NewBroker(leader, "s", BrokerOptions{})
		l := newLink(b, 0)
		answered := map[string]int{}
		send := func(groups ...string) {
			l.mu.Lock()
			for _, g := range groups {
				l.queue = append(l.queue, outgoing{settle: Settle{Topic: orders, Group: g},
					sent: func(uint64) { l.mu.Lock(); answered[g]++; l.mu.Unlock() }})
			}
			l.start()
			l.mu.Unlock()
		}
		for range maxCalls {
			send("bad")
		}
		send("good", "bad", "good", "bad")
		l.send(outgoing{leave: 1})
		send("good")
		<-time.After(time.Minute)
		leader.mu.Lock()
		l.mu.Lock()
		if answered["good"] != 3 || answered["bad"] != 0 || len(leader.settled) != 3 {
			t.Errorf("answered: %v; stored: %v", answered, leader.settled)
		}
		leader.group = ""
		leader.mu.Unlock()
		l.mu.Unlock()
		<-time.After(time.Second)
		testutil.Must(t, b.Close())
		if answered["bad"] != maxCalls+2 || len(leader.settled) != maxCalls+5 {
			t.Errorf("answered: %v; stored: %d", answered, len(leader.settled))
		}
	})
}

package topics

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Names of operations, for errors.
const (
	opPublish   = "topics.Publish"
	opSubscribe = "topics.Subscribe"
	opSettle    = "topics.Settle"
	opReceive   = "topics.Receive"
)

// Defaults of a consumer group.
const (
	defaultConcurrency = 10
	defaultBackoff     = time.Second
)

// Bounds of sessions.
const (
	maxConcurrency = 1000
	maxWindow      = 2 * maxConcurrency
	maxSessions    = 10_000 // sessions of one Raft group
	maxMembers     = 10_000 // subscriptions of one session
	maxPull        = 256    // messages in one answer
	maxPullBytes   = 1 << 20

	maxMemberBytes = 16 << 20 // bytes of the messages that a member has; the last message may exceed it
)

// single is the name of the queue of a group with concurrency 1. The messages of the queue are delivered one after
// another, and have this name as their Sequence.
const single = "*"

// session contains the subscriptions of one Broker in this Raft group. It ends when there was no pull for sessionLife.
type session struct {
	id      string
	members map[uint64]*member
	out     []handed // messages that are leased to its members, and not sent yet
	// last is the newest answer, until the node confirms it. If the answer was lost, the next pull returns it again.
	last    []Handed
	answers uint64 // number of the newest answer; greater than those of earlier sessions
	wake    chan struct{}
	ended   chan struct{}
	pulls   int         // pulls that wait
	expiry  func() bool // stops the timer that ends the session
}

// member is one subscription of a session.
type member struct {
	session     *session
	id          uint64
	c           *consumer
	window      int // messages that the member may have at a time
	outstanding int // messages that the member has
	bytes       int // sizes of these messages, as far as they were read
}

// hasRoom reports whether the member may get another message.
func (m *member) hasRoom() bool { return m.outstanding < m.window && m.bytes < maxMemberBytes }

// lease gives a message to the member. number is the number of the lease.
func (m *member) lease(i *item, number uint64) {
	i.lease, i.number = m, number
	m.outstanding++
	m.bytes += i.size
}

type handed struct {
	member *member
	offset uint64
}

func (s *session) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *session) hasAll(subscriptions []uint64) bool {
	for _, id := range subscriptions {
		if s.members[id] == nil {
			return false
		}
	}
	return true
}

// end makes the pulls of a session return. The caller removes the session from the Keeper.
func (s *session) end() {
	if s.expiry != nil {
		s.expiry()
	}
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
}

// Join describes a subscription that a node adds to its session.
type Join struct {
	ID           uint64 // of the subscription, within the session
	Topic        Topic
	Group        string
	Concurrency  int // keys that the group handles at a time; 1 = strict order
	Window       int // messages that the subscription may have at a time
	RetryBackoff time.Duration
	Newest       bool          // a new group begins after the newest message
	GroupTTL     time.Duration // a group that is not used for this time ends; 0 = it does not end
}

// check returns an error if a field of j is out of bounds. The fields come from another node. group is the Raft group
// of this Keeper.
func (j *Join) check(group uint32) error {
	if err := checkNames(opSubscribe, j.Topic.Name, j.Group); err != nil {
		return err
	}
	if j.Topic.Group != group || j.Group == "" || j.Concurrency < 1 || j.Concurrency > maxConcurrency || j.Window < 1 ||
		j.Window > maxWindow || j.RetryBackoff < time.Millisecond || j.RetryBackoff > lastBackoff || j.GroupTTL < 0 ||
		j.GroupTTL > maxGroupTTL || j.GroupTTL%time.Millisecond != 0 {
		return fault.New(fault.Invalid, opSubscribe, "a subscription has bounds that this server does not accept")
	}
	return nil
}

// Join adds a subscription to the session with the given id. It creates the consumer group if it does not exist. fresh
// permits Join to create the session. Without fresh, Join returns false if the session does not exist.
//
// A second Join of the same subscription changes its window. Each Join also sets the concurrency, the backoff and the
// time to live of the consumer group.
func (k *Keeper) Join(ctx context.Context, id string, fresh bool, j *Join) (known bool, err error) {
	if err := j.check(k.opts.Group); err != nil {
		return false, err
	}
	for {
		known, g, err := k.join(id, fresh, j)
		if g == nil {
			return known, err
		}
		op := command.Op{Kind: command.OpSet, Cond: command.CondAbsent, Store: kv.TopicStore,
			Key: j.Topic.key(tableGroup, j.Group)}
		begin := cursor{used: g.Now(), ttl: uint64(j.GroupTTL.Milliseconds())} //nolint:gosec // checked
		if j.Newest {
			if err := g.Confirm(ctx); err != nil {
				return false, err
			}
			begin.upto = g.Machine().Revision()
		}
		op.Value = begin.encode()
		ops, whole, err := leftovers(g.Machine(), j.Topic, j.Group)
		if err != nil {
			return false, err
		}
		if whole {
			fence, err := trimFence(g.Machine(), j.Topic)
			if err != nil {
				return false, err
			}
			ops = append(ops, fence)
		} else {
			op = command.Op{Kind: command.OpCheck, Cond: command.CondAbsent, Store: op.Store, Key: op.Key}
		}
		// A conflict means that another node has created the group, or that retention has removed messages.
		ops = append(ops, op)
		if _, err := g.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: ops}); err != nil {
			return false, err
		}
	}
}

// leftovers returns the operations that remove the parked records of a group that does not exist. Such records remain
// after an incomplete removal of a group. whole is false if one request cannot remove all of them.
func leftovers(m *kv.Machine, t Topic, group string) (ops []command.Op, whole bool, err error) {
	found, more, err := m.List(kv.TopicStore, t.parkedPrefix(group), "", maxBack, 0)
	for i := range found {
		ops = append(ops, command.Op{Kind: command.OpDelete, Store: kv.TopicStore, Key: found[i].Key})
	}
	return ops, !more, err
}

// join adds a subscription to a session. If the consumer group does not exist, join returns the Raft group in which the
// caller must create it before it calls join again. In all other cases, g is nil.
func (k *Keeper) join(id string, fresh bool, j *Join) (known bool, g records.Group, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lead(opSubscribe); err != nil {
		return false, nil, err
	}
	s := k.sessions[id]
	if s == nil && !fresh {
		return false, nil, nil
	}
	c, err := k.consumer(k.topic(j.Topic), j.Group)
	if err != nil {
		return false, nil, err
	}
	if c == nil {
		return false, k.group, nil
	}
	if s == nil {
		if len(k.sessions) >= maxSessions {
			return false, nil, fault.New(fault.Overloaded, opSubscribe, "too many nodes receive messages")
		}
		s = &session{id: id, members: map[uint64]*member{}, wake: make(chan struct{}, 1),
			ended: make(chan struct{}), answers: k.firstAnswer()}
		k.sessions[id] = s
		k.expireLater(s)
	}
	m := s.members[j.ID]
	switch {
	case m != nil && m.c == c:
	case m != nil || len(s.members) >= maxMembers:
		return false, nil, fault.New(fault.Invalid, opSubscribe, "the session has another subscription with this id, "+
			"or too many subscriptions")
	default:
		m = &member{session: s, id: j.ID, c: c}
		s.members[j.ID] = m
		c.members = append(c.members, m)
	}
	m.window, c.backoff = j.Window, j.RetryBackoff
	c.lifetime = uint64(j.GroupTTL.Milliseconds()) //nolint:gosec // checked
	if now := k.group.Now(); c.lifetime > 0 || c.ttl > 0 {
		c.use = c.use || c.needsUse(now)
		k.lookBy(c.t, now+useStep(max(c.lifetime, 1)))
	}
	if c.concurrency != j.Concurrency {
		before := c.concurrency
		c.concurrency = j.Concurrency
		if err := c.regroup(k.machine); err != nil {
			c.concurrency = before // so that the next Join tries again
			return false, nil, err
		}
		c.rebuild()
	}
	k.advance(c)
	return true, nil, nil
}

// firstAnswer returns the number from which a new session counts its answers. A node may still confirm an answer of an
// earlier session. Therefore the numbers must differ from the numbers of all earlier sessions, at this server or at an
// earlier leader. This also applies to sessions that begin in the same millisecond. The caller holds k.mu.
func (k *Keeper) firstAnswer() uint64 {
	return max(k.group.Now()<<20+k.term%1024<<10, k.answered)
}

// expireLater starts a timer that ends a session after sessionLife. The next pull stops the timer.
func (k *Keeper) expireLater(s *session) {
	s.expiry = k.after(sessionLife, func() {
		if k.sessions[s.id] == s && s.pulls == 0 {
			k.endSession(s)
		}
	})
}

// endSession ends a session and the leases of its members. The caller holds k.mu.
func (k *Keeper) endSession(s *session) {
	s.end()
	k.answered = max(k.answered, s.answers)
	delete(k.sessions, s.id)
	for _, id := range slices.Sorted(maps.Keys(s.members)) {
		k.leave(s, id)
	}
}

// Leave ends a subscription. Its messages are delivered to other subscriptions of the group.
func (k *Keeper) Leave(id string, subscription uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lead(opSubscribe); err != nil {
		return err
	}
	if s := k.sessions[id]; s != nil {
		k.leave(s, subscription)
	}
	return nil
}

func (k *Keeper) leave(s *session, id uint64) {
	m := s.members[id]
	if m == nil {
		return
	}
	delete(s.members, id)
	c := m.c
	c.members = slices.DeleteFunc(c.members, func(o *member) bool { return o == m })
	for _, i := range c.sorted() {
		if i.lease == m {
			c.giveBack(i)
		}
	}
	k.advance(c)
	k.dropIdle(c)
}

// Answer is the answer to a pull, which Keeper.Pull returns.
type Answer struct {
	Number uint64 // of the answer, which the next pull confirms; 0 = there were no messages
	List   []Handed
}

// Handed is a message that a pull returns.
type Handed struct {
	ID       uint64 // of the subscription
	Offset   uint64
	Attempt  uint64 // 1 = the first attempt
	Lease    uint64 // a later lease has a greater number
	Serial   bool   // the group handles one message at a time
	Value    []byte // the stored message; see decodeMessage
	ExpireAt uint64 // cluster time; 0 = never
}

// Pull returns the next messages for a session. If there are none, it waits, and returns an empty answer after
// pullPatience. The node then pulls again, which keeps its session alive.
//
// received is the number of the last answer that the node has received; 0 = none. subscriptions are the ids of the
// subscriptions of the session. The result known is false if this leader does not know the session or one of these
// subscriptions.
func (k *Keeper) Pull(ctx context.Context, id string, received uint64, subscriptions []uint64) (a Answer, known bool,
	err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lead(opReceive); err != nil {
		return a, false, err
	}
	s := k.sessions[id]
	if s == nil || !s.hasAll(subscriptions) {
		return a, false, nil
	}
	if s.pulls++; s.expiry != nil {
		s.expiry()
	}
	defer func() {
		if s.pulls--; s.pulls == 0 && k.sessions[id] == s {
			k.expireLater(s)
		}
	}()
	enough := make(chan struct{})
	stop := k.opts.AfterFunc(pullPatience, func() { close(enough) })
	defer stop()
	for {
		if received == s.answers {
			s.last = nil
		}
		if s.last == nil {
			if s.last, err = k.take(s); err != nil && s.last == nil {
				return a, false, err
			}
			if s.last != nil {
				s.answers++
			}
		}
		if s.last != nil {
			return k.handOut(ctx, s)
		}
		k.mu.Unlock()
		select {
		case <-s.wake:
		case <-enough:
			k.mu.Lock()
			return a, true, nil
		case <-ctx.Done():
			err = fault.Wrap(ctx.Err(), opReceive, "the pull was given up")
		case <-s.ended:
			err = errNotLeader(opReceive)
		}
		k.mu.Lock()
		if err == nil && k.sessions[id] != s { // the session ended at the moment of the wake-up
			err = errNotLeader(opReceive)
		}
		if err != nil {
			s.rouse() // wake another pull of the session instead
			return a, false, err
		}
	}
}

// take removes the next messages from the queue of a session, and returns them. If a read fails, take returns the
// messages read so far together with the error.
func (k *Keeper) take(s *session) (taken []Handed, err error) {
	size, now := 0, k.group.Now()
	for len(s.out) > 0 && len(taken) < maxPull && size < maxPullBytes {
		h := s.out[0]
		c := h.member.c
		i := c.items[h.offset]
		if i == nil || i.lease != h.member || i.over() {
			s.out = s.out[1:]
			continue
		}
		value := i.value
		if value == nil {
			v, err := k.machine.Get(kv.TopicStore, c.t.messageKey(i.offset), 0)
			if err != nil {
				s.out = append(s.out[1:], h) // so that the message does not block the others
				return taken, err
			}
			value, i.expireAt = v.Value, v.ExpireAt
			if !v.Found {
				value = nil
			}
		}
		s.out = s.out[1:]
		if value == nil || i.expireAt != 0 && i.expireAt <= now {
			c.finish(i, &settlement{kind: settleDone})
			k.advance(c)
			continue
		}
		c.free(i)
		if i.size == 0 { // the item was parked, so it was leased before its size was known
			full := h.member.bytes >= maxMemberBytes
			if full {
				c.giveBack(i)
			}
			if i.size = len(value); full {
				k.advance(c)
				continue
			}
			h.member.bytes += i.size
		}
		size += len(value)
		taken = append(taken, Handed{ID: h.member.id, Offset: i.offset, Attempt: i.attempts + 1,
			Lease: i.number, Serial: c.concurrency == 1, Value: value, ExpireAt: i.expireAt})
	}
	return taken, nil
}

// handOut returns the newest answer of a session after a majority has confirmed that this server leads. It leaves out
// messages that were settled or leased again in the meantime. If it returns an error, the next pull gets the messages.
// The caller holds k.mu, which handOut releases while it waits.
func (k *Keeper) handOut(ctx context.Context, s *session) (a Answer, known bool, err error) {
	taken, number, g, term := s.last, s.answers, k.group, k.term
	k.mu.Unlock()
	err = g.Confirm(ctx)
	k.mu.Lock()
	if err == nil && (k.sessions[s.id] != s || g.Term() != term) { // the memory may be that of an earlier term
		err = errNotLeader(opReceive)
	}
	if err != nil {
		return a, false, err
	}
	a.Number = number
	var given []*consumer
	for i := range taken {
		m := s.members[taken[i].ID]
		if m == nil {
			continue // the subscription has left
		}
		one := m.c.items[taken[i].Offset]
		if one == nil || one.lease != m || one.number != taken[i].Lease || one.over() {
			continue // settled or leased again in the meantime
		}
		var done bool
		if done, err = k.acknowledged(m.c, one); err != nil {
			break // the next pull tries again
		}
		if done {
			given = append(given, m.c)
			continue
		}
		if taken[i].Attempt > 1 {
			k.total(m.c).Redelivered++
		}
		k.total(m.c).Delivered++
		a.List = append(a.List, taken[i])
	}
	for _, c := range given {
		k.advance(c)
	}
	return a, true, err
}

// Settle is the outcome of a delivery.
type Settle struct {
	Topic   Topic
	Group   string
	Offset  uint64
	Attempt uint64 // of the delivery
	Lease   uint64 // of the delivery
	Outcome pubsub.Outcome
	// DeadLetter is the topic to which the message moves; empty = none. The outcome is then Acknowledged.
	DeadLetter string
}

// Settle records the outcomes of deliveries. It waits until all outcomes that must be stored are in the log. When
// Settle has returned nil, the node can forget the deliveries, because a later leader also knows these outcomes.
//
// An outcome has no effect if the message is already settled. Any session can acknowledge a message. While a session
// has a message, no other session can report that the message has failed, is released or is a dead letter.
//
// Each delivery has a numbered lease. leases is the number of the newest lease at the time of the call. After a message
// is settled, it gets a newer lease only after a replay.
func (k *Keeper) Settle(ctx context.Context, id string, list []Settle) (leases uint64, err error) {
	k.mu.Lock()
	w, logged, err := k.settle(id, list)
	leases = k.leases
	g, term := k.group, k.term
	k.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if !logged { // a deposed leader must not answer, because the present leader may wait for the outcome
		if err = g.Confirm(ctx); err == nil && g.Term() != term {
			err = errNotLeader(opSettle)
		}
		if err != nil {
			return 0, err
		}
	}
	select {
	case <-w.done:
		return leases, w.err
	case <-ctx.Done():
		return 0, fault.Wrap(ctx.Err(), opSettle, "the outcome is not stored yet")
	}
}

// settle notes outcomes in memory, and queues those that must be stored in the log. w is done when the log has all of
// them. logged is false if at least one outcome is not stored, for example because it is pubsub.Released. The caller
// holds k.mu.
func (k *Keeper) settle(id string, list []Settle) (w *waiter, logged bool, err error) {
	if err := k.lead(opSettle); err != nil {
		return nil, false, err
	}
	var touched []*consumer
	w, logged = &waiter{left: 1, done: make(chan struct{})}, true
	for n := range list {
		st := &list[n]
		if err := st.check(k.opts.Group); err != nil {
			return nil, false, err
		}
		c, err := k.consumer(k.topic(st.Topic), st.Group)
		if err != nil {
			return nil, false, err
		}
		if c == nil {
			logged = false
			continue // the group was deleted
		}
		if !slices.Contains(touched, c) {
			touched = append(touched, c)
		}
		i, err := c.unsettled(k.machine, st.Offset, k.group.Now())
		if err != nil {
			return nil, false, err
		}
		if i == nil || !c.settleOne(i, id, st, w, k.group.Now()) {
			logged = false
		}
	}
	for _, c := range touched {
		k.advance(c)
		k.dropIdle(c)
	}
	w.end(nil)
	return w, logged, nil
}

// check returns an error if a field of st is out of bounds. The fields come from another node. group is the Raft group
// of this Keeper.
func (st *Settle) check(group uint32) error {
	if st.Topic.Group != group {
		return fault.New(fault.Invalid, opSettle, "the delivery is from another group")
	}
	if err := checkNames(opSettle, st.Topic.Name, st.Group); err != nil || st.DeadLetter == "" {
		return err
	}
	return checkNames(opSettle, st.DeadLetter, "")
}

// settleOne notes the outcome of one delivery, and makes w wait until the log has the outcome. logged is false if the
// outcome is not stored in the log.
func (c *consumer) settleOne(i *item, session string, st *Settle, w *waiter, now uint64) (logged bool) {
	switch {
	case i.over():
		w.add(i.pending)
	case st.Outcome == pubsub.Acknowledged && st.DeadLetter == "": // also if the lease has ended
		s := &settlement{kind: settleDone}
		c.finish(i, s)
		w.add(s)
	case i.attempts+1 != st.Attempt:
		// The call is repeated: the failure of this attempt is noted already.
		if i.pending == nil {
			return false
		}
		w.add(i.pending)
	case i.lease != nil && i.lease.session.id != session:
		return false // another session has the message by now
	case st.DeadLetter != "":
		s := &settlement{kind: settleDead, topic: st.DeadLetter}
		c.finish(i, s)
		w.add(s)
	case st.Outcome == pubsub.Released:
		if i.number == st.Lease { // otherwise the call is repeated, and the message was leased again
			c.giveBack(i)
		}
		return false
	default:
		w.add(c.failed(i, now))
	}
	return true
}

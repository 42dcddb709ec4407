package topics

import (
	"context"
	"slices"
	"time"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// The operations in errors.
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
	maxSessions    = 10_000 // of one group
	maxMembers     = 10_000 // of one session
	maxPull        = 256    // messages of one answer
	maxPullBytes   = 1 << 20

	maxMemberBytes = 16 << 20 // of the messages that a member has; the last one may exceed it
)

// single is the sequence of all messages of a group with concurrency 1.
const single = "*"

// session is a node that receives messages. It ends when the node does not pull for sessionLife.
type session struct {
	id      string
	members map[uint64]*member
	out     []handed // leased to its members, and not sent yet
	// last is the newest answer until the node reports that it has it. Then a lost answer is sent again.
	last    []Handed
	answers uint64 // number of the newest answer; greater than those of earlier sessions
	wake    chan struct{}
	ended   chan struct{}
	pulls   int // that wait
	expiry  func() bool
}

// member is one subscription of a session.
type member struct {
	session     *session
	id          uint64
	c           *consumer
	window      int // messages that it may have
	outstanding int // messages that it has
	bytes       int // of these messages, as far as they were read
}

// hasRoom reports whether the member may get another message.
func (m *member) hasRoom() bool { return m.outstanding < m.window && m.bytes < maxMemberBytes }

// lease gives a message to the member.
func (m *member) lease(i *item) {
	i.lease = m
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

// end makes the pulls of a session return. The caller removes it from the Keeper.
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

// Join is a wish to receive messages.
type Join struct {
	ID           uint64 // of the subscription, within the session
	Topic        Topic
	Group        string
	Concurrency  int // keys that the group handles at a time; 1 = strict order
	Window       int // messages that the subscription may have at a time
	RetryBackoff time.Duration
	Newest       bool // a new group begins after the newest message
}

// check bounds what another node has sent.
func (j *Join) check(group uint32) error {
	if err := checkNames(opSubscribe, j.Topic.Name, j.Group); err != nil {
		return err
	}
	if j.Topic.Group != group || j.Group == "" || j.Concurrency < 1 || j.Concurrency > maxConcurrency || j.Window < 1 ||
		j.Window > maxWindow || j.RetryBackoff < time.Millisecond || j.RetryBackoff > lastBackoff {
		return fault.New(fault.Invalid, opSubscribe, "a subscription has bounds that this server does not accept")
	}
	return nil
}

// Join adds a subscription to a session. If the session does not exist, Join creates it if fresh is true, and otherwise
// returns false. Join creates the consumer group if it does not exist. A second Join of the same subscription changes
// its window.
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
		begin := cursor{}
		if j.Newest {
			if err := g.Confirm(ctx); err != nil {
				return false, err
			}
			begin.upto = g.Machine().Revision()
		}
		op.Value = begin.encode()
		// A conflict means that another node has created the group.
		if _, err := g.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: []command.Op{op}}); err != nil {
			return false, err
		}
	}
}

// join returns the Raft group if the consumer group must be created first.
func (k *Keeper) join(id string, fresh bool, j *Join) (known bool, g Group, err error) {
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
			ended: make(chan struct{}), answers: k.group.Now() << 20}
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
	if c.concurrency != j.Concurrency {
		c.concurrency = j.Concurrency
		c.rebuild()
	}
	return true, nil, k.advance(c)
}

// expireLater ends a session that has no pull in sessionLife.
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
	delete(k.sessions, s.id)
	ids := make([]uint64, 0, len(s.members))
	for id := range s.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		k.leave(s, id)
	}
}

// Leave ends a subscription. Its messages are delivered to other members.
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
	if err := k.advance(c); err != nil {
		k.failed(err)
	}
	k.dropIdle(c)
}

// Answer is the answer to a pull.
type Answer struct {
	Number uint64 // the next pull names it; 0 = List is empty
	List   []Handed
}

// Handed is a message that a pull returns.
type Handed struct {
	ID       uint64 // of the subscription
	Offset   uint64
	Attempt  uint64 // 1 = the first
	Serial   bool   // the group handles one message at a time
	Value    []byte // as stored
	ExpireAt uint64 // cluster time; 0 = never
}

// Pull waits for messages of a session. received is the number of the last answer that the node has; 0 = none. The
// result known is false if this leader does not know the session. Pull returns no message after a while, so that the
// caller shows that it lives.
func (k *Keeper) Pull(ctx context.Context, id string, received uint64) (a Answer, known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lead(opReceive); err != nil {
		return a, false, err
	}
	s := k.sessions[id]
	if s == nil {
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
			if s.last, err = k.take(s); err != nil {
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
		if err != nil {
			s.rouse() // another pull of the session
			return a, false, err
		}
	}
}

// take returns the messages that wait for a session.
func (k *Keeper) take(s *session) (taken []Handed, err error) {
	size, now := 0, k.group.Now()
	for len(s.out) > 0 && len(taken) < maxPull && size < maxPullBytes {
		h := s.out[0]
		s.out = s.out[1:]
		c := h.member.c
		i := c.items[h.offset]
		if i == nil || i.lease != h.member || i.over() {
			continue
		}
		value := i.value
		if value == nil {
			v, err := k.machine.Get(kv.TopicStore, c.t.messageKey(i.offset), 0)
			if err != nil {
				return nil, err
			}
			value, i.expireAt = v.Value, v.ExpireAt
			if !v.Found {
				value = nil
			}
		}
		if value == nil || i.expireAt != 0 && i.expireAt <= now {
			c.finish(i, &settlement{kind: settleDone})
			if err := k.advance(c); err != nil {
				return nil, err
			}
			continue
		}
		c.free(i)
		if i.size == 0 { // it was parked, so it was not read before
			i.size = len(value)
			h.member.bytes += i.size
		}
		size += len(value)
		taken = append(taken, Handed{ID: h.member.id, Offset: i.offset, Attempt: i.attempts + 1,
			Serial: c.concurrency == 1, Value: value, ExpireAt: i.expireAt})
	}
	return taken, nil
}

// handOut returns the last answer of a session once a majority has confirmed that this server leads. Otherwise the
// messages are given back. The caller holds k.mu.
func (k *Keeper) handOut(ctx context.Context, s *session) (a Answer, known bool, err error) {
	taken, number, g := s.last, s.answers, k.group
	k.mu.Unlock()
	err = g.Confirm(ctx)
	k.mu.Lock()
	if k.sessions[s.id] != s {
		return a, false, errNotLeader(opReceive)
	}
	a.Number = number
	var given []*consumer
	for i := range taken {
		m := s.members[taken[i].ID]
		if m == nil {
			continue // it has left
		}
		one := m.c.items[taken[i].Offset]
		if one == nil || one.lease != m || one.attempts+1 != taken[i].Attempt {
			continue // settled or leased again in the meantime
		}
		if err != nil {
			m.c.giveBack(one)
			given = append(given, m.c)
			continue
		}
		if taken[i].Attempt > 1 {
			k.total(m.c).Redelivered++
		}
		k.total(m.c).Delivered++
		a.List = append(a.List, taken[i])
	}
	if err != nil && s.answers == number {
		s.last = nil
	}
	for _, c := range given {
		if again := k.advance(c); again != nil {
			k.failed(again)
		}
	}
	return a, true, err
}

// Settle is the outcome of a delivery.
type Settle struct {
	Topic   Topic
	Group   string
	Offset  uint64
	Attempt uint64 // of the delivery
	Outcome pubsub.Outcome
	// DeadLetter is the topic to which the message moves; empty = none. The outcome is then Acknowledged.
	DeadLetter string
}

// Settle notes the outcomes of deliveries, and waits until they are in the log. So a node that has received nil can
// forget the deliveries: a later leader knows their outcome, too. The outcome of a message that is settled already
// changes nothing. Only the session that has a message can say that it has failed or that it is released.
func (k *Keeper) Settle(ctx context.Context, id string, list []Settle) error {
	k.mu.Lock()
	g := k.group
	w, released, err := k.settle(id, list)
	k.mu.Unlock()
	if err != nil {
		return err
	}
	if released { // nothing of it is in the log, so a deposed leader must not answer
		if err := g.Confirm(ctx); err != nil {
			return err
		}
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), opSettle, "the outcome is not stored yet")
	}
}

func (k *Keeper) settle(id string, list []Settle) (w *waiter, released bool, err error) {
	if err := k.lead(opSettle); err != nil {
		return nil, false, err
	}
	var touched []*consumer
	w = &waiter{left: 1, done: make(chan struct{})}
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
			continue // the group was deleted
		}
		if !slices.Contains(touched, c) {
			touched = append(touched, c)
		}
		i := c.items[st.Offset]
		if i == nil && st.Offset > c.read {
			if err := c.readUntil(k.machine, st.Offset, k.group.Now()); err != nil {
				return nil, false, err
			}
			i = c.items[st.Offset]
		}
		if i != nil {
			released = released || st.Outcome == pubsub.Released
			c.settleOne(i, id, st, w, k.group.Now())
		}
	}
	for _, c := range touched {
		if err := k.advance(c); err != nil {
			return nil, false, err
		}
		k.dropIdle(c)
	}
	w.end(nil)
	return w, released, nil
}

// check bounds what another node has sent.
func (st *Settle) check(group uint32) error {
	if st.Topic.Group != group {
		return fault.New(fault.Invalid, opSettle, "the delivery is from another group")
	}
	if err := checkNames(opSettle, st.Topic.Name, st.Group); err != nil || st.DeadLetter == "" {
		return err
	}
	return checkNames(opSettle, st.DeadLetter, "")
}

// settleOne notes one outcome. w then waits for it.
func (c *consumer) settleOne(i *item, session string, st *Settle, w *waiter, now uint64) {
	switch {
	case i.over():
		w.add(i.pending)
	case st.Outcome == pubsub.Acknowledged:
		s := &settlement{kind: settleDone}
		if st.DeadLetter != "" {
			s = &settlement{kind: settleDead, topic: st.DeadLetter}
		}
		c.finish(i, s)
		w.add(s)
	case i.attempts+1 != st.Attempt:
		// A repeated call: it has failed already.
		if i.pending != nil {
			w.add(i.pending)
		}
	case i.lease != nil && i.lease.session.id != session:
		// Another member has it by now.
	case st.Outcome == pubsub.Released:
		c.giveBack(i)
	default:
		w.add(c.failed(i, now))
	}
}

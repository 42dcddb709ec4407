package topics

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// linkPause is the pause after a call that has failed.
const linkPause = 100 * time.Millisecond

// maxCalls bounds how many calls with settlements of one link are in flight.
const maxCalls = 8

// link is the session of a Broker in one Raft group. Each pull lists the subscriptions of the link. If the leader does
// not know all of them, the link adds all of them again. For example, a new leader may know only one subscription,
// which a delayed call has added.
type link struct {
	b       *Broker
	gid     uint32
	session string

	mu      sync.Mutex
	subs    map[uint64]*subscription
	sorted  []*subscription // subs in the order of their ids; replaced, never changed; nil = must be sorted again
	started bool            // the goroutine of run was started
	added   chan struct{}   // closed while there is a subscription
	queue   []outgoing      // not sent yet
	pulls   uint64          // pulls that have begun
	done    []forgotten     // settled deliveries, until the pull ends that was in flight when they were settled
	calls   int             // calls in flight that send parts of queue
	leaving bool            // one of these calls ends a subscription
}

// outgoing is a settlement, or the end of a subscription if leave is not 0.
type outgoing struct {
	leave  uint64 // id of the subscription that ends
	settle Settle
	sent   func(leases uint64) // called with the result of Keeper.Settle after the call; may be nil
	apart  bool                // send it only with settlements of the same consumer group; see refused
}

// goesWith reports whether two settlements may be in one call.
func (o *outgoing) goesWith(p *outgoing) bool {
	return o.leave == 0 && p.leave == 0 && o.apart == p.apart && (!o.apart || o.compareGroup(p) == 0)
}

func (o *outgoing) compareGroup(p *outgoing) int {
	return cmp.Or(cmp.Compare(o.settle.Topic.Name, p.settle.Topic.Name), cmp.Compare(o.settle.Group, p.settle.Group))
}

// forgotten is a settled delivery that the node remembers until the pull in flight has ended. The answer to that pull
// may contain the message again.
type forgotten struct {
	s    *subscription
	h    *held
	pull uint64 // number of that pull
}

// forget removes a settled delivery from its subscription when the pull in flight has ended.
func (l *link) forget(s *subscription, h *held) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = append(l.done, forgotten{s, h, l.pulls})
}

// pulled drops the deliveries that were settled before the newest pull ended. It is called after each pull.
func (l *link) pulled() {
	l.mu.Lock()
	n := 0
	for n < len(l.done) && l.done[n].pull <= l.pulls {
		n++
	}
	over := l.done[:n]
	l.done = l.done[n:]
	l.mu.Unlock()
	for i := range over {
		over[i].s.drop(over[i].h)
	}
}

func newLink(b *Broker, gid uint32) *link {
	return &link{b: b, gid: gid, session: newSession(), subs: map[uint64]*subscription{}, added: make(chan struct{})}
}

// subscriptions returns the subscriptions in the order of their ids. All callers share the list, so they must not
// change it.
func (l *link) subscriptions() []*subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sorted != nil {
		return l.sorted
	}
	list := make([]*subscription, 0, len(l.subs))
	for _, s := range l.subs {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *subscription) int { return int(a.id) - int(b.id) }) //nolint:gosec // few
	l.sorted = list
	return list
}

func (l *link) ask(ctx context.Context, c *call) (known bool, a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.session = l.session
	out, _, err := l.b.access.Ask(ctx, l.gid, c.method(), c.append())
	if err != nil {
		return false, a, err
	}
	return readAnswer(out)
}

// join adds a subscription to the session at the leader. fresh permits the leader to create the session. Without fresh,
// join returns false if the leader does not know the session.
func (l *link) join(ctx context.Context, s *subscription, fresh bool) (known bool, err error) {
	s.mu.Lock()
	j := Join{ID: s.id, Topic: Topic{Group: l.gid, Store: l.b.store, Name: s.topic}, Group: s.group,
		Concurrency: s.concurrency, Window: s.window, RetryBackoff: l.b.opts.Backoff, Newest: s.newest,
		GroupTTL: s.groupTTL}
	s.mu.Unlock()
	known, _, err = l.ask(ctx, &call{what: callJoin, fresh: fresh, join: j})
	return known, err
}

// add adds a new subscription to the link, and to the session at the leader. After an error, the subscription stays in
// the link until remove is called.
func (l *link) add(ctx context.Context, s *subscription) error {
	l.mu.Lock()
	l.subs[s.id] = s // before the leader knows the subscription, because messages can come at once
	l.sorted = nil
	if len(l.subs) == 1 {
		close(l.added)
	}
	if !l.started {
		l.started = true
		l.b.running.Go(l.run)
	}
	l.mu.Unlock()
	_, err := l.join(ctx, s, true)
	return err
}

// remove removes a subscription from the link, and makes the leader remove it from the session.
func (l *link) remove(s *subscription) {
	l.mu.Lock()
	if l.subs[s.id] != nil {
		delete(l.subs, s.id)
		l.sorted = nil
		if len(l.subs) == 0 {
			l.added = make(chan struct{})
		}
	}
	l.mu.Unlock()
	l.send(outgoing{leave: s.id})
}

// run pulls messages while there are subscriptions. It returns when the broker closes.
func (l *link) run() {
	ctx, received := l.b.pulling, uint64(0)
	var refused map[uint64]bool // subscriptions that the leader has just refused; the next pull leaves them out
	logged := ""                // the reason why the last call failed
	for {
		l.mu.Lock()
		added := l.added
		l.mu.Unlock()
		select {
		case <-added:
		case <-ctx.Done():
			return
		}
		pull := call{what: callPull, answer: received}
		for _, s := range l.subscriptions() {
			if !refused[s.id] {
				pull.members = append(pull.members, s.id)
			}
		}
		l.mu.Lock()
		l.pulls++
		l.mu.Unlock()
		known, a, err := l.ask(ctx, &pull)
		refused = nil
		if err == nil && !known {
			refused, err = l.joinAgain(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if reason := err.Error(); !absent(err) && reason != logged {
				l.b.opts.Logger.Warn("messages cannot be received", "group", l.gid, "error", err)
				logged = reason
			}
			sleep(ctx, linkPause)
			continue
		}
		logged = ""
		if a.Number != 0 {
			received = a.Number
		}
		l.deliver(a.List)
		l.pulled()
	}
}

// deliver passes messages to their subscriptions. If a message is for a subscription that has ended, deliver makes the
// leader remove that subscription. The leader can have such a subscription because joinAgain added it just after its
// end.
func (l *link) deliver(list []Handed) {
	ended := map[uint64]bool{}
	for i := range list {
		id := list[i].ID
		l.mu.Lock()
		s := l.subs[id]
		l.mu.Unlock()
		switch {
		case s != nil:
			s.arrived(l, &list[i])
		case !ended[id]:
			ended[id] = true
			l.send(outgoing{leave: id})
		}
	}
}

// joinAgain adds all subscriptions to the session at a leader that does not know them. It returns the ids of the
// subscriptions that the leader has refused, and the first error. It returns early if there is no leader.
func (l *link) joinAgain(ctx context.Context) (refused map[uint64]bool, err error) {
	refused = map[uint64]bool{}
	for _, s := range l.subscriptions() {
		switch _, e := l.join(ctx, s, true); {
		case e == nil:
		case absent(e):
			return nil, e
		default:
			refused[s.id] = true
			err = cmp.Or(err, e)
		}
	}
	return refused, err
}

// absent reports whether a call has failed because no leader could be reached in time.
func absent(err error) bool {
	return fault.Is(err, fault.Timeout) || fault.Is(err, fault.Unavailable) || fault.Is(err, fault.NotLeader)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// send queues a settlement, or the end of a subscription.
func (l *link) send(o outgoing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, o)
	l.start()
}

// start sends the queued settlements, several in each call and at most maxCalls calls at a time. The end of a
// subscription is sent alone, after the calls with earlier settlements have returned. The caller holds l.mu.
func (l *link) start() {
	for len(l.queue) > 0 && l.b.sending.Err() == nil {
		n := 0
		for n < len(l.queue) && n < maxCall && l.queue[0].goesWith(&l.queue[n]) {
			n++
		}
		if n == 0 && l.calls > 0 || l.calls >= maxCalls || l.leaving {
			return
		}
		part := l.queue[:max(n, 1)]
		l.queue = l.queue[max(n, 1):]
		l.calls++
		l.leaving = n == 0
		l.b.running.Go(func() { l.call(part) })
	}
}

// call sends a part of the queue, and repeats this until it succeeds or Broker.Close ends sending. If the leader
// refuses settlements, they are queued again, to be sent separately for each consumer group.
func (l *link) call(part []outgoing) {
	c := call{what: callLeave, join: Join{ID: part[0].leave}}
	if part[0].leave == 0 {
		c = call{what: callSettle}
		for i := range part {
			c.settles = append(c.settles, part[i].settle)
		}
	}
	leases := uint64(0)
	for l.b.sending.Err() == nil {
		_, a, err := l.ask(l.b.sending, &c)
		if leases = a.Number; err == nil {
			break
		}
		if c.what == callSettle && !absent(err) {
			l.refused(part)
			return
		}
		sleep(l.b.sending, linkPause)
	}
	for i := range part {
		if part[i].sent != nil {
			part[i].sent(leases)
		}
	}
	l.returned()
}

// returned counts a call that has returned, and sends more of the queue.
func (l *link) returned() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	l.leaving = false
	l.start()
}

// refused queues settlements again, after a pause, because the leader has refused the call that contained them. One
// consumer group can make a whole call fail, for example if a record of the group cannot be read. Therefore the next
// calls with these settlements contain only one group each. The pause does not delay other calls.
func (l *link) refused(part []outgoing) {
	l.returned()
	sleep(l.b.sending, linkPause)
	for i := range part {
		part[i].apart = true
	}
	slices.SortStableFunc(part, func(o, p outgoing) int { return o.compareGroup(&p) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, part...)
	l.start()
}

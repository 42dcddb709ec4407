package topics

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// linkPause is the pause after a call that has failed.
const linkPause = 100 * time.Millisecond

// maxCalls bounds the calls with settlements of a link that are under way.
const maxCalls = 8

// link is the session of a Broker in one Raft group.
type link struct {
	b       *Broker
	gid     uint32
	session string

	mu      sync.Mutex
	subs    map[uint64]*subscription
	started bool          // run is running
	added   chan struct{} // closed when there is a subscription
	queue   []outgoing
	calls   int  // under way
	leaving bool // one of them ends a subscription
}

// outgoing is a settlement, or the end of a subscription if leave is not 0.
type outgoing struct {
	leave  uint64
	settle Settle
	sent   func() // nil = nothing
}

func newLink(b *Broker, gid uint32) *link {
	return &link{b: b, gid: gid, session: newSession(), subs: map[uint64]*subscription{}, added: make(chan struct{})}
}

func (l *link) subscriptions() []*subscription {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*subscription, 0, len(l.subs))
	for _, s := range l.subs {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *subscription) int { return int(a.id) - int(b.id) }) //nolint:gosec // few
	return list
}

func (l *link) ask(ctx context.Context, c *call) (known bool, a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.session = l.session
	out, _, err := l.b.access.Ask(ctx, l.gid, Method, c.append())
	if err != nil {
		return false, a, err
	}
	return readAnswer(out)
}

// join tells the leader about a subscription.
func (l *link) join(ctx context.Context, s *subscription) error {
	s.mu.Lock()
	j := Join{ID: s.id, Topic: Topic{Group: l.gid, Store: l.b.store, Name: s.topic}, Group: s.group,
		Concurrency: s.concurrency, Window: s.window, RetryBackoff: l.b.opts.Backoff, Newest: s.newest}
	s.mu.Unlock()
	_, _, err := l.ask(ctx, &call{what: callJoin, fresh: true, join: j})
	return err
}

// add adds a new subscription.
func (l *link) add(ctx context.Context, s *subscription) error {
	l.mu.Lock()
	l.subs[s.id] = s // before the leader knows it: messages can come at once
	if len(l.subs) == 1 {
		close(l.added)
	}
	if !l.started {
		l.started = true
		l.b.running.Go(l.run)
	}
	l.mu.Unlock()
	return l.join(ctx, s)
}

// remove removes a subscription.
func (l *link) remove(s *subscription) {
	l.mu.Lock()
	if l.subs[s.id] != nil {
		delete(l.subs, s.id)
		if len(l.subs) == 0 {
			l.added = make(chan struct{})
		}
	}
	l.mu.Unlock()
	l.send(outgoing{leave: s.id})
}

// run pulls messages while there are subscriptions.
func (l *link) run() {
	ctx, received := l.b.pulling, uint64(0)
	for {
		l.mu.Lock()
		added := l.added
		l.mu.Unlock()
		select {
		case <-added:
		case <-ctx.Done():
			return
		}
		known, a, err := l.ask(ctx, &call{what: callPull, answer: received})
		if err == nil && !known {
			err = l.joinAgain(ctx)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if !fault.Is(err, fault.Timeout) && !fault.Is(err, fault.Unavailable) {
				l.b.opts.Logger.Warn("messages cannot be received", "group", l.gid, "error", err)
			}
			sleep(ctx, linkPause)
			continue
		}
		if a.Number != 0 {
			received = a.Number
		}
		for i := range a.List {
			l.mu.Lock()
			s := l.subs[a.List[i].ID]
			l.mu.Unlock()
			if s != nil {
				s.arrived(l, &a.List[i])
			}
		}
	}
}

// joinAgain tells a new leader about all subscriptions.
func (l *link) joinAgain(ctx context.Context) error {
	for _, s := range l.subscriptions() {
		if err := l.join(ctx, s); err != nil {
			return err
		}
	}
	return nil
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

// start starts calls for what is queued. Settlements share calls while maxCalls are under way. A subscription ends
// after the calls with its settlements. The caller holds l.mu.
func (l *link) start() {
	for len(l.queue) > 0 && l.b.sending.Err() == nil {
		n := 0
		for n < len(l.queue) && n < maxCall && l.queue[n].leave == 0 {
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

// call sends a part of the queue. It repeats the call until the leader has answered.
func (l *link) call(part []outgoing) {
	c := call{what: callLeave, join: Join{ID: part[0].leave}}
	if part[0].leave == 0 {
		c = call{what: callSettle}
		for i := range part {
			c.settles = append(c.settles, part[i].settle)
		}
	}
	for l.b.sending.Err() == nil {
		if _, _, err := l.ask(l.b.sending, &c); err == nil {
			break
		}
		sleep(l.b.sending, linkPause)
	}
	for i := range part {
		if part[i].sent != nil {
			part[i].sent()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls--
	l.leaving = false
	l.start()
}

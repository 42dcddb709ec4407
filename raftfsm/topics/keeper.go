package topics

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Group is what a Keeper needs of its Raft group.
type Group interface {
	// Leading reports whether this server leads and has applied an entry of its term.
	Leading() bool
	// Term returns the newest known term.
	Term() uint64
	// Now returns cluster time in Unix milliseconds.
	Now() uint64
	// Machine returns the state machine.
	Machine() *kv.Machine
	// Confirm waits until the state machine has every entry that was committed when Confirm was called. It returns an
	// error if this server does not lead.
	Confirm(ctx context.Context) error
	// Commit proposes a request, and returns its result when it is applied here.
	Commit(ctx context.Context, r *command.Request) (kv.Result, error)
}

// Times of a Keeper.
const (
	proposeTimeout = 10 * time.Second
	retryPause     = 100 * time.Millisecond // before a failed proposal is repeated
	gatherPause    = 2 * time.Millisecond   // how long a group collects settlements before it stores them
	pullPatience   = 5 * time.Second        // how long a pull waits for messages
	sessionLife    = 5 * time.Second        // of a session without a pull
	lastBackoff    = time.Minute            // before a failed message is delivered again
	maxWait        = time.Hour              // of a timer
)

// Options are the dependencies of a Keeper.
type Options struct {
	Group  uint32 // number of the Raft group
	Logger *slog.Logger
	// AfterFunc is time.AfterFunc or a replacement for tests. nil = time.AfterFunc.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
}

// Keeper delivers the messages of one Raft group while its server leads the group. It is safe for concurrent use.
type Keeper struct {
	opts    Options
	closing context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	// notice guards what Update needs. Update must not wait for mu, which is held while records are read.
	notice struct {
		sync.Mutex
		attached, closed bool
		updating         bool // a goroutine executes update
		again            bool // it is to repeat that
	}

	mu       sync.Mutex
	group    Group // nil until Attach
	closed   bool
	machine  *kv.Machine // nil = this server did not lead at the last update
	term     uint64
	restored uint64           // the last restore of the machine
	topics   map[Topic]*topic // with records or with subscribers
	sessions map[string]*session
	sweeping bool
	sweepAt  uint64 // cluster time of the next sweep; 0 = none
	endSweep func() bool
	totals   map[label]*Totals
}

// topic is a topic as the leader knows it.
type topic struct {
	Topic
	consumers []*consumer // with members or with settlements that are not in the log yet
	dirty     bool        // has messages that are not counted yet
	trimAt    uint64      // cluster time at which the oldest message reaches its retention; 0 = not known
	held      bool        // the oldest message has reached its retention, and a group has not settled it
	full      bool
	counted   count
	recounted uint64 // cluster time
}

// NewKeeper returns a Keeper that does nothing until Attach is called.
func NewKeeper(o Options) *Keeper {
	if o.AfterFunc == nil {
		o.AfterFunc = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	k := &Keeper{opts: o, topics: map[Topic]*topic{}, sessions: map[string]*session{}, totals: map[label]*Totals{}}
	k.closing, k.stop = context.WithCancel(context.Background())
	return k
}

// Attach gives the Keeper its group, which must be open.
func (k *Keeper) Attach(g Group) {
	k.mu.Lock()
	k.group = g
	k.mu.Unlock()
	k.notice.Lock()
	k.notice.attached = true
	k.notice.Unlock()
	k.Update()
}

// Close ends the sessions, and waits for the goroutines of the Keeper.
func (k *Keeper) Close() {
	k.notice.Lock()
	k.notice.closed = true
	k.notice.Unlock()
	k.mu.Lock()
	k.closed = true
	k.stop()
	k.resign()
	k.mu.Unlock()
	k.running.Wait()
}

// Update makes the Keeper look at what has changed. It does not block.
func (k *Keeper) Update() {
	n := &k.notice
	n.Lock()
	defer n.Unlock()
	if !n.attached || n.closed {
		return
	}
	n.again = true
	if !n.updating {
		n.updating = true
		k.running.Go(k.update)
	}
}

func (k *Keeper) update() {
	for k.pending() {
		k.mu.Lock()
		if !k.closed {
			if err := k.refresh(); err != nil {
				k.failed(err)
				k.resign()
				k.opts.AfterFunc(retryPause, k.Update)
			}
		}
		k.mu.Unlock()
	}
}

// pending reports whether another update was requested, and clears the request. If the result is false, update must
// return, because the next call of Update starts a new goroutine.
func (k *Keeper) pending() bool {
	n := &k.notice
	n.Lock()
	defer n.Unlock()
	if !n.again || n.closed {
		n.updating = false
		return false
	}
	n.again = false
	return true
}

// failed logs an error of reading records. The caller holds k.mu.
func (k *Keeper) failed(err error) {
	if !fault.Is(err, fault.Unavailable) {
		k.opts.Logger.Error("records of topics cannot be read, so their messages are not delivered", "error", err,
			"hint", "restart this server, so that another one leads")
	}
}

// after calls f, with k.mu held, after a while.
func (k *Keeper) after(d time.Duration, f func()) (stop func() bool) {
	return k.opts.AfterFunc(d, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.closed {
			f()
		}
	})
}

// refresh reads what has changed. If this server does not lead, it drops everything from memory instead. The caller
// holds k.mu.
func (k *Keeper) refresh() error {
	term := k.group.Term()
	if !k.group.Leading() {
		k.resign()
		return nil
	}
	m := k.group.Machine()
	if k.machine != m || k.term != term || k.restored != m.Restored() {
		k.resign()
		m.CollectTopicChanges(true)
		k.machine, k.term, k.restored = m, term, m.Restored()
		return k.begin()
	}
	keys, all := m.TopicChanges()
	if all {
		return k.begin()
	}
	var changed *topic // keys of one topic often follow each other
	for _, key := range keys {
		t, table, _, ok := split(key)
		if !ok || table != tableMessage || changed != nil && changed.Topic == t {
			continue
		}
		changed = k.topic(t)
		if err := k.arrived(changed); err != nil {
			return err
		}
	}
	return nil
}

// begin finds the topics of the group. Their messages may have changed.
func (k *Keeper) begin() error {
	for after := ""; ; {
		found, _, err := k.machine.List(kv.TopicStore, "", after, 1, 0)
		if err != nil || len(found) == 0 {
			return err
		}
		t, _, _, ok := split(found[0].Key)
		if !ok {
			return errRecord("unknown key", Topic{Name: fault.Shorten(found[0].Key, 128)})
		}
		if err := k.arrived(k.topic(t)); err != nil {
			return err
		}
		after = t.prefix() + "\xff"
	}
}

func (k *Keeper) topic(t Topic) *topic {
	one := k.topics[t]
	if one == nil {
		one = &topic{Topic: t}
		k.topics[t] = one
	}
	return one
}

// arrived processes that a topic may have new messages.
func (k *Keeper) arrived(t *topic) error {
	if !t.dirty {
		t.dirty = true
		k.sweepIn(sweepPause)
	}
	for _, c := range slices.Clone(t.consumers) {
		c.more = true
		if err := k.advance(c); err != nil {
			return err
		}
	}
	return nil
}

// resign drops everything from memory. Callers that wait get an error, and try again at the next leader. The caller
// holds k.mu.
func (k *Keeper) resign() {
	for _, s := range k.sessions {
		s.end()
	}
	clear(k.sessions)
	for _, t := range k.topics {
		for _, c := range t.consumers {
			c.drop()
		}
	}
	clear(k.topics)
	k.sweepAt = 0
	if k.endSweep != nil {
		k.endSweep()
		k.endSweep = nil
	}
	if k.machine != nil {
		k.machine.CollectTopicChanges(false)
		k.machine = nil
	}
}

// lead returns an error if this server does not lead. Otherwise it makes the Keeper ready. The caller holds k.mu.
func (k *Keeper) lead(op string) error {
	if k.group == nil || k.closed {
		return fault.New(fault.Unavailable, op, "this node is starting or shutting down")
	}
	if !k.group.Leading() {
		return errNotLeader(op)
	}
	if k.machine == nil || k.term != k.group.Term() {
		return k.refresh()
	}
	return nil
}

func errNotLeader(op string) error {
	return fault.New(fault.NotLeader, op, "this server does not lead the group of the topic")
}

// commit proposes a request of the Keeper itself.
func (k *Keeper) commit(g Group, ops []command.Op) (kv.Result, error) {
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	return g.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: ops})
}

func (k *Keeper) confirm(g Group) error {
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	return g.Confirm(ctx)
}

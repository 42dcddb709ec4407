package topics

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Times of a Keeper.
const (
	proposeTimeout = 10 * time.Second
	retryPause     = 100 * time.Millisecond // before a failed proposal or read is repeated
	gatherPause    = 2 * time.Millisecond   // how long a group collects settlements before it stores them
	pullPatience   = 5 * time.Second        // how long a pull waits for messages
	sessionLife    = 5 * time.Second        // how long a session without a pull exists
	lastBackoff    = time.Minute            // longest pause before a failed message is delivered again
	maxWait        = time.Hour              // longest duration of a timer
)

// Options are the dependencies of a Keeper.
type Options struct {
	Group  uint32 // number of the Raft group
	Logger *slog.Logger
	// AfterFunc is time.AfterFunc or a replacement for tests. nil = time.AfterFunc.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)

	open int // messages that a consumer group may have open; 0 = maxOpen; for tests
}

// Keeper delivers the messages of one Raft group while its server leads the group. It is safe for concurrent use.
type Keeper struct {
	opts    Options
	closing context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	updates records.Updates // not guarded by mu, because Update must not block

	mu       sync.Mutex
	group    records.Group // nil until Attach
	closed   bool
	machine  *kv.Machine // nil = this server did not lead at the last update
	term     uint64
	repeats  bool             // a read has failed, and the Keeper reads again after a pause
	since    uint64           // cluster time at which this server began to lead
	restored uint64           // number of the last restore of the machine
	topics   map[Topic]*topic // topics with records or with subscribers
	sessions map[string]*session
	leases   uint64 // number of the newest lease; greater than those of earlier leaders
	answered uint64 // greatest number of an answer, among the sessions that have ended
	sweeping bool
	sweepAt  uint64 // cluster time of the next sweep; 0 = none
	endSweep func() bool
	totals   map[label]*Totals
	readers  map[Topic]*readers
	stored   map[label]uint64 // numbers of messages that were stored, by topic
	gauges   gauges
	errors   logadapt.Sparse
}

// topic is a topic as the leader knows it.
type topic struct {
	Topic
	consumers []*consumer // consumer groups with members, or with settlements that are not in the log yet
	dirty     bool        // the next sweep must count messages
	lookAt    uint64      // cluster time at which the leader checks the use of the groups; 0 = never; see endUnused
	trimAt    uint64      // cluster time at which the oldest message reaches its retention; 0 = not known
	held      bool        // the oldest message has reached its retention, and a group has not settled it
	passed    uint64      // offset after which the sweep under way continues; 0 = at the oldest message
	full      bool        // the topic refuses messages
	stale     bool        // counted still has messages that were removed
	touched   bool        // a record was written since the lag was measured
	purged    bool        // messages that a group may not have settled were removed since the lag was measured
	counted   count
	recounted uint64          // cluster time of the last full count
	letters   map[string]bool // topics that are known to have a source record for this topic
}

// NewKeeper returns a Keeper that does nothing until Attach is called.
func NewKeeper(o Options) *Keeper {
	if o.AfterFunc == nil {
		o.AfterFunc = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	k := &Keeper{opts: o, topics: map[Topic]*topic{}, sessions: map[string]*session{}, totals: map[label]*Totals{},
		readers: map[Topic]*readers{}, stored: map[label]uint64{}}
	k.closing, k.stop = context.WithCancel(context.Background())
	return k
}

// Attach gives the Keeper its Raft group, which must be open. The Keeper then begins to work.
func (k *Keeper) Attach(g records.Group) {
	k.mu.Lock()
	k.group = g
	k.mu.Unlock()
	k.updates.Start(k.running.Go, k.update)
}

// Close ends the sessions, and waits for the goroutines of the Keeper.
func (k *Keeper) Close() {
	k.updates.Stop()
	k.mu.Lock()
	k.closed = true
	k.stop()
	k.resign()
	k.mu.Unlock()
	k.running.Wait()
}

// Update makes the Keeper look for changed records and for a change of the leader. It returns at once, because the
// Keeper works in the background.
func (k *Keeper) Update() { k.updates.Request() }

func (k *Keeper) update() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	if err := k.refresh(); err != nil {
		k.failed(err)
		k.repeat()
	}
}

// repeat clears the memory of the Keeper after a failed read, because the memory may be incomplete. The Keeper reads
// all records again after retryPause. The caller holds k.mu.
func (k *Keeper) repeat() {
	k.resign()
	if !k.repeats {
		k.repeats = true
		k.after(retryPause, func() {
			k.repeats = false
			k.Update()
		})
	}
}

// failed logs an error from reading records, with a rate limit. It does not log fault.Unavailable. It is safe for
// concurrent use.
func (k *Keeper) failed(err error) {
	if fault.Is(err, fault.Unavailable) {
		return
	}
	k.errors.Log(func(more int) {
		k.opts.Logger.Error("records of topics cannot be read, so their messages are not delivered", "error", err,
			"hint", "restart this server, so that another one leads", "similar", more)
	})
}

// after starts a timer that calls f in the background, with k.mu held, when d has passed. If the Keeper was closed
// before, f is not called. stop stops the timer.
func (k *Keeper) after(d time.Duration, f func()) (stop func() bool) {
	return k.opts.AfterFunc(d, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.closed {
			f()
		}
	})
}

// refresh updates the Keeper from the records that have changed. If this server does not lead, refresh drops
// everything from memory instead. The caller holds k.mu.
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
		k.since = k.group.Now()
		k.leases = max(k.leases, k.since<<20)
		return k.begin()
	}
	keys, all := m.TopicChanges()
	if all {
		return k.begin()
	}
	var changed *topic // keys of one topic often follow each other
	for _, key := range keys {
		t, table, rest, ok := split(key)
		if !ok || table != tableMessage {
			if one := k.topics[t]; ok && one != nil {
				one.touched = true
			}
			if ok && table == tableGroup {
				k.groupChanged(k.topic(t), rest)
			}
			continue
		}
		k.countStored(t)
		if changed != nil && changed.Topic == t {
			continue
		}
		changed = k.topic(t)
		k.arrived(changed)
	}
	return nil
}

// begin finds the topics that have records in the Raft group, and treats each of them as if it had new messages. The
// caller holds k.mu.
func (k *Keeper) begin() error {
	for after := ""; ; {
		found, _, err := k.machine.List(kv.TopicStore, "", after, 1, 0)
		if err != nil || len(found) == 0 {
			return err
		}
		t, _, _, ok := split(found[0].Key)
		if !ok {
			k.failed(errRecord("unknown key", Topic{Name: fault.Shorten(found[0].Key, 128)}))
			after = found[0].Key
			continue
		}
		one := k.topic(t)
		one.lookAt = k.since
		k.arrived(one)
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

// arrived is called when a topic may have new messages. It wakes the callers of Read, delivers the messages to consumer
// groups, and plans a sweep, which counts the messages. The caller holds k.mu.
func (k *Keeper) arrived(t *topic) {
	k.wakeReaders(t.Topic)
	t.touched = true
	if !t.dirty {
		t.dirty = true
		k.sweepIn(sweepPause)
	}
	for _, c := range slices.Clone(t.consumers) {
		c.more = true
		k.advance(c)
	}
}

// resign clears the memory of the Keeper, for example because this server does not lead any more. Waiting callers get
// an error, and then call the new leader. The caller holds k.mu.
func (k *Keeper) resign() {
	for _, s := range k.sessions {
		s.end()
		k.answered = max(k.answered, s.answers)
	}
	clear(k.sessions)
	for _, t := range k.topics {
		for _, c := range t.consumers {
			c.drop()
		}
	}
	clear(k.topics)
	for t := range k.readers {
		k.wakeReaders(t)
	}
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

// lead returns an error if this server does not lead. Otherwise it makes sure that the Keeper has read the records in
// this term. The caller holds k.mu.
func (k *Keeper) lead(op string) error {
	if k.group == nil || k.closed {
		return fault.New(fault.Unavailable, op, "this node is starting or shutting down")
	}
	if !k.group.Leading() {
		return errNotLeader(op)
	}
	if k.machine != nil && k.term == k.group.Term() {
		return nil
	}
	err := k.refresh()
	if err != nil && !fault.Is(err, fault.Corrupt) { // reading again would not repair a damaged record
		k.repeat()
	}
	return err
}

func errNotLeader(op string) error {
	return fault.New(fault.NotLeader, op, "this server does not lead the group of the topic")
}

// commit proposes a request with the given operations. It waits for the result, but at most for proposeTimeout.
func (k *Keeper) commit(g records.Group, ops []command.Op) (kv.Result, error) {
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	return g.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: ops})
}

func (k *Keeper) confirm(g records.Group) error {
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	return g.Confirm(ctx)
}

package workflows

import (
	"container/list"
	"context"
	"log/slog"
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
	retryPause     = 100 * time.Millisecond // before a failed proposal or call is repeated
	foldPause      = 2 * time.Millisecond   // how long events wait for the answer of the turn that consumes them
	pullPatience   = time.Second            // how long a pull waits for work; two pulls must fit into proofLife
	sessionLife    = 5 * time.Second        // how long a session without a pull exists
	waitPatience   = 20 * time.Second       // how long one call waits for a status
	terminatePause = 5 * time.Second        // before an instance ends without the answer of a worker
	firstBackoff   = time.Second            // before a turn whose answer was refused is handed out again; doubles
	lastBackoff    = time.Minute            // the longest such pause
	maxTimer       = time.Hour              // longest duration of a timer of the Keeper
)

// Bounds of a Keeper.
const (
	maxQueue       = 4096     // ready instances, and activities, of an application in memory
	page           = 256      // records that are read at once
	pageBytes      = 1 << 20  // bytes of the values that are read at once
	maxBatch       = 256      // operations of one request that removes messages
	maxWaiters     = 1 << 17  // calls that wait for a status
	maxSessions    = 10_000   // sessions of one group
	maxStreams     = 10_000   // streams of one session
	maxHistory     = 48 << 20 // bytes of one instance's history, and of the keys of its records
	maxEntry       = 60 << 20 // bytes of one log entry
	maxStored      = 30 << 20 // bytes up to which an entry gets further events; see change.store
	maxEvent       = 16 << 20 // bytes of one event
	maxInbox       = 100_000  // events of one instance that no turn has consumed
	maxInboxBytes  = 32 << 20 // weight of these events, see inbox.weight
	maxTurnEvents  = 10_000   // new events of one turn
	maxTurnBytes   = 16 << 20 // bytes of these events; a turn gets at least one event
	maxTurn        = 64 << 20 // bytes of the history and the new events of a turn, which are one message
	opCost         = 64       // bytes of an operation in an entry, besides its key and value
	defaultCache   = 64 << 20 // bytes of instances in memory, of all groups of a server
	heldOverhead   = 4 << 10  // bytes of an instance in memory besides its events, as measured for a waiting instance
	cachedOverhead = 1 << 10  // bytes of a history that a node keeps for its streams, besides its events
)

// Sender sends messages to instances of other groups. It does not retry, so the caller must repeat a call that has
// failed.
type Sender interface {
	// Locate returns the group of an instance.
	Locate(ctx context.Context, r Ref) (gid uint32, err error)
	// Ask sends a call to the leader of a group.
	Ask(ctx context.Context, gid uint32, method string, body []byte) (answer []byte, repeated bool, err error)
}

// Options are the dependencies of a Keeper.
type Options struct {
	Group     uint32 // number of the Raft group
	Logger    *slog.Logger
	Sender    Sender
	Cache     *Cache // shared by the Keepers of a server; nil = a Cache for this Keeper only
	Namespace string // namespace of the applications
	// AfterFunc is time.AfterFunc or a replacement for tests. nil = time.AfterFunc.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
	// Rand returns a random number that is not 0. nil = a generator on crypto/rand.
	Rand func() uint64
	// Gate is called by a goroutine after its start or wake-up, with the name of its work. The goroutine holds no
	// lock. With Gate, a test lets goroutines go on one at a time, until the Keeper closes. nil = goroutines go on at
	// once.
	Gate func(ctx context.Context, closing <-chan struct{}, work string)
}

// Keeper runs the workflows of one Raft group while its server leads the group. It is safe for concurrent use. One
// goroutine runs for each busy instance. An idle instance needs no goroutine, and need not be in memory.
type Keeper struct {
	opts    Options
	closing context.Context
	stop    context.CancelFunc
	running sync.WaitGroup

	updates records.Updates // not guarded by mu, because Update must not block

	mu         sync.Mutex
	group      records.Group // nil until Attach
	closed     bool
	machine    *kv.Machine // nil = this server did not lead at the last update
	term       uint64
	reign      uint64      // grows by one when the Keeper resigns, which also happens within a term, after a restore
	stopRepeat func() bool // stops the timer of the next read after a failed one; nil = there is no such timer
	restored   uint64      // number of the last restore of the machine

	instances map[Ref]*instance
	idle      *list.List // idle *instance values, the least recently used first
	apps      map[string]*application
	sessions  map[string]*session
	tasks     map[taskID]*task // activities that are queued or leased
	waiters   map[Ref][]*waiter
	waiting   int // number of calls in waiters

	absent    map[string]uint64 // revisions of the records of sessions that have not joined this leader, by session id
	endGrace  func() bool       // nil = activities of previous leaders may be handed out
	scanning  bool              // a goroutine of scan runs
	scanAgain bool              // another scan is needed
	scanned   int               // number of records of activities that scans have read; for tests

	deliveries uint64 // number of the newest delivery of a turn
	timers     timers
	outbox     outbox
	totals     totals
	confirm    confirmation
	errors     logadapt.Sparse
}

// NewKeeper returns a Keeper that does nothing until Attach is called.
func NewKeeper(o Options) *Keeper {
	if o.AfterFunc == nil {
		o.AfterFunc = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Cache == nil {
		o.Cache = NewCache(0)
	}
	if o.Rand == nil {
		o.Rand = random
	}
	k := &Keeper{opts: o, instances: map[Ref]*instance{}, idle: list.New(), apps: map[string]*application{},
		sessions: map[string]*session{}, tasks: map[taskID]*task{}, waiters: map[Ref][]*waiter{},
		absent: map[string]uint64{}, deliveries: o.Rand() >> 2} // differs from those of earlier Keepers
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

// Close ends the sessions and timers, and waits for the goroutines of the Keeper.
func (k *Keeper) Close() {
	k.updates.Stop()
	k.mu.Lock()
	k.closed = true
	k.stop()
	k.resign()
	if k.stopRepeat != nil {
		k.stopRepeat()
	}
	k.mu.Unlock()
	k.running.Wait()
}

// Update makes the Keeper check whether its server leads the group. It does not block.
func (k *Keeper) Update() { k.updates.Request() }

func (k *Keeper) update() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	if err := k.refresh(); err != nil {
		k.unread(err)
	}
}

// repeatAfter handles a failed read. It drops everything from memory, and makes the Keeper read again after retryPause.
// It does nothing if a record is damaged, because reading again would not repair the record. The caller holds k.mu.
func (k *Keeper) repeatAfter(err error) {
	if fault.Is(err, fault.Corrupt) {
		return
	}
	k.resign()
	if k.stopRepeat != nil || k.closed {
		return
	}
	k.stopRepeat = k.opts.AfterFunc(retryPause, func() { // k.after would do nothing, because the Keeper has resigned
		k.mu.Lock()
		defer k.mu.Unlock()
		k.stopRepeat = nil
		k.Update()
	})
}

// unread handles a failed read of records that the Keeper needs. The caller holds k.mu.
func (k *Keeper) unread(err error) {
	k.failed(err)
	k.repeatAfter(err)
}

// failed logs an error from reading records, with a rate limit. It does not log fault.Unavailable and
// fault.NotLeader. It is safe for concurrent use.
func (k *Keeper) failed(err error) {
	if fault.Is(err, fault.Unavailable) || fault.Is(err, fault.NotLeader) {
		return
	}
	k.errors.Log(func(more int) {
		k.opts.Logger.Error("records of workflows cannot be read, so some instances do not go on", "error", err,
			"hint", "restart this server, so that another one leads", "similar", more)
	})
}

// spawn executes f in a goroutine. work names f for Options.Gate.
func (k *Keeper) spawn(work string, f func()) {
	k.running.Go(func() {
		k.gate(k.closing, work)
		f()
	})
}

func (k *Keeper) gate(ctx context.Context, work string) {
	if k.opts.Gate != nil {
		k.opts.Gate(ctx, k.closing.Done(), work)
	}
}

// after calls f, with k.mu held, after the duration d. It does not call f if the Keeper was closed or has resigned by
// then. stop stops the timer.
func (k *Keeper) after(d time.Duration, f func()) (stop func() bool) {
	reign := k.reign
	return k.opts.AfterFunc(d, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.reigns(reign) {
			f()
		}
	})
}

// reigns reports whether the Keeper is open and has not resigned since k.reign had the given value. A goroutine that
// has released k.mu must call reigns before it changes what the Keeper has read. The caller holds k.mu.
func (k *Keeper) reigns(reign uint64) bool { return !k.closed && k.machine != nil && k.reign == reign }

// refresh makes the Keeper begin to work if its server has begun to lead or was restored. If the server does not lead,
// the Keeper resigns. The caller holds k.mu.
func (k *Keeper) refresh() error {
	if !k.group.Leading() {
		k.resign()
		return nil
	}
	term, m := k.group.Term(), k.group.Machine()
	if k.machine == m && k.term == term && k.restored == m.Restored() {
		return nil
	}
	k.resign()
	k.machine, k.term, k.restored = m, term, m.Restored()
	return k.begin()
}

// begin reads what a new leader needs at once: the sessions of nodes, the times of the first timers, and the messages
// in the outbox. Turns and activities are read later, when there are workers. The caller holds k.mu.
func (k *Keeper) begin() error {
	found, _, err := k.machine.List(kv.WorkflowStore, sessionPrefix(k.opts.Group), "", maxSessions, 0)
	if err != nil {
		return err
	}
	prefix := len(sessionPrefix(k.opts.Group))
	for i := range found {
		k.absent[found[i].Key[prefix:]] = found[i].Revision
	}
	if len(k.absent) > 0 {
		k.endGrace = k.after(sessionLife, k.grantAll)
	}
	for after := "\x00\xff"; ; {
		found, _, err := k.machine.List(kv.WorkflowStore, "", after, 1, 0)
		if err != nil || len(found) == 0 {
			return err
		}
		p, _, _, ok := splitKey(found[0].Key)
		if !ok {
			k.failed(errRecord("unknown key", Ref{ID: fault.Shorten(found[0].Key, 128)}))
			after = found[0].Key
			continue
		}
		k.application(p.app).places[p.bucket] = true
		if err := k.timers.load(k, p); err != nil {
			return err
		}
		if err := k.outbox.load(k, p); err != nil {
			return err
		}
		if err := k.loadBlocked(p); err != nil {
			return err
		}
		after = p.prefix() + "\xff"
	}
}

// loadBlocked checks whether a bucket has work that waits for workers, so that a new leader can report applications
// without workers. The caller holds k.mu.
func (k *Keeper) loadBlocked(p place) error {
	found, _, err := k.machine.List(kv.WorkflowStore, p.table(tableInbox), "", 1, 0)
	if err != nil {
		return err
	}
	if len(found) > 0 {
		k.block(k.application(p.app))
	}
	tasks, _, err := k.machine.Records(kv.WorkflowStore, p.table(tableTask), "", 1, pageBytes, 0)
	if err != nil || len(tasks) == 0 {
		return err
	}
	if t, ok := readTask(tasks[0].Value); ok {
		if a := k.target(t.app); a != nil {
			k.block(a)
		}
	}
	return nil
}

// resign drops everything from memory, for example because this server does not lead any more. Waiting callers get an
// error, and call the leader again. The caller holds k.mu.
func (k *Keeper) resign() {
	if k.machine == nil {
		return
	}
	for _, s := range k.sessions {
		s.end()
	}
	clear(k.sessions)
	for _, i := range k.instances {
		i.drop(k)
	}
	clear(k.instances)
	k.idle.Init()
	for _, list := range k.waiters {
		for _, w := range list {
			w.end(errNotLeader(opWait))
		}
	}
	clear(k.waiters)
	clear(k.apps)
	clear(k.tasks)
	clear(k.absent)
	k.waiting = 0
	if k.endGrace != nil {
		k.endGrace()
		k.endGrace = nil
	}
	k.timers.drop()
	k.outbox.drop()
	k.machine = nil
	k.reign++
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
	if err != nil {
		k.repeatAfter(err)
	}
	return err
}

// leads reports whether this server still leads in the term for which the Keeper has read the records. Call it after
// a read. If leads returns true, the read has seen no entry of a later leader, because a server stops leading before
// it applies such an entry. The caller holds k.mu.
func (k *Keeper) leads() bool { return k.group.Leading() && k.group.Term() == k.term }

func errNotLeader(op string) error {
	return fault.New(fault.NotLeader, op, "this server does not lead the group of the workflow")
}

// commit proposes a request with the operations ops, and waits for its result up to proposeTimeout. The caller does
// not hold k.mu.
func (k *Keeper) commit(g records.Group, ops []command.Op) (kv.Result, error) {
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	begun := k.confirm.begin()
	res, err := g.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: ops})
	if err == nil {
		k.confirm.done(begun)
	}
	return res, err
}

// confirmed waits until a majority has confirmed that this server led after a given moment. since is the number of that
// moment (see confirmation.begin). If an entry that was proposed after the moment is committed, no other confirmation
// is needed. Otherwise confirmed calls g.Confirm.
func (k *Keeper) confirmed(ctx context.Context, g records.Group, since uint64) error {
	if k.confirm.covers(since) {
		return nil
	}
	begun := k.confirm.begin()
	err := g.Confirm(ctx)
	if err == nil {
		k.confirm.done(begun)
	}
	return err
}

// confirmation numbers the moments at which calls, proposals and read indexes begin. It records the newest moment
// after which a majority has confirmed that this server led.
type confirmation struct {
	mu     sync.Mutex
	begun  uint64 // number of the newest moment
	proven uint64 // number of the newest moment that a majority has confirmed
}

// begin numbers the present moment, and returns this number.
func (c *confirmation) begin() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun++
	return c.begun
}

func (c *confirmation) done(begun uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proven = max(c.proven, begun)
}

func (c *confirmation) covers(since uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proven > since
}

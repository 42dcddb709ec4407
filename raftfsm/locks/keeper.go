package locks

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lifecycle"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Pauses and limits of a Keeper.
const (
	proposeTimeout = 10 * time.Second
	retryExpiry    = time.Second // until a failed proposal of an expiry, or a failed read, is repeated
	page           = 1000        // locks that are read at once
)

// Options configure a Keeper. Logger is required.
type Options struct {
	Logger   *slog.Logger
	MaxLocks int // maximum number of locks of the group; 0 = the constant MaxLocks
}

// Keeper ends expired locks of one group and gives free locks to waiting callers. It works only while its server
// leads the group. It is safe for concurrent use.
type Keeper struct {
	logger *slog.Logger
	limit  int // of locks

	mu      sync.Mutex
	group   records.Group // nil until Attach
	closed  bool
	updates records.Updates
	unread  bool        // a read failed, so the next update reads all locks; only the goroutine of updates uses it
	retry   *time.Timer // starts that update
	term    uint64
	machine *kv.Machine // whose changes are collected; nil = this server did not lead at the last update
	locks   map[string]*held
	queues  map[string][]*waiter
	queued  int               // callers in all queues
	claimed map[string]claims // tokens that repeated calls have claimed, by lock; see claim
	// unclaimed has the tokens that giveBack releases. No repeated call gets them.
	unclaimed map[string]uint64
	running   lifecycle.Tracker
	closing   context.Context
	stop      context.CancelFunc
}

// held is a lock that has an owner, as this leader has seen it applied.
type held struct {
	Lock
	until time.Time // when the expiry is proposed
	timer *time.Timer
}

// NewKeeper returns a Keeper that does nothing until Attach is called.
func NewKeeper(o Options) *Keeper {
	if o.MaxLocks == 0 {
		o.MaxLocks = MaxLocks
	}
	k := &Keeper{logger: o.Logger, limit: o.MaxLocks, locks: map[string]*held{}, queues: map[string][]*waiter{},
		claimed: map[string]claims{}, unclaimed: map[string]uint64{}}
	k.closing, k.stop = context.WithCancel(context.Background())
	return k
}

// Attach gives the Keeper its group, which must be open.
func (k *Keeper) Attach(g records.Group) {
	k.mu.Lock()
	k.group = g
	k.mu.Unlock()
	k.updates.Start(func(f func()) { k.running.Go(f) }, k.update)
}

// Close stops all timers, and waits for the goroutines of the Keeper. Callers of Wait get fault.Unavailable.
func (k *Keeper) Close() {
	k.updates.Stop()
	k.mu.Lock()
	k.closed = true
	k.stop()
	k.forgetLocked(fault.New(fault.Unavailable, opWait, "this node is shutting down"))
	k.mu.Unlock()
	k.running.Close()
	if k.retry != nil {
		k.retry.Stop()
	}
}

// Update notifies the Keeper of a possible change of the lock records or of the leader. The Keeper reads the changes in
// the background, so Update does not block.
func (k *Keeper) Update() { k.updates.Request() }

func (k *Keeper) update() {
	err := k.refresh()
	if err != nil && !k.unread && !fault.Is(err, fault.Unavailable) {
		k.logger.Error("locks cannot be read, so they do not expire", "error", err,
			"hint", "restart this server, so that another one leads")
	}
	k.unread = err != nil && !fault.Is(err, fault.Corrupt) // reading a damaged record again does not help
	switch {
	case !k.unread:
	case k.retry == nil:
		k.retry = time.AfterFunc(retryExpiry, k.Update)
	default:
		k.retry.Reset(retryExpiry)
	}
}

// refresh updates the timers from the records of the locks. If this server does not lead, refresh stops all timers
// instead. Only one goroutine at a time calls refresh.
func (k *Keeper) refresh() error {
	term := k.group.Term()
	if !k.group.Leading() {
		k.resign()
		return nil
	}
	m := k.group.Machine()
	k.mu.Lock()
	begins := k.machine != m || k.term != term
	k.mu.Unlock()
	if begins {
		k.begin(m, term)
	}
	keys, all := m.LockChanges()
	if begins || all || k.unread {
		return k.readAll(m)
	}
	seen := map[string]bool{}
	var names []string
	for _, key := range keys {
		if name, ok := nameOf(key); ok && !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	return k.read(m, names)
}

// resign forgets every lock, because this server does not lead.
func (k *Keeper) resign() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.machine != nil {
		k.machine.CollectLockChanges(false)
	}
	k.machine = nil
	k.forgetLocked(errMoved())
}

func (k *Keeper) forgetLocked(why error) {
	for _, l := range k.locks {
		l.timer.Stop()
	}
	clear(k.locks)
	for _, queue := range k.queues {
		for _, w := range queue {
			w.answer(grant{err: why})
		}
	}
	clear(k.queues)
	k.queued = 0
	clear(k.claimed)
	clear(k.unclaimed)
}

// begin prepares the Keeper to manage the locks of m as the leader of the given term. It starts the recording of
// changed locks in m. It also forgets all locks, so that each lock gets its full time again when it is next read.
func (k *Keeper) begin(m *kv.Machine, term uint64) {
	m.CollectLockChanges(true)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.machine != nil && k.machine != m {
		k.machine.CollectLockChanges(false)
	}
	k.machine, k.term = m, term
	for _, l := range k.locks {
		l.timer.Stop()
	}
	clear(k.locks)
}

// readAll reads all locks, and starts the timers of those that have changed. It also looks up the locks that have a
// timer or a queue here. Some of these locks may have ended, and then have no record that the list could contain.
func (k *Keeper) readAll(m *kv.Machine) error {
	k.mu.Lock()
	known := slices.AppendSeq(slices.Collect(maps.Keys(k.locks)), maps.Keys(k.queues))
	k.mu.Unlock()
	var damaged error
	for after := ""; ; {
		found, more, err := m.List(kv.LockStore, expiryRecord, after, page, 0)
		if err != nil {
			return err
		}
		names := make([]string, len(found))
		for i := range found {
			names[i], _ = nameOf(found[i].Key)
			after = found[i].Key
		}
		if err := k.read(m, names); fault.Is(err, fault.Corrupt) {
			damaged = err
		} else if err != nil {
			return err
		}
		if !more {
			if err := k.read(m, known); err != nil {
				return err
			}
			return damaged
		}
	}
}

// read reads locks and sets their timers. It skips a lock that cannot be decoded, and then returns fault.Corrupt.
func (k *Keeper) read(m *kv.Machine, names []string) error {
	var damaged error
	for len(names) > 0 {
		some := names[:min(len(names), page)]
		names = names[len(some):]
		keys := make([]string, 0, 2*len(some))
		for _, name := range some {
			keys = append(keys, Keys(name)...)
		}
		revision := m.Revision() // the read contains all locks that were acquired up to it
		values, err := m.GetMany(kv.LockStore, keys, 0)
		if err != nil {
			return err
		}
		for i, name := range some {
			l, found, err := Parse(values[2*i : 2*i+2])
			if err != nil {
				damaged = err
				continue
			}
			k.set(name, l, found, revision)
		}
	}
	return damaged
}

// set updates the Keeper after a lock was read at the given revision or a later one. found is false if the lock has no
// owner. If the lock was acquired or renewed since the last read, set starts a new timer for its expiry.
func (k *Keeper) set(name string, l Lock, found bool, revision uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.locks[name]
	switch {
	case k.closed || k.machine == nil:
		return
	case found && old != nil && old.Token == l.Token && old.Renewals == l.Renewals:
		return
	}
	if old != nil {
		old.timer.Stop()
		delete(k.locks, name)
	}
	if c := k.claimed[name].token; c != l.Token && c <= revision { // otherwise the lock was acquired after the read
		delete(k.claimed, name)
	}
	if k.unclaimed[name] < l.Token {
		delete(k.unclaimed, name)
	}
	if !found {
		if len(k.queues[name]) > 0 {
			k.running.Go(func() { k.acquire(name) })
		}
		return
	}
	h := &held{Lock: l, until: time.Now().Add(l.Expiry)}
	h.timer = time.AfterFunc(l.Expiry, func() { k.expire(name, h) })
	k.locks[name] = h
}

// expire ends a lock that was not renewed in time.
func (k *Keeper) expire(name string, h *held) {
	k.mu.Lock()
	if k.closed || k.locks[name] != h || !k.running.Enter() {
		k.mu.Unlock()
		return
	}
	k.mu.Unlock()
	defer k.running.Leave()
	if _, err := k.end(k.closing, name, h.Token, h.Renewals); err != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.closed && k.locks[name] == h {
			h.timer = time.AfterFunc(retryExpiry, func() { k.expire(name, h) })
		}
	}
}

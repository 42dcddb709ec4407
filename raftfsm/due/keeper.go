package due

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/logadapt"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Tick is one occurrence of due work, for example one run of a job.
type Tick struct {
	Home
	Name     string
	Payload  []byte
	Revision uint64 // of the work; together with Number it identifies the tick
	Number   uint64 // 1 for the first tick
	Attempt  uint64 // 1 for the first attempt; deliveries without an answer do not count
	Lost     uint64 // deliveries without an answer since the last answer, as far as this leader knows
	Due      uint64 // cluster time in Unix milliseconds
	Final    bool   // the failure policy allows no further attempt
}

// Result is the result of a delivery.
type Result uint8

// The results.
const (
	Done        Result = 1 + iota // the target has handled the tick
	Unknown                       // the target does not know the work; the tick counts as done
	Failed                        // the target has answered with a failure; the failure policy applies
	Undelivered                   // there is no answer; the tick is delivered again, without counting an attempt
	Cancel                        // the target has handled the tick, and wants no further tick of the work
)

// Deliverer delivers ticks to targets of one kind. It is safe for concurrent use.
type Deliverer interface {
	// Room returns how many ticks of a home may be under way in all at this time; 0 = no target can be called. Ticks
	// that are under way at targets that can no longer be called increase the result, because they take no place at the
	// other targets. Room does not block.
	Room(h Home) int
	// Deliver delivers one tick and waits for the answer. err is the reason if the tick was not handled. If ctx
	// ends, the result is Undelivered.
	Deliver(ctx context.Context, t *Tick) (r Result, err error)
}

// Observer counts what a Keeper does. Its methods do not block.
type Observer interface {
	// Fired reports that a tick is handed out, and how late that is.
	Fired(kind byte, late time.Duration)
	// Ended reports what has become of a tick: done, unknown, failed, retried, undelivered, expired or canceled.
	Ended(kind byte, outcome string)
	// UnderWay reports that a tick has begun (1) or ended (-1).
	UnderWay(kind byte, change int)
}

// Limits of a Keeper.
const (
	maxUnderWay = 4096     // ticks that are handed out and not acknowledged yet
	maxAnswered = 1024     // ticks of one home that a target has answered and the log has not acknowledged yet
	page        = 256      // index records of one home that are read at once
	maxBuffer   = 2 * page // index records of one home that are in memory
	maxSearched = 4 << 20  // bytes of payloads that one search for expired work of a home reads

	proposeTimeout = 10 * time.Second
	retryPause     = 100 * time.Millisecond // before a failed proposal is repeated
	pollPause      = 100 * time.Millisecond // until a home whose targets take no further tick is tried again
	maxWait        = time.Hour              // longest time of the timer
	firstBackoff   = 100 * time.Millisecond // before an undelivered tick is delivered again; doubled each time
	lastBackoff    = 10 * time.Second       // longest such pause
	expiryPause    = time.Second            // between searches for expired work of a home without callable target
)

// Options are the dependencies of a Keeper.
type Options struct {
	Logger   *slog.Logger
	Observer Observer // nil = none
	MaxJobs  int      // maximum number of jobs of an application; 0 = the constant MaxJobs
	// AfterFunc is time.AfterFunc or a replacement for tests. nil = time.AfterFunc.
	AfterFunc func(d time.Duration, f func()) (stop func() bool)
}

// Keeper hands out the due work of one group while its server leads the group. It is safe for concurrent use.
type Keeper struct {
	opts Options

	mu         sync.Mutex
	group      records.Group // nil until Attach
	deliverers map[byte]Deliverer
	closed     bool
	updates    records.Updates
	stopTimer  func() bool
	flights    map[flightKey]*flight
	loads      map[Home]*load
	returned   []flightKey // work to read again
	strikes    map[flightKey]strikes
	spaces     map[Home]space
	waiting    map[byte]Waiting // by kind
	retries    logadapt.Sparse  // warnings about first failed attempts
	running    sync.WaitGroup
	closing    context.Context
	stop       context.CancelFunc

	// Only the goroutine that executes update uses these.
	machine *kv.Machine // whose changes are collected; nil = this server did not lead at the last update
	term    uint64
	queues  map[Home]*queue
	turns   []*queue // of all homes with work, in the order of their turns
}

type flightKey struct {
	home Home
	name string
}

// flight is a tick that is handed out.
type flight struct {
	at      uint64 // the time in the index record
	again   bool   // look at the work again when the flight ends
	changed bool   // the work was put, removed or made due now since the flight began
	pausing bool   // the delivery has ended, and the flight ends after a pause
	cancel  context.CancelFunc
}

// strikes counts the deliveries of one item of work that got no answer. An answer ends the count.
type strikes struct {
	revision uint64 // of the work
	n        int
}

// load counts the ticks of a home that are handed out.
type load struct {
	calls    int // under way at the target
	underWay int // not acknowledged yet
}

// NewKeeper returns a Keeper that does nothing until Attach is called.
func NewKeeper(o Options) *Keeper {
	if o.AfterFunc == nil {
		o.AfterFunc = func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }
	}
	if o.MaxJobs == 0 {
		o.MaxJobs = MaxJobs
	}
	if o.Observer == nil {
		o.Observer = noObserver{}
	}
	k := &Keeper{opts: o, deliverers: map[byte]Deliverer{}, flights: map[flightKey]*flight{}, loads: map[Home]*load{},
		strikes: map[flightKey]strikes{}, spaces: map[Home]space{}, waiting: map[byte]Waiting{},
		queues: map[Home]*queue{}}
	k.closing, k.stop = context.WithCancel(context.Background())
	return k
}

// Attach gives the Keeper its group, which must be open.
func (k *Keeper) Attach(g records.Group) {
	k.mu.Lock()
	k.group = g
	k.mu.Unlock()
	k.updates.Start(k.running.Go, k.update)
}

// Deliver sets the Deliverer for one kind of work. Work of a kind without a Deliverer is not handed out.
func (k *Keeper) Deliver(kind byte, d Deliverer) {
	k.mu.Lock()
	k.deliverers[kind] = d
	k.mu.Unlock()
	k.Update()
}

// Close ends the deliveries that are under way, and waits for the goroutines of the Keeper.
func (k *Keeper) Close() {
	k.updates.Stop()
	k.mu.Lock()
	k.closed = true
	k.stop()
	k.setTimer(0)
	k.mu.Unlock()
	k.running.Wait()
}

// Update notifies the Keeper that due work or the leadership has changed. The Keeper processes the change in the
// background; Update does not block.
func (k *Keeper) Update() { k.updates.Request() }

func (k *Keeper) update() {
	if err := k.refresh(); err != nil && !fault.Is(err, fault.Unavailable) {
		k.opts.Logger.Error("due work cannot be read, so it is not handed out", "error", err,
			"hint", "restart this server, so that another one leads")
	}
}

// setTimer sets the time of the next update, or none if wait is 0. The caller holds k.mu.
func (k *Keeper) setTimer(wait time.Duration) {
	if k.stopTimer != nil {
		k.stopTimer()
		k.stopTimer = nil
	}
	if wait > 0 && !k.closed {
		k.stopTimer = k.opts.AfterFunc(wait, k.Update)
	}
}

// refresh reads the records that have changed and hands out the ticks that are due. If this server does not lead,
// refresh drops all work from memory instead.
func (k *Keeper) refresh() error {
	term := k.group.Term()
	if !k.group.Leading() {
		k.resign()
		return nil
	}
	m := k.group.Machine()
	var err error
	if k.machine != m || k.term != term {
		if k.machine != nil && k.machine != m {
			k.machine.CollectDueChanges(false)
		}
		m.CollectDueChanges(true)
		k.machine, k.term = m, term
		err = k.begin()
	} else if keys, all := m.DueChanges(); all {
		err = k.begin()
	} else {
		for _, key := range keys {
			k.enqueue(key)
		}
	}
	if err == nil {
		err = k.lookAgain()
	}
	if err == nil {
		err = k.handOut()
	}
	if err != nil {
		k.machine = nil // the next update begins again
		k.mu.Lock()
		k.setTimer(retryPause)
		k.mu.Unlock()
	}
	return err
}

// resign drops all work from memory, because this server does not lead. Running deliveries continue.
func (k *Keeper) resign() {
	if k.machine != nil {
		k.machine.CollectDueChanges(false)
	}
	k.machine, k.turns = nil, nil
	clear(k.queues)
	k.mu.Lock()
	k.returned = nil
	clear(k.strikes)
	clear(k.spaces)
	clear(k.waiting)
	k.setTimer(0)
	k.mu.Unlock()
}

// begin finds the homes that have work.
func (k *Keeper) begin() error {
	clear(k.queues)
	k.turns = nil
	k.mu.Lock()
	clear(k.spaces)
	k.mu.Unlock()
	for after := ""; ; {
		found, _, err := k.machine.List(kv.DueStore, "", after, 1, 0)
		if err != nil || len(found) == 0 {
			return err
		}
		h, table, _, ok := split(found[0].Key)
		if !ok {
			return &fault.Error{Code: fault.Corrupt, Op: "due.begin", Key: shorten(found[0].Key),
				Msg: "due work has a key that cannot be decoded", Hint: "run the newest version on every server"}
		}
		if table == tableIndex {
			k.queueOf(h).more = true
		}
		after = h.table(0xff)
	}
}

func (k *Keeper) queueOf(h Home) *queue {
	q := k.queues[h]
	if q == nil {
		q = &queue{home: h}
		k.queues[h] = q
		k.turns = append(k.turns, q)
	}
	return q
}

// enqueue adds the record with this key to the queue of its home, if the record is an index record. It ignores other
// records.
func (k *Keeper) enqueue(key string) {
	h, table, rest, ok := split(key)
	if !ok || table != tableIndex {
		return
	}
	if at, name, ok := splitIndex(rest); ok {
		k.queueOf(h).add(item{key: key, at: at, name: name, written: true})
	}
}

// lookAgain reads the work in k.returned, and adds its index records to the queues again.
func (k *Keeper) lookAgain() error {
	k.mu.Lock()
	again := k.returned
	k.returned = nil
	k.mu.Unlock()
	for _, f := range again {
		w, found, err := Read(k.machine, f.home, f.name)
		if err != nil {
			return err
		}
		if found {
			k.enqueue(f.home.indexKey(w.State.At, f.name))
		}
	}
	return nil
}

type noObserver struct{}

func (noObserver) Fired(byte, time.Duration) {}
func (noObserver) Ended(byte, string)        {}
func (noObserver) UnderWay(byte, int)        {}

package workflows

import (
	"container/list"
	"math"
	"slices"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// instance is a workflow instance in the leader's memory. A busy instance has one goroutine, which executes
// Keeper.drive and owns the second group of the fields. While the instance is idle, Keeper.mu guards these fields, too.
//
// The fields are a cache of the records. If an entry fails or its outcome is not known, the instance is read again.
// Callers whose events were not stored get an error, and repeat their call.
type instance struct {
	Ref

	// Keeper.mu guards the first group of fields.
	queue   []step
	driving bool          // the goroutine of drive runs
	gone    bool          // the Keeper has dropped the instance
	ready   bool          // the instance waits in application.ready for a stream
	elem    *list.Element // in Keeper.idle; nil = not there
	size    int           // bytes that the cache counts
	out     *handedTurn   // nil = no stream has the turn
	last    streamID      // the stream that had the previous turn

	loaded  bool             // head and inbox were read
	head    head             // as it is in the log
	history *turn.History    // nil = not in memory
	past    [][]byte         // the encoded events of history; nil = not in memory
	due     map[int32]uint64 // open timers: when they fire, in milliseconds
	inbox   inbox
	fresh   *head     // head of an instance that is not in the log yet
	raised  time.Time // newest timestamp of a raised event, in the log or not
	refused int       // number of consecutive answers of workers that broke the rules
	retryAt time.Time // when a refused turn is handed out again; zero = now
	forcing bool      // a timer will set forced
	forced  bool      // the instance is terminated without a worker, because no worker has answered in time
	folds   bool      // new events are not stored yet: they wait for the answer of the turn that has them
	tried   uint64    // application.joins when the turn was handed out; a stalled turn waits for another stream
	// seen is how many events this leader has sent to the stream that the field last names, from the history of the
	// execution seenExecution.
	seen          uint64
	seenExecution string
}

// handedTurn is a turn that a stream has.
type handedTurn struct {
	stream *stream
	number uint64                 // of the delivery
	taken  int                    // number of events of the inbox that the turn consumes
	size   int                    // bytes of the history and the inbox, which stay in memory
	events []*protos.HistoryEvent // the new events; nil = not sent yet
	since  uint64                 // cluster time of the delivery, in milliseconds
}

// step is a task of the goroutine of an instance.
type step struct {
	do   func(c *change)
	fail func(err error) // called instead of do if the instance is dropped or unreadable; nil = no caller waits
}

// drop records that an instance is gone, because this server does not lead any more. Waiting callers get an error. The
// caller holds k.mu, and must remove the instance from k.instances.
func (i *instance) drop(k *Keeper) {
	i.gone = true
	for _, s := range i.queue {
		if s.fail != nil {
			s.fail(errNotLeader(opChange))
		}
	}
	i.queue = nil
	if !i.driving && i.pinned() {
		k.spawn("forget "+i.ID, func() { i.forget(errNotLeader(opChange)) }) // the waiting callers may need k.mu
	}
	k.opts.Cache.add(-i.size)
	i.size = 0
}

// forget drops what was read from the records. It passes err to the callers whose events are not stored.
func (i *instance) forget(err error) {
	for _, a := range i.inbox.fresh() {
		a.answer(err)
	}
	i.loaded, i.head, i.history, i.past, i.due, i.folds = false, head{}, nil, nil, nil, false
	i.inbox.set(nil, &i.Ref)
	i.fresh, i.raised, i.forced, i.tried = nil, zero, false, 0
}

// push queues a step for the instance r. The goroutine of the instance executes the step. If that goroutine is not
// running, push starts it. The caller holds k.mu.
func (k *Keeper) push(r Ref, s step) {
	i := k.instances[r]
	if i == nil {
		i = &instance{Ref: r}
		k.instances[r] = i
	}
	if i.elem != nil {
		k.idle.Remove(i.elem)
		i.elem = nil
	}
	i.queue = append(i.queue, s)
	if !i.driving {
		i.driving = true
		k.spawn("drive "+i.ID, func() { k.drive(i) })
	}
}

// look makes an instance hand out its turn if it has new events. The caller holds k.mu.
func (k *Keeper) look(r Ref) { k.push(r, step{do: func(*change) {}}) }

// drive executes the steps of an instance until no step is left. All waiting steps share one entry if possible.
func (k *Keeper) drive(i *instance) {
	for {
		k.mu.Lock()
		if i.gone {
			left := i.queue // steps that were put back for a later entry
			i.driving, i.queue = false, nil
			k.mu.Unlock()
			i.forget(errNotLeader(opChange)) // the waiting callers may need k.mu
			for _, s := range left {
				if s.fail != nil {
					s.fail(errNotLeader(opChange))
				}
			}
			return
		}
		if len(i.queue) == 0 {
			i.driving = false
			k.rest(i)
			k.mu.Unlock()
			return
		}
		reign := k.reign
		steps, c := i.queue, &change{k: k, i: i, group: k.group, machine: k.machine, now: k.group.Now()}
		i.queue = nil
		k.mu.Unlock()
		if err := i.load(c.machine); err != nil {
			for _, s := range steps {
				if s.fail != nil {
					s.fail(err)
				}
			}
			k.mu.Lock()
			k.release(i)
			if k.reigns(reign) {
				k.unread(err)
			}
			k.mu.Unlock()
			i.forget(err)
			continue
		}
		c.head, i.raised = i.head, latest(i.raised, timeOf(i.head.raised))
		if i.fresh != nil {
			c.head, c.created = *i.fresh, true
		}
		for n, s := range steps {
			if s.do(c); c.purged || c.postponed {
				if c.purged { // the following steps apply to a new instance with the same id
					n++
				}
				k.mu.Lock()
				i.queue = append(slices.Clone(steps[n:]), i.queue...)
				k.mu.Unlock()
				break
			}
		}
		if c.behind {
			c.failed(errBehind())
			continue
		}
		c.run()
	}
}

// rest counts the memory of an idle instance in the cache. While the cache is full, rest evicts the least recently used
// idle instances, except those that are pinned. The caller holds k.mu.
func (k *Keeper) rest(i *instance) {
	size := heldOverhead + int(i.head.bytes)*2 //nolint:gosec // bounded
	if i.past == nil {
		size = heldOverhead
	}
	size += i.inbox.weight
	k.opts.Cache.add(size - i.size)
	i.size = size
	if i.elem = k.idle.PushBack(i); i.pinned() {
		k.idle.Remove(i.elem)
		i.elem = nil
	}
	for k.opts.Cache.full() {
		first := k.idle.Front()
		if first == nil {
			return
		}
		k.evict(first.Value.(*instance)) //nolint:forcetypeassert // only instances
	}
}

// pinned reports whether the instance has something that is only in memory.
func (i *instance) pinned() bool {
	return i.out != nil || i.folds || i.forcing || !i.retryAt.IsZero() || i.inbox.unsaved()
}

func (k *Keeper) evict(i *instance) {
	k.idle.Remove(i.elem)
	i.elem = nil
	k.opts.Cache.add(-i.size)
	i.size = 0
	if k.instances[i.Ref] == i {
		delete(k.instances, i.Ref)
	}
	i.gone = true
}

// asKnown returns an operation of the given kind on the head, on the condition that the head in the log is the one that
// this leader knows.
func (i *instance) asKnown(kind command.OpKind) command.Op {
	op := command.Op{Kind: kind, Cond: command.CondRevision, Revision: i.head.revision, Store: kv.WorkflowStore,
		Key: i.key(tableHead, "")}
	if !i.exists() {
		op.Cond = command.CondAbsent
	}
	return op
}

// load reads the head and the inbox, unless they are in memory.
func (i *instance) load(m *kv.Machine) error {
	if i.loaded {
		return nil
	}
	v, err := m.Get(kv.WorkflowStore, i.key(tableHead, ""), 0)
	if err != nil {
		return err
	}
	i.head = head{low: middle, high: middle}
	i.inbox.set(nil, &i.Ref)
	if v.Found {
		h, ok := readHead(v.Value, v.Revision)
		if !ok {
			return errRecord("the head", i.Ref)
		}
		i.head = h
	}
	for after, more := "", true; more && v.Found; {
		var found []kv.Record
		found, more, err = m.Records(kv.WorkflowStore, i.key(tableInbox, ""), after, page, pageBytes, 0)
		if err != nil {
			return err
		}
		for n := range found {
			a, err := readArrival(found[n].Value)
			if err != nil {
				return errRecord("an event of the inbox", i.Ref)
			}
			after, a.seq = found[n].Key, number(found[n].Key)
			i.inbox.add(a)
		}
	}
	i.loaded = true
	return nil
}

func readArrival(value []byte) (*arrival, error) {
	events, ok := readEvents(value)
	if !ok || len(events) != 1 {
		return nil, fault.New(fault.Corrupt, "workflows.read", "an event")
	}
	e, err := decodeEvent(events[0])
	return &arrival{event: e, raw: events[0]}, err
}

func decodeEvent(raw []byte) (*protos.HistoryEvent, error) {
	e := &protos.HistoryEvent{}
	if err := proto.Unmarshal(raw, e); err != nil {
		return nil, fault.Wrap(err, "workflows.read", "an event of a workflow")
	}
	return e, nil
}

func encodeEvent(e *protos.HistoryEvent) []byte {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return nil // only for a text that is not UTF-8, and the decoder has refused such texts
	}
	return raw
}

// loadHistory reads the events of the current generation, unless they are in memory.
func (i *instance) loadHistory(m *kv.Machine) error {
	if i.history != nil {
		return nil
	}
	h, past := &turn.History{}, make([][]byte, 0, i.head.events)
	due := map[int32]uint64{}
	for after, more := "", true; more && i.head.chunks > 0; {
		found, again, err := m.Records(kv.WorkflowStore, i.key(tableChunk, ""), after, page, pageBytes, 0)
		if err != nil {
			return err
		}
		for n := range found {
			events, ok := readEvents(found[n].Value)
			if !ok {
				return errRecord("a part of the history", i.Ref)
			}
			for _, raw := range events {
				e, err := decodeEvent(raw)
				if err != nil {
					return errRecord("an event of the history", i.Ref)
				}
				h.Add(e)
				note(due, e)
			}
			past, after = append(past, events...), found[n].Key
		}
		more = again
	}
	if uint64(len(past)) != i.head.events {
		return errRecord("the history does not have the number of events of the head", i.Ref)
	}
	i.history, i.past, i.due = h, past, due
	return nil
}

// note updates the map due, which contains the open timers of an instance, for an event of the history. It adds a timer
// that the event has created, or removes a timer that has fired.
func note(due map[int32]uint64, e *protos.HistoryEvent) {
	if t := e.GetTimerCreated(); t != nil {
		if at, ok := dueAt(t.GetFireAt().AsTime()); ok {
			due[e.GetEventId()] = at
		}
	}
	if t := e.GetTimerFired(); t != nil {
		delete(due, t.GetTimerId())
	}
}

// farFuture is the first year in which a timer counts as never firing. An SDK that waits for an event without a limit
// creates a timer for the year 9999.
const farFuture = 9000

// dueAt returns the time of a timer in Unix milliseconds. It returns false for a timer that never fires.
func dueAt(t time.Time) (at uint64, ok bool) {
	if t.Year() >= farFuture {
		return 0, false
	}
	return millis(t), true
}

// millis returns t in Unix milliseconds, rounded up and at least 1.
func millis(t time.Time) uint64 {
	return uint64(max(t.Add(time.Millisecond-1).UnixMilli(), 1)) //nolint:gosec // positive
}

// nanosOf returns t in Unix nanoseconds. The result is between 1 and math.MaxInt64, which is in the year 2262. For a
// time outside this range, nanosOf returns the nearest value. It never returns 0, because 0 means that a time is not
// set.
func nanosOf(t time.Time) uint64 {
	switch {
	case t.Unix() < 0:
		return 1
	case t.Unix() >= math.MaxInt64/int64(time.Second):
		return math.MaxInt64
	}
	return uint64(max(t.UnixNano(), 1)) //nolint:gosec // positive
}

// zero is the zero time.
var zero time.Time

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func (i *instance) exists() bool { return i.head.revision != 0 }

func terminal(status int32) bool { return workflow.Terminal(protos.OrchestrationStatus(status)) }

const (
	statusPending   = int32(protos.OrchestrationStatus_ORCHESTRATION_STATUS_PENDING)
	statusSuspended = int32(protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED)
	statusStalled   = int32(protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED)
)

// Names of operations, for errors.
const (
	opChange = "workflows.Change"
	opStart  = "workflows.Start"
	opPurge  = "workflows.Purge"
	opWait   = "workflows.Wait"
	opWork   = "workflows.Work"
	opRead   = "workflows.State"
)

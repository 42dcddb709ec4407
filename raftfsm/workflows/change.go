package workflows

import (
	"slices"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// change collects what one log entry does to an instance. Every entry of an instance replaces its main record, the
// head. The log refuses the whole entry if the revision of the head is not the one that the leader knows. This stops
// entries of a deposed leader, and a second entry for the same turn.
type change struct {
	k       *Keeper
	i       *instance
	group   records.Group
	machine *kv.Machine
	now     uint64 // cluster time in milliseconds

	head      head         // the head after the entry
	execution string       // execution id of the new activities
	ops       []command.Op // operations of the entry, except the one on the head
	needed    bool         // the entry is needed even without ops
	created   bool         // the entry creates the instance
	wiped     bool         // the entry removes the records of the instance that the log has
	purged    bool         // the entry removes the instance
	behind    bool         // the log has a newer state of the instance, which must be read
	postponed bool         // the last step must be in the next entry

	replies   []func(error)
	stored    []*arrival // events that get a record
	used      []*arrival // events of the inbox that the turn consumes
	front     []*arrival // new events that come before all other events of the inbox
	outcome   *turn.Outcome
	retention workflow.Retention // applies if the instance ends
	raws      [][]byte           // the encoded events of outcome.Append
	tasks     []*task
	dues      []dueItem
	sends     []*message
}

func (c *change) time() time.Time { return time.UnixMilli(int64(c.now)).UTC() } //nolint:gosec // bounded

// birth returns the number of this entry. The number consists of the cluster time and random bits, and is always
// greater than the number of the previous entry of the instance.
//
// An instance that reuses the id of a purged instance has different numbers. They differ in the time or, within one
// millisecond, in the random bits.
func (c *change) birth() uint64 {
	if c.head.birth <= c.i.head.birth {
		c.head.birth = max(c.i.head.birth+1, c.now<<20|c.k.opts.Rand()&(1<<20-1))
	}
	return c.head.birth
}

// add adds an operation to the entry.
func (c *change) add(ops ...command.Op) {
	c.ops = append(c.ops, ops...)
	c.needed = true
}

// exists reports whether the instance exists in the log, or will exist after this entry.
func (c *change) exists() bool { return !c.purged && (c.i.exists() || c.created) }

// arrive adds an event to the inbox. If an event with the same idempotency key has arrived before, arrive adds nothing,
// and both senders get the same answer. If the inbox is full, arrive refuses events from outside (see fromOutside),
// except terminations.
func (c *change) arrive(a *arrival) {
	if a.key != 0 {
		if slices.Contains(c.head.recent, a.key) && !c.wiped {
			c.replies = append(c.replies, a.answer)
			return
		}
		for _, o := range c.i.inbox.fresh() {
			if o.key == a.key {
				c.join(o, a)
				return
			}
		}
	}
	if fromOutside(a.event) && c.i.inbox.full() {
		if o := c.i.inbox.termination(a.event); o != nil {
			c.join(o, a)
			return
		}
		if a.event.GetExecutionTerminated() == nil {
			a.answer(&fault.Error{Code: fault.Overloaded, Op: opChange, Key: c.i.ID,
				Msg:  "workflow '" + c.i.ID + "' has too many events that its workers have not handled",
				Hint: "start workers of the application, or terminate the instance"})
			return
		}
	}
	c.i.inbox.add(a)
	c.i.tried = 0
}

// fromOutside reports whether an event can come from outside the workflow, for example from a client. The number of
// such events is not limited, so they may be refused when the inbox is full. Results and timers are never refused: the
// workflow has started their activities, children and timers itself, which limits their number.
func fromOutside(e *protos.HistoryEvent) bool {
	switch e.GetEventType().(type) {
	case *protos.HistoryEvent_EventRaised, *protos.HistoryEvent_ExecutionSuspended,
		*protos.HistoryEvent_ExecutionResumed, *protos.HistoryEvent_ExecutionTerminated:
		return true
	}
	return false
}

// join gives the sender of a repeated event the same answer as the sender of the first event. o is the first event, and
// a is the repeated event. Both have the same effect.
func (c *change) join(o, a *arrival) {
	if o.seq != 0 {
		c.replies = append(c.replies, a.answer)
		return
	}
	first := o.reply
	o.reply = func(err error) {
		if first != nil {
			first(err)
		}
		a.answer(err)
	}
}

// run hands out the next turn of the instance, if there is one, and commits the entry. If no entry is needed, it only
// answers the callers that wait.
func (c *change) run() {
	i := c.i
	if c.outcome == nil && !c.purged && !c.wiped {
		c.hand()
	}
	if c.needed && (c.created || c.head.startAt != i.head.startAt) {
		i.folds = false // an instance is in the log only with its first event or its start timer
	}
	if !i.folds && !c.purged {
		c.store()
	}
	if !c.needed {
		for _, f := range c.replies {
			f(nil)
		}
		return
	}
	if !c.commit() {
		return
	}
	if !c.purged && len(i.inbox.list) > 0 {
		again := &change{ // the remaining events may be a turn
			k: c.k, i: i, group: c.group, machine: c.machine, now: c.now, head: i.head}
		again.run()
	}
}

// store adds records for the events that are only in memory. When the entry reaches maxStored bytes, the remaining
// events wait for the next entry, unless this entry creates or starts the instance.
func (c *change) store() {
	size := 0
	for n := range c.ops {
		size += len(c.ops[n].Key) + len(c.ops[n].Value)
	}
	starts := c.created || c.head.startAt != c.i.head.startAt
	for _, a := range c.i.inbox.fresh() {
		if a.used {
			continue
		}
		if size += len(a.raw); !starts && size > maxStored && size > len(a.raw) {
			return
		}
		a.seq = c.head.high
		c.head.high++
		c.keep(a)
	}
}

// keep adds the record of an event, the operations of the event, and its idempotency key to the entry.
func (c *change) keep(a *arrival) {
	c.add(set(c.i.inboxKey(a.seq), encodeEvents([][]byte{a.raw})))
	c.add(a.ops...)
	a.ops = nil
	c.head.remember(a.key)
	c.stored = append(c.stored, a)
}

// consume makes the entry remove the first n events of the inbox.
func (c *change) consume(n int) {
	for _, a := range c.i.inbox.list[:n] {
		if a.seq != 0 {
			c.add(remove(c.i.inboxKey(a.seq)))
		} else {
			c.add(a.ops...)
			c.head.remember(a.key)
		}
		a.used = true
		c.used = append(c.used, a)
	}
	c.needed = true
	c.i.folds = false
}

// apply adds the outcome of a turn to the entry. n is the number of events of the inbox that the turn has used.
func (c *change) apply(n int, o *turn.Outcome) {
	c.outcome = o
	i, h := c.i, &c.head
	c.execution = h.execution
	if o.Consumed {
		c.consume(n)
	}
	c.needed = true
	if o.Replace {
		c.dropHistory()
		h.generation++
		for _, e := range slices.Backward(o.Inbox) {
			h.low--
			a := &arrival{event: e, raw: encodeEvent(e), seq: h.low}
			c.front = append(c.front, a)
			c.keep(a)
			if s := e.GetExecutionStarted(); s != nil {
				h.execution = s.GetWorkflowInstance().GetExecutionId().GetValue()
			}
		}
		slices.Reverse(c.front)
	} else {
		for _, e := range o.Inbox {
			c.arrive(&arrival{event: e, raw: encodeEvent(e)})
		}
	}
	if len(o.Append) > 0 {
		for _, e := range o.Append {
			c.raws = append(c.raws, encodeEvent(e))
			h.bytes += uint64(len(c.raws[len(c.raws)-1]))
		}
		c.add(set(i.chunkKey(h.chunks), encodeEvents(c.raws)))
		h.chunks++
		h.events += uint64(len(o.Append))
	}
	for _, id := range o.Dropped {
		if at := i.due[id]; at != 0 {
			c.add(remove(i.dueKey(at, dueTimer, id)))
		}
	}
	c.work(o.Tasks, o.Timers, o.Messages)
	c.status(o)
}

// work adds the records of new activities, timers and messages to the entry.
func (c *change) work(tasks []turn.Task, timers []turn.Timer, messages []turn.Message) {
	birth := c.birth()
	for n := range tasks {
		c.addTask(birth, &tasks[n])
	}
	for n := range timers {
		t := &timers[n]
		if at, ok := dueAt(t.FireAt); ok {
			c.addDue(at, dueTimer, t.ID, encodeEvent(t.Event))
		}
	}
	for n := range messages {
		c.addMessage(birth, n, &messages[n])
	}
}

// dropHistory removes the history and the timers of the present generation.
func (c *change) dropHistory() {
	for n := range c.head.chunks {
		c.add(remove(c.i.chunkKey(n)))
	}
	c.head.chunks, c.head.events, c.head.bytes = 0, 0, 0
	c.dropTimers()
}

func (c *change) dropTimers() {
	for id, at := range c.i.due {
		c.add(remove(c.i.dueKey(at, dueTimer, id)))
	}
}

// addTask adds the record of an activity to the entry. birth is the number of the entry.
func (c *change) addTask(birth uint64, t *turn.Task) {
	app := t.App
	if app == "" {
		app = c.i.App
	}
	one := &task{id: taskID{c.i.Ref, t.ID, birth}, app: app, event: encodeEvent(t.Event), exec: c.execution}
	r := taskRecord{app: app, event: one.event, exec: one.exec}
	c.add(set(c.i.taskKey(one.id.task, birth), r.encode()))
	c.tasks = append(c.tasks, one)
}

// addDue adds a due record to the entry. at is the time in Unix milliseconds.
func (c *change) addDue(at uint64, kind byte, id int32, event []byte) {
	r := dueRecord{generation: c.head.generation, execution: c.head.creation, event: event}
	c.add(set(c.i.dueKey(at, kind, id), r.encode()))
	c.dues = append(c.dues, dueItem{at, c.i.place()})
}

// addMessage adds the record of a message for another instance to the entry. n is the number of the message within the
// entry, and birth is the number of the entry.
func (c *change) addMessage(birth uint64, n int, m *turn.Message) {
	app := m.App
	if app == "" {
		app = c.i.App
	}
	r := outRecord{to: Ref{app, m.Instance}, execution: m.Execution, key: m.Key, event: encodeEvent(m.Event)}
	one := &message{from: c.i.Ref, key: c.i.outboxKey(birth, n), outRecord: r}
	c.add(set(one.key, r.encode()))
	c.sends = append(c.sends, one)
}

// status updates the status and the times in the head after a turn with the outcome o.
func (c *change) status(o *turn.Outcome) {
	h, now := &c.head, uint64(c.time().UnixNano()) //nolint:gosec // positive
	was := h.status
	h.status = int32(o.Status)
	if o.Custom != nil {
		h.custom, h.hasCustom = o.Custom.GetValue(), true
	}
	if h.started == 0 {
		h.started = now
	}
	if terminal(h.status) && h.completed == 0 {
		h.completed = now
		c.dropTimers()
		if d := c.retention.Of(o.Status); d > 0 {
			c.addDue(millis(c.time().Add(d)), dueRetention, 0, nil)
		}
	}
	if was != h.status {
		c.list()
	}
}

// list adds the record of the instance in tableList, the index of instances, to the entry.
func (c *change) list() {
	r := listRecord{status: c.head.status, name: c.head.name}
	c.add(set(c.i.listKey(c.head.created), r.encode()))
}

// commit proposes the entry. If the entry is in the log, commit calls the method install, and otherwise the method
// failed. It reports whether the entry is in the log.
func (c *change) commit() bool {
	i, k := c.i, c.k
	op := i.asKnown(command.OpSet)
	if c.created {
		c.list()
	}
	if !c.i.raised.IsZero() {
		c.head.raised = uint64(c.i.raised.UnixNano()) //nolint:gosec // positive
	}
	c.birth()
	c.head.nonce, c.head.updated = k.opts.Rand(), uint64(c.time().UnixNano()) //nolint:gosec // positive
	if c.purged {
		op.Kind = command.OpDelete
	} else {
		op.Value = c.head.encode()
	}
	ops := append([]command.Op{op}, c.ops...)
	size := 0
	for n := range ops {
		size += len(ops[n].Key) + len(ops[n].Value) + 32
	}
	if size > maxEntry {
		err := &fault.Error{Code: fault.TooLarge, Op: opChange, Key: i.ID,
			Msg:  "one step of workflow '" + i.ID + "' has more data than an entry of the log",
			Hint: "start fewer activities in one turn, or pass less data"}
		k.opts.Logger.Warn("a step of a workflow cannot be stored and is repeated", "app", i.App, "instance", i.ID,
			"bytes", size, "error", err)
		c.failed(err)
		return false
	}
	res, err := k.commit(c.group, ops)
	switch {
	case err == nil && res.Outcome == kv.Applied:
		if !c.purged {
			c.head.revision = res.Revisions[0]
		}
	case err == nil:
		c.failed(errNotLeader(opChange)) // another leader has changed the instance
		return false
	default:
		if !c.applied(err) {
			c.failed(err)
			return false
		}
	}
	c.install()
	return true
}

// applied reports whether the entry is in the log although its proposal has returned err.
func (c *change) applied(err error) bool {
	if !fault.Is(err, fault.Indeterminate) || c.k.confirmNow(c.group) != nil {
		return false
	}
	v, err := c.machine.Get(kv.WorkflowStore, c.i.key(tableHead, ""), 0)
	if err != nil || c.purged && !v.Found {
		return err == nil
	}
	h, ok := readHead(v.Value, v.Revision)
	if ok && v.Found && h.nonce == c.head.nonce {
		c.head.revision = h.revision
		return true
	}
	return false
}

// failed handles an entry that is not in the log, or whose outcome is unknown. It drops the instance from memory, and
// returns err to the callers that wait for the entry. If a turn is too large for an entry, the senders of its events
// get fault.Unavailable instead, so that they send the events again.
func (c *change) failed(err error) {
	i, k, existed := c.i, c.k, c.i.exists()
	arrived, tooLarge := err, c.outcome != nil && fault.Is(err, fault.TooLarge)
	if tooLarge {
		// The turn is too large, but its events are not. So their senders must send them again.
		arrived = fault.New(fault.Unavailable, opChange, "the turn that has the event cannot be stored")
	}
	for _, a := range append(c.stored, c.used...) {
		a.answer(arrived)
	}
	for _, f := range c.replies {
		f(err)
	}
	k.mu.Lock()
	k.release(i)
	k.mu.Unlock()
	i.forget(arrived)
	k.mu.Lock()
	defer k.mu.Unlock()
	if i.gone {
		return
	}
	if tooLarge && existed {
		c.backOff()
	}
	if len(c.sends) > 0 {
		k.outbox.doubt(i.Ref)
	}
	k.decideLater(i.Ref)
}

// decideLater makes the Keeper find out, after a short pause, whether an entry with an unknown outcome was applied.
// The caller holds k.mu.
func (k *Keeper) decideLater(r Ref) {
	k.after(retryPause, func() { k.push(r, step{do: (*change).decide}) })
}

// decide makes sure that an earlier entry with an unknown outcome cannot be applied later. It proposes a new entry, on
// the condition that the head is still the one that this leader has just read. When the new entry is applied, the
// earlier one is in the log already or will be refused. decide then calls Keeper.recheck.
func (c *change) decide() {
	k, r := c.k, c.i.Ref
	if c.exists() {
		c.needed = true
		c.replies = append(c.replies, func(err error) {
			if err == nil {
				k.recheck(r)
			}
		})
		return
	}
	c.verified(nil, func(err error) {
		switch fault.CodeOf(err) {
		case "":
			k.recheck(r)
		case fault.Indeterminate, fault.Timeout:
			k.mu.Lock()
			defer k.mu.Unlock()
			k.decideLater(r)
		}
	})
}

// verified commits the given operations as a separate entry. It does not wait, and calls done with the outcome. If the
// head in the log is not the one that this leader knows, the entry is refused, and the leader reads the instance again.
func (c *change) verified(list []command.Op, done func(err error)) {
	i, k, g := c.i, c.k, c.group
	entry := append(ops(i.asKnown(command.OpCheck)), list...)
	k.spawn("verify "+i.ID, func() {
		res, err := k.commit(g, entry)
		if err == nil && res.Outcome != kv.Applied {
			err = errBehind()
			k.mu.Lock()
			if k.instances[i.Ref] == i && !i.gone {
				k.push(i.Ref, step{do: func(c *change) { c.behind = true }})
			}
			k.mu.Unlock()
		}
		done(err)
	})
}

func errBehind() error {
	return fault.New(fault.Unavailable, opChange, "the records of the workflow have changed in the meantime")
}

// recheck finds the records that an entry with an unknown outcome may have added. Call it when the outcome is known. It
// reads the timers and messages in the bucket of the instance again, and starts a scan of all waiting activities.
func (k *Keeper) recheck(r Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.machine == nil || k.closed {
		return
	}
	delete(k.outbox.doubts, r)
	k.timers.again(k, r.place())
	if err := k.outbox.load(k, r.place()); err != nil {
		k.unread(err)
		return
	}
	for _, a := range k.apps {
		a.moreTasks = true
	}
	k.scan()
}

// install updates the memory after the entry was applied, and answers the calls that wait for the entry.
func (c *change) install() {
	i, k := c.i, c.k
	was := i.head.status
	if c.wiped || c.purged || c.outcome != nil && c.outcome.Replace {
		i.history, i.past, i.due = nil, nil, nil
	}
	fresh := !i.exists() || c.wiped
	i.head, i.fresh = c.head, nil
	if c.outcome != nil {
		if i.history == nil && i.head.events == uint64(len(c.raws)) {
			i.history, i.due = &turn.History{}, map[int32]uint64{}
		}
		if i.history != nil {
			i.history.Add(c.outcome.Append...)
			i.past = append(i.past, c.raws...)
			for _, e := range c.outcome.Append {
				note(i.due, e)
			}
		}
	}
	if len(c.used) > 0 {
		i.inbox.set(slices.DeleteFunc(i.inbox.list, func(a *arrival) bool { return a.used }), &i.Ref)
	}
	if len(c.front) > 0 {
		i.inbox.set(append(c.front, i.inbox.list...), &i.Ref)
	}
	if c.purged {
		i.inbox.set(nil, &i.Ref)
		i.head = head{low: middle, high: middle}
	}
	k.mu.Lock()
	if c.wiped {
		i.retryAt, i.refused, i.forced = time.Time{}, 0, false
	}
	if !i.gone {
		for _, t := range c.tasks {
			if k.tasks[t.id] == nil { // otherwise a scan has found its record already
				k.queueTask(t)
			}
		}
		for _, d := range c.dues {
			k.timers.add(k, d)
		}
		for _, m := range c.sends {
			k.outbox.add(k, m)
		}
		k.application(i.App).places[i.bucket()] = true
		k.count(i, was, fresh, c.outcome)
		k.notify(i)
		for app := range c.apps() {
			k.fill(app)
		}
	}
	k.mu.Unlock()
	for _, a := range append(c.stored, c.used...) {
		a.answer(nil)
	}
	for _, f := range c.replies {
		f(nil)
	}
}

// apps returns the applications for which the entry has activities.
func (c *change) apps() map[string]bool {
	m := map[string]bool{}
	for _, t := range c.tasks {
		m[t.app] = true
	}
	return m
}

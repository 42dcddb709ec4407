package workflows

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// do executes a step of an instance, and waits for its reply. It then waits until a majority has confirmed that this
// server led after the call began. Otherwise a deposed leader could answer from an old state. If the step commits an
// entry, no other confirmation is needed.
func (k *Keeper) do(ctx context.Context, r Ref, op string, f func(c *change, reply func(error))) error {
	if err := r.check(op); err != nil {
		return err
	}
	done := make(chan error, 1)
	reply := func(err error) {
		select {
		case done <- err:
		default:
		}
	}
	k.mu.Lock()
	if err := k.lead(op); err != nil {
		k.mu.Unlock()
		return err
	}
	g, since := k.group, k.confirm.begin()
	k.push(r, step{do: func(c *change) { f(c, reply) }, fail: reply})
	k.mu.Unlock()
	select {
	case err := <-done:
		k.gate(ctx, "answer about "+r.ID)
		switch fault.CodeOf(err) {
		case fault.NotLeader, fault.Unavailable, fault.Indeterminate: // these errors need no confirmation
			return err
		}
		if wrong := k.confirmed(ctx, g, since); wrong != nil {
			return wrong
		}
		return err
	case <-ctx.Done():
		return &fault.Error{Code: fault.Indeterminate, Op: op, Key: r.ID, Err: ctx.Err(),
			Msg: "the change of the workflow was not confirmed in time; it may have been made"}
	}
}

// confirmNow waits until a majority confirms that this server leads, up to proposeTimeout.
func (k *Keeper) confirmNow(g records.Group) error {
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	return k.confirmed(ctx, g, k.confirm.begin())
}

// creation describes a new instance.
type creation struct {
	event   *protos.HistoryEvent // ExecutionStarted
	startAt time.Time            // zero = at once
	unique  bool                 // see turn.Reuse
	checked string               // execution id of a terminal instance whose descendants are known to be terminal
	fork    *turn.Fork           // of a rerun; nil = the instance begins with event
}

// opChildren is the operation name in an error that refuses to replace a terminal instance. After this error, the
// caller must check that all descendants of the instance are terminal, and try again.
const opChildren = "workflows.Children"

// create is the step for a new instance. A terminal instance with the same id may be replaced, see reuses.
func (c *change) create(n *creation, reply func(error)) {
	i := c.i
	s := n.event.GetExecutionStarted()
	execution := s.GetWorkflowInstance().GetExecutionId().GetValue()
	p := s.GetParentInstance()
	if c.exists() {
		same, err := c.reuses(s, execution, n.unique)
		switch {
		case err != nil:
			reply(err)
			return
		case same && i.exists():
			c.replies = append(c.replies, reply)
			return
		case same: // the creation by the first call is on its way into the log
			c.needed = true
			c.replies = append(c.replies, reply)
			return
		case c.created: // another instance with this id is on its way into the log, so it is not terminal
			reply(workflow.AlreadyRuns(i.ID))
			return
		case n.checked != c.head.execution && c.hasChildren():
			reply(fault.New(fault.Conflict, opChildren, c.head.execution))
			return
		}
		if c.postpone() {
			return
		}
		if err := c.wipe(); err != nil {
			reply(err)
			return
		}
	}
	now := uint64(c.time().UnixNano()) //nolint:gosec // positive
	h := head{revision: i.head.revision, low: middle, high: middle, status: statusPending, name: s.GetName(),
		version: s.GetVersion().GetValue(), execution: execution, creation: execution,
		generation: i.head.generation + 1, created: now, unique: n.unique}
	if p != nil {
		h.parentID = p.GetWorkflowInstance().GetInstanceId()
		h.parentExecution = p.GetWorkflowInstance().GetExecutionId().GetValue()
		h.parentApp, h.parentTask = p.GetAppID(), p.GetTaskScheduledId()
	}
	c.head, c.created = h, true
	a := &arrival{event: n.event, raw: encodeEvent(n.event), reply: reply}
	switch at := millis(n.startAt); {
	case !n.startAt.IsZero() && at > c.now:
		c.head.startAt = at
		c.addDue(at, dueStart, 0, a.raw)
		c.replies = append(c.replies, reply)
		return
	case n.fork != nil:
		c.fork(n.fork, reply)
		return
	case c.wiped:
		c.needed = true
	}
	fresh := c.head
	i.fresh = &fresh
	c.arrive(a)
}

// fork makes the instance begin with the history, activities, timers and messages of f.
func (c *change) fork(f *turn.Fork, reply func(error)) {
	h := &c.head
	c.execution = h.execution
	var raws [][]byte
	history := &turn.History{}
	for _, e := range f.Events {
		raw := encodeEvent(e)
		raws, h.bytes = append(raws, raw), h.bytes+uint64(len(raw))
		history.Add(e)
	}
	c.add(set(c.i.chunkKey(0), encodeEvents(raws)))
	h.chunks, h.events, h.status, h.started = 1, uint64(len(raws)), int32(history.Status()), h.created
	c.work(f.Tasks, f.Timers, f.Messages)
	c.i.history, c.i.past, c.i.due = nil, nil, nil
	c.needed, c.wiped = true, true
	c.replies = append(c.replies, reply)
}

// reuses decides whether a new instance may replace the existing instance with the same id. It returns an error if the
// rules of turn.Reuse forbid this. same is true if the existing instance was created by the same request.
func (c *change) reuses(s *protos.ExecutionStartedEvent, execution string, unique bool) (same bool, err error) {
	h, p := &c.head, s.GetParentInstance()
	if p != nil && h.parentID != "" {
		same = h.parentID == p.GetWorkflowInstance().GetInstanceId() && h.parentApp == p.GetAppID() &&
			h.parentExecution == p.GetWorkflowInstance().GetExecutionId().GetValue() &&
			h.parentTask == p.GetTaskScheduledId()
	} else if p == nil && h.parentID == "" {
		same = execution != "" && h.creation == execution
	}
	switch {
	case same:
		return true, nil
	case !terminal(h.status):
		return false, workflow.AlreadyRuns(c.i.ID)
	case unique && !(p != nil && h.parentID == p.GetWorkflowInstance().GetInstanceId() && h.parentApp == p.GetAppID()):
		return false, workflow.AlreadyExists(c.i.ID)
	}
	return false, nil
}

// hasChildren reports whether the instance has created children. It returns true if the history cannot be read.
func (c *change) hasChildren() bool {
	if err := c.i.loadHistory(c.machine); err != nil {
		return true
	}
	for _, raw := range c.i.past {
		if e, err := decodeEvent(raw); err != nil || e.GetChildWorkflowInstanceCreated() != nil {
			return true
		}
	}
	return false
}

// postpone reports whether the current step must wait for the next entry. It must wait if this entry already has
// operations, because wipe would not find the records that they add. If the result is true, the step must return. It is
// then executed again for the next entry.
func (c *change) postpone() bool {
	c.postponed = len(c.ops) > 0
	return c.postponed
}

// wipe makes the entry remove the records of the instance. The head stays, and so do messages that were not sent yet.
func (c *change) wipe() error {
	i := c.i
	if err := i.loadHistory(c.machine); err != nil {
		return err
	}
	ops, replies, needed := c.ops, c.replies, c.needed
	if err := c.wipeTasks(); err != nil { // the entry must not have only a part of the removal
		c.ops, c.replies, c.needed = ops, replies, needed
		return err
	}
	c.dropHistory()
	for _, a := range i.inbox.list {
		if a.seq != 0 {
			c.add(remove(i.inboxKey(a.seq)))
		} else {
			c.replies = append(c.replies, a.answer) // the event came for the instance that this entry removes
		}
	}
	i.inbox.set(nil, &i.Ref)
	if c.head.startAt != 0 {
		c.add(remove(i.dueKey(c.head.startAt, dueStart, 0)))
	}
	c.add(remove(i.listKey(c.head.created)))
	c.wiped = true
	c.k.mu.Lock()
	c.k.release(i)
	c.k.mu.Unlock()
	i.folds = false
	return nil
}

// wipeTasks makes the entry remove the activities of the present execution. Activities of earlier executions may be too
// many for one entry, so wipeTasks removes them at once, in separate entries. This is safe, because their results would
// have no effect.
func (c *change) wipeTasks() error {
	i := c.i
	for after, more := "", true; more; {
		found, again, err := c.machine.Records(kv.WorkflowStore, i.key(tableTask, ""), after, page, pageBytes, 0)
		if err != nil {
			return err
		}
		var stale []command.Op
		var ids []taskID
		for n := range found {
			after = found[n].Key
			_, _, rest, _ := instanceOf(after)
			id := taskID{i.Ref, unbits(uint64(be32(rest))), number(rest)} //nolint:gosec // bits
			if t, ok := readTask(found[n].Value); ok && t.exec != c.head.execution {
				stale, ids = append(stale, remove(after)), append(ids, id)
				continue
			}
			c.add(remove(after))
			c.replies = append(c.replies, func(err error) {
				if err == nil {
					c.k.forgetTasks(id)
				}
			})
		}
		if len(stale) > 0 {
			if _, err := c.k.commit(c.group, stale); err != nil {
				return err
			}
			c.k.forgetTasks(ids...)
		}
		more = again
	}
	return nil
}

// forgetTasks ends activities whose records were removed.
func (k *Keeper) forgetTasks(ids ...taskID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		if t := k.tasks[id]; t != nil {
			k.finished(t, nil)
		}
	}
}

// purge makes the entry remove the instance. The caller has checked that the removal is allowed.
func (c *change) purge() error {
	if err := c.wipe(); err != nil {
		c.k.failed(err)
		return err
	}
	c.purged, c.needed = true, true
	return nil
}

// present returns an error if the instance does not exist or is stalled. Otherwise it returns whether the instance has
// ended.
func (c *change) present() (over bool, err error) {
	switch {
	case !c.exists():
		return false, workflow.NoInstance(c.i.ID)
	case c.head.status == statusStalled:
		return false, workflow.Stalled(c.i.ID)
	}
	return terminal(c.head.status), nil
}

// start creates an instance. It returns when the instance is in the log.
func (k *Keeper) start(ctx context.Context, r Ref, n *creation) error {
	return k.do(ctx, r, opStart, func(c *change, reply func(error)) {
		n.event.Timestamp = timestamppb.New(c.time())
		c.create(n, reply)
	})
}

// event adds an event to an instance. If a call is repeated with the same key, the event is added only once. A
// terminal instance ignores the event.
func (k *Keeper) event(ctx context.Context, r Ref, e *protos.HistoryEvent, key uint64) error {
	return k.do(ctx, r, opChange, func(c *change, reply func(error)) {
		over, err := c.present()
		if err != nil {
			reply(err)
			return
		}
		if repeats := c.i.inbox.repeats(e, c.head.status); over || repeats {
			if list := c.i.inbox.list; repeats && c.i.inbox.unsaved() {
				// The earlier event with the same effect may still be on its way into the log. When the last event of
				// the inbox is in the log, the earlier event is there, too.
				c.i.folds, c.needed = false, true
				c.join(list[len(list)-1], &arrival{reply: reply})
				return
			}
			c.replies = append(c.replies, reply)
			return
		}
		c.event(e, key, reply)
	})
}

// event adds an event of a client or of another instance to the inbox. It sets the timestamp of the event.
func (c *change) event(e *protos.HistoryEvent, key uint64, reply func(error)) {
	i := c.i
	if e.GetEventRaised() != nil {
		i.raised = turn.NextRaised(i.raised, c.time())
		e.Timestamp = timestamppb.New(i.raised)
	} else {
		e.Timestamp = timestamppb.New(c.time())
	}
	if e.GetExecutionTerminated() != nil && c.head.startAt != 0 {
		// The start event of a scheduled instance is only in the due record. The termination needs it in the inbox.
		key := i.dueKey(c.head.startAt, dueStart, 0)
		if v, err := c.machine.Get(kv.WorkflowStore, key, 0); err == nil && v.Found {
			if d, ok := readDue(v.Value); ok {
				if started, err := decodeEvent(d.event); err == nil {
					c.arrive(&arrival{event: started, raw: d.event, ops: ops(remove(key))})
					c.head.startAt, c.needed = 0, true
				}
			}
		}
	}
	c.arrive(&arrival{event: e, raw: encodeEvent(e), key: key, reply: reply})
}

// Deliver processes a message from another instance, at the group of its target. It returns nil if the message is in
// the log or has no effect, and the sender then removes the message. If the inbox of the target is full, Deliver drops
// a raised event and returns nil.
func (k *Keeper) Deliver(ctx context.Context, r *outRecord) error {
	e, err := decodeEvent(r.event)
	if err != nil {
		return err
	}
	return k.do(ctx, r.to, opChange, func(c *change, reply func(error)) {
		if s := e.GetExecutionStarted(); s != nil {
			n := &creation{event: e, checked: c.head.execution, unique: turn.Foreign(r.to.App, e)}
			if t := s.GetScheduledStartTimestamp(); t != nil {
				n.startAt = t.AsTime()
			}
			c.create(n, reply)
			return
		}
		if !c.exists() || terminal(c.head.status) || !c.addressed(r.execution, e) {
			c.replies = append(c.replies, reply) // the message has no effect
			return
		}
		if e.GetEventRaised() != nil && c.i.inbox.full() {
			// The sender must not wait, because the messages of other instances would wait, too.
			k.opts.Logger.Warn("an event of a workflow is dropped: its target has too many that are not handled",
				"app", r.to.App, "instance", r.to.ID, "event", e.GetEventRaised().GetName(),
				"hint", "start workers of the application, or terminate the instance")
			c.replies = append(c.replies, reply)
			return
		}
		c.event(e, hash(r.key), reply)
	})
}

// addressed reports whether a message with the given execution id is for the present execution of the instance. A
// termination by the parent applies to all executions of the same creation, because the parent does not learn the new
// execution id when a child continues as new.
func (c *change) addressed(execution string, e *protos.HistoryEvent) bool {
	return execution == "" || execution == c.head.execution ||
		e.GetExecutionTerminated() != nil && execution == c.head.creation
}

// purge removes an instance that is terminal, or any instance if force is true.
func (k *Keeper) purge(ctx context.Context, r Ref, force bool) error {
	return k.do(ctx, r, opPurge, func(c *change, reply func(error)) { c.tryPurge(force, reply) })
}

func (c *change) tryPurge(force bool, reply func(error)) {
	switch {
	case !c.exists():
		reply(workflow.NoInstance(c.i.ID))
	case !terminal(c.head.status) && !force && c.head.status == statusStalled:
		reply(workflow.Stalled(c.i.ID))
	case !terminal(c.head.status) && !force:
		reply(workflow.NotTerminal(c.i.ID))
	case c.postpone():
	default:
		if err := c.purge(); err != nil {
			reply(err)
			return
		}
		c.replies = append(c.replies, reply)
	}
}

// waiter is a call that waits for a status.
type waiter struct {
	until workflow.Until
	done  chan error
}

func (w *waiter) end(err error) {
	select {
	case w.done <- err:
	default:
	}
}

// wait waits until the instance has reached the given status. It returns false if this takes longer than waitPatience.
func (k *Keeper) wait(ctx context.Context, r Ref, until workflow.Until) (reached bool, err error) {
	if err := r.check(opWait); err != nil {
		return false, err
	}
	k.mu.Lock()
	if err := k.lead(opWait); err != nil {
		k.mu.Unlock()
		return false, err
	}
	if k.waiting >= maxWaiters {
		k.mu.Unlock()
		return false, fault.New(fault.Overloaded, opWait, "too many calls wait for workflows")
	}
	g, m, since := k.group, k.machine, k.confirm.begin()
	w := &waiter{until: until, done: make(chan error, 1)}
	k.waiters[r] = append(k.waiters[r], w)
	k.waiting++
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if list := k.waiters[r]; slices.Contains(list, w) {
			k.waiting--
			if list = slices.DeleteFunc(list, func(o *waiter) bool { return o == w }); len(list) == 0 {
				delete(k.waiters, r)
			} else {
				k.waiters[r] = list
			}
		}
	}()
	// The head is read after the waiter was added, so no change is missed.
	h, found, err := readHeadOf(m, r)
	if err != nil {
		return false, err
	}
	if found && until.Reached(protos.OrchestrationStatus(h.status)) {
		return true, k.confirmed(ctx, g, since)
	}
	enough := make(chan struct{})
	stop := k.opts.AfterFunc(waitPatience, func() { close(enough) })
	defer stop()
	select {
	case err := <-w.done:
		return err == nil, err
	case <-enough:
		return false, k.confirmed(ctx, g, since)
	case <-ctx.Done():
		return false, fault.Wrap(ctx.Err(), opWait, "the workflow has not reached the status")
	}
}

// notify ends the calls that wait for the present status of an instance. The caller holds k.mu.
func (k *Keeper) notify(i *instance) {
	list := k.waiters[i.Ref]
	if len(list) == 0 || !i.exists() {
		return
	}
	status := protos.OrchestrationStatus(i.head.status)
	left := slices.DeleteFunc(list, func(w *waiter) bool {
		if w.until.Reached(status) {
			w.end(nil)
			k.waiting--
			return true
		}
		return false
	})
	if len(left) == 0 {
		delete(k.waiters, i.Ref)
	} else {
		k.waiters[i.Ref] = left
	}
}

func readHeadOf(m *kv.Machine, r Ref) (h head, found bool, err error) {
	v, err := m.Get(kv.WorkflowStore, r.key(tableHead, ""), 0)
	if err != nil || !v.Found {
		return h, false, err
	}
	h, ok := readHead(v.Value, v.Revision)
	if !ok {
		return h, false, errRecord("the head", r)
	}
	return h, true, nil
}

// reading returns the state machine for a linearizable read. It waits until a majority has confirmed that this server
// leads.
func (k *Keeper) reading(ctx context.Context, op string) (*kv.Machine, error) {
	k.mu.Lock()
	if err := k.lead(op); err != nil {
		k.mu.Unlock()
		return nil, err
	}
	g, m := k.group, k.machine
	k.mu.Unlock()
	return m, g.Confirm(ctx)
}

// state returns the public state of an instance, or nil if the instance does not exist. payloads means the same as
// in workflow.Engine.State.
func (k *Keeper) state(ctx context.Context, r Ref, payloads bool) (*protos.WorkflowState, error) {
	if err := r.check(opRead); err != nil {
		return nil, err
	}
	m, err := k.reading(ctx, opRead)
	if err != nil {
		return nil, err
	}
	for {
		h, found, err := readHeadOf(m, r)
		if err != nil || !found {
			return nil, err
		}
		s, err := stateOf(m, r, &h, payloads)
		if err != nil {
			return nil, err
		}
		if again, _, err := readHeadOf(m, r); err != nil || again.revision == h.revision {
			return s, err
		}
	}
}

// stateOf returns the public state of an instance. It reads only the first and the last record of the history.
func stateOf(m *kv.Machine, r Ref, h *head, payloads bool) (*protos.WorkflowState, error) {
	var keys []string
	switch {
	case h.chunks == 1:
		keys = []string{r.chunkKey(0)}
	case h.chunks > 1:
		keys = []string{r.chunkKey(0), r.chunkKey(h.chunks - 1)}
	}
	history, start := &turn.History{}, (*protos.HistoryEvent)(nil)
	for _, key := range keys {
		v, err := m.Get(kv.WorkflowStore, key, 0)
		if err != nil {
			return nil, err
		}
		raws, ok := readEvents(v.Value)
		if v.Found && !ok {
			return nil, errRecord("a part of the history", r)
		}
		for _, raw := range raws {
			e, err := decodeEvent(raw)
			if err != nil {
				return nil, err
			}
			history.Add(e)
		}
	}
	if history.Started() == nil {
		var err error
		if start, err = startOf(m, r, h); err != nil {
			return nil, err
		}
	}
	var custom *wrapperspb.StringValue
	if h.hasCustom {
		custom = wrapperspb.String(h.custom)
	}
	s := history.State(r.ID, start, custom, payloads)
	s.WorkflowStatus, s.Name = protos.OrchestrationStatus(h.status), h.name
	s.CreatedTimestamp = nanos(h.created)
	return s, nil
}

func nanos(n uint64) *timestamppb.Timestamp { return timestamppb.New(timeOf(n)) }

// startOf returns the event ExecutionStarted of an instance that has not had a turn, or nil if there is no such event.
func startOf(m *kv.Machine, r Ref, h *head) (*protos.HistoryEvent, error) {
	if h.startAt != 0 {
		v, err := m.Get(kv.WorkflowStore, r.dueKey(h.startAt, dueStart, 0), 0)
		if err != nil || !v.Found {
			return nil, err
		}
		d, ok := readDue(v.Value)
		if !ok {
			return nil, errRecord("a start time", r)
		}
		return decodeEvent(d.event)
	}
	found, _, err := m.Records(kv.WorkflowStore, r.key(tableInbox, ""), "", page, pageBytes, 0)
	if err != nil {
		return nil, err
	}
	for n := range found {
		a, err := readArrival(found[n].Value)
		if err != nil {
			return nil, err
		}
		if a.event.GetExecutionStarted() != nil {
			return a.event, nil
		}
	}
	return nil, nil
}

// events returns up to limit encoded events of the history, beginning at the position first. It returns fewer events if
// they have more than maxAnswer bytes. found is false if the instance does not exist. more is true if there are further
// events.
func (k *Keeper) events(ctx context.Context, r Ref, first uint64, limit int) (raws [][]byte, found, more bool,
	err error) {
	if err := r.check(opRead); err != nil {
		return nil, false, false, err
	}
	m, err := k.reading(ctx, opRead)
	if err != nil {
		return nil, false, false, err
	}
	h, found, err := readHeadOf(m, r)
	if err != nil || !found {
		return nil, false, false, err
	}
	at, size := uint64(0), 0
	for after, again := "", true; again; {
		var records []kv.Record
		records, again, err = m.Records(kv.WorkflowStore, r.key(tableChunk, ""), after, page, pageBytes, 0)
		if err != nil {
			return nil, false, false, err
		}
		for n := range records {
			after = records[n].Key
			part, ok := readEvents(records[n].Value)
			if !ok {
				return nil, false, false, errRecord("a part of the history", r)
			}
			for _, raw := range part {
				if at++; at <= first {
					continue
				}
				if len(raws) == limit || size > maxAnswer {
					return raws, true, true, nil
				}
				raws, size = append(raws, raw), size+len(raw)
			}
		}
	}
	return raws, true, at < h.events && len(raws) > 0, nil
}

// applications returns one page of the applications that have had records in this group or that have workers, in the
// order of their ids. A page has up to limit applications. after is the last id of the previous page.
func (k *Keeper) applications(ctx context.Context, after string, limit int) (list []workflow.Application, more bool,
	err error) {
	if _, err := k.reading(ctx, opRead); err != nil {
		return nil, false, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var ids []string
	for id, a := range k.apps {
		if id > after && len(a.places)+len(a.streams) > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	more = len(ids) > limit
	for _, id := range ids[:min(len(ids), limit)] {
		list = append(list, workflow.Application{ID: id, Workers: len(k.apps[id].streams)})
	}
	return list, more, nil
}

// maxAnswer bounds the bytes of an answer with a history. The last event may exceed it.
const maxAnswer = 16 << 20

// listed is an instance in a list.
type listed struct {
	workflow.Listed
	created uint64 // Unix nanoseconds
}

// list returns one page of the instances of an application in this group that match f, in the order of their creation.
// A page has at most limit instances. after is the creation time of the last instance of the previous page in Unix
// nanoseconds, and afterID is the id of that instance.
func (k *Keeper) list(ctx context.Context, app string, f *workflow.Filter, after uint64, afterID string,
	limit int) (page []listed, more bool, err error) {
	m, err := k.reading(ctx, opRead)
	if err != nil {
		return nil, false, err
	}
	k.mu.Lock()
	var places []place
	if a := k.apps[app]; a != nil {
		for b := range a.places {
			places = append(places, place{app, b})
		}
	}
	k.mu.Unlock()
	slices.SortFunc(places, comparePlaces)
	for _, p := range places {
		part, again, err := listPlace(ctx, m, p, f, after, afterID, limit)
		if err != nil {
			return nil, false, err
		}
		page, more = append(page, part...), more || again
	}
	slices.SortFunc(page, compareListed)
	if len(page) > limit {
		page, more = page[:limit], true
	}
	return page, more, nil
}

func compareListed(a, b listed) int {
	return cmp.Or(cmp.Compare(a.created, b.created), cmp.Compare(a.ID, b.ID))
}

func listPlace(ctx context.Context, m *kv.Machine, p place, f *workflow.Filter, after uint64, afterID string,
	limit int) (part []listed, more bool, err error) {
	prefix := p.table(tableList)
	for from := prefix + be64(after) + afterID; ; {
		if err := ctx.Err(); err != nil { // the filter may match none of many instances
			return nil, false, fault.Wrap(err, opRead, "listing workflows")
		}
		found, again, err := m.Records(kv.WorkflowStore, prefix, from, page, pageBytes, 0)
		if err != nil {
			return nil, false, err
		}
		for n := range found {
			from = found[n].Key
			rest := from[len(prefix):]
			l, ok := readList(found[n].Value)
			if !ok || len(rest) < 9 {
				return nil, false, errRecord("the index of instances", Ref{App: p.app})
			}
			created := number(rest[:8])
			one := listed{created: created, Listed: workflow.Listed{ID: rest[8:], Name: l.name,
				Status: protos.OrchestrationStatus(l.status), Created: timeOf(created)}}
			first := *f
			first.WithoutChildren = false
			if !first.Matches(&one.Listed) {
				continue
			}
			if len(part) == limit {
				return part, true, nil
			}
			h, found, err := readHeadOf(m, Ref{p.app, one.ID})
			if err != nil {
				return nil, false, err
			}
			one.Updated, one.Parent = timeOf(h.updated), h.parentID
			one.Status = protos.OrchestrationStatus(h.status)
			if found && f.Matches(&one.Listed) {
				part = append(part, one)
			}
		}
		if !again {
			return part, false, nil
		}
	}
}

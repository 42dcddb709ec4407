package workflows

import (
	"slices"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// application is an application as the leader knows it: the streams of its workers, and the work that waits for them.
type application struct {
	name    string
	places  map[uint16]bool // buckets with records in this group
	streams []*stream
	joins   uint64 // number of streams that have joined so far
	// retention is the retention of the newest stream. It applies to instances that end without a worker.
	retention workflow.Retention
	handed    int         // bytes of the histories of the turns that streams have
	next      int         // index of the stream that got the newest activity
	ready     []readyTurn // instances that have a turn, and no stream had room
	tasks     []*task     // activities that wait for a stream
	// moreReady and moreTasks report that the records may have further turns or activities that wait.
	moreReady, moreTasks bool
	blocked              bool   // work waits, and no stream is connected
	blockedAt            uint64 // since when, in cluster time (milliseconds)
	// stalled has hashes of the ids of stalled instances, as far as this leader knows them, at most maxQueue.
	stalled map[uint64]struct{}
}

// readyTurn is an instance that waits for a stream.
type readyTurn struct {
	Ref
	since uint64 // cluster time in milliseconds
}

// block records that an application has waiting work but no stream. It does nothing if a stream is connected. The
// caller holds k.mu.
func (k *Keeper) block(a *application) {
	if !a.blocked && len(a.streams) == 0 {
		a.blocked, a.blockedAt = true, k.group.Now()
	}
}

// oldest returns the cluster time at which the oldest waiting turn or activity began to wait; 0 = nothing waits. If no
// stream is connected, the result is the time at which the leader first saw waiting work. The caller holds k.mu.
func (k *Keeper) oldest(a *application) (since uint64) {
	if len(a.streams) == 0 {
		if a.blocked {
			since = a.blockedAt
		}
		return since
	}
	if len(a.ready) > 0 {
		since = a.ready[0].since
	}
	for _, t := range a.tasks {
		if !t.done && t.lease == nil && k.tasks[t.id] == t {
			if since == 0 || t.since < since {
				since = t.since
			}
			break
		}
	}
	return since
}

// taskID identifies an activity. birth is the number of the log entry that scheduled it (see change.birth). So no two
// activities have the same taskID.
type taskID struct {
	Ref
	task  int32
	birth uint64
}

// task is an activity in memory. It waits for a stream, or a stream has it.
type task struct {
	id      taskID
	app     string  // application whose workers execute the activity
	exec    string  // execution id of the workflow
	event   []byte  // encoded event TaskScheduled
	attempt uint64  // number of the newest attempt; 0 = none
	lease   *stream // the stream that has the activity; nil = the activity waits
	done    bool    // a result is on its way into the log
	failed  bool    // the result is a failure
	since   uint64  // cluster time at which the activity began to wait, or at which its stream got it
}

// application returns the application with this name, and adds it if necessary. The caller holds k.mu.
func (k *Keeper) application(name string) *application {
	a := k.apps[name]
	if a == nil {
		a = &application{name: name, places: map[uint16]bool{}, moreReady: true, moreTasks: true}
		k.apps[name] = a
	}
	return a
}

// maxTargets bounds the applications that target adds.
const maxTargets = 4096

// target returns the application whose workers execute an activity, and adds it if necessary. Workflows can name any
// application, so target returns nil instead of adding a new application if there are already maxTargets. The
// activities of such an application are found when its workers connect. The caller holds k.mu.
func (k *Keeper) target(name string) *application {
	if k.apps[name] == nil && len(k.apps) >= maxTargets {
		return nil
	}
	return k.application(name)
}

// pickTurn returns the stream that gets a turn, or nil if no stream has room. It prefers the stream last, which had the
// previous turn of the instance. Otherwise it returns the stream with the fewest turns.
func (a *application) pickTurn(last streamID) (best *stream) {
	for _, s := range a.streams {
		if turns, _ := s.room(); turns <= 0 {
			continue
		}
		if s.streamID == last {
			return s
		}
		if best == nil || s.turns < best.turns {
			best = s
		}
	}
	return best
}

// pickActivity returns the stream that gets the next activity, in round-robin order. It returns nil if no stream has
// room.
func (a *application) pickActivity() *stream {
	for range a.streams {
		a.next = (a.next + 1) % len(a.streams)
		if _, activities := a.streams[a.next].room(); activities > 0 {
			return a.streams[a.next]
		}
	}
	return nil
}

// queueTask puts an activity into the queue of its application. If the application has no stream or a full queue, the
// activity stays only in its record, and a later scan finds it. The caller holds k.mu.
func (k *Keeper) queueTask(t *task) {
	a := k.target(t.app)
	if t.lease = nil; a == nil {
		delete(k.tasks, t.id)
		return
	}
	if len(a.streams) == 0 || len(a.tasks) >= maxQueue {
		a.moreTasks = true
		k.block(a)
		delete(k.tasks, t.id)
		return
	}
	k.tasks[t.id], t.since = t, k.group.Now()
	a.tasks = append(a.tasks, t)
}

// queueReady puts an instance that has a turn into the queue of its application. If the application has no stream or a
// full queue, a later scan finds the instance. The caller holds k.mu.
func (k *Keeper) queueReady(i *instance) {
	a := k.application(i.App)
	if i.ready {
		return
	}
	if len(a.streams) == 0 || len(a.ready) >= maxQueue {
		a.moreReady = true
		k.block(a)
		return
	}
	i.ready = true
	a.ready = append(a.ready, readyTurn{i.Ref, k.group.Now()})
}

// fill hands out waiting activities and turns of an application to streams with room. The caller holds k.mu.
func (k *Keeper) fill(app string) {
	a := k.apps[app]
	if a == nil || len(a.streams) == 0 || !k.leads() { // a later leader may have scheduled what was read
		return
	}
	for len(a.tasks) > 0 {
		t := a.tasks[0]
		if t.done || t.lease != nil || k.tasks[t.id] != t {
			a.tasks = a.tasks[1:]
			continue
		}
		s := a.pickActivity()
		if s == nil {
			break
		}
		a.tasks = a.tasks[1:]
		t.lease, t.since = s, k.group.Now()
		t.attempt++
		s.activities++
		k.totals.handedTask(app, t.attempt > 1)
		s.session.send(&item{stream: s.id, kind: itemTask, ref: t.id.Ref, number: t.attempt, task: t.id.task,
			birth: t.id.birth, exec: t.exec, fresh: [][]byte{t.event}})
	}
	room := 0
	for _, s := range a.streams {
		turns, _ := s.room()
		room += max(turns, 0)
	}
	for ; room > 0 && len(a.ready) > 0 && a.handed < maxHanded; room-- {
		r := a.ready[0].Ref
		a.ready = a.ready[1:]
		if i := k.instances[r]; i != nil {
			i.ready = false
		}
		k.look(r)
	}
	if a.moreReady && len(a.ready) < maxQueue/2 || a.moreTasks && len(a.tasks) < maxQueue/2 && k.endGrace == nil {
		k.scan()
	}
}

// release takes the turn of an instance away from its stream. The caller holds k.mu.
func (k *Keeper) release(i *instance) {
	if i.out == nil {
		return
	}
	s := i.out.stream
	s.turns--
	k.application(i.App).handed -= i.out.size
	delete(s.held, i.Ref)
	i.out = nil
	k.fill(i.App)
}

// runs reports whether the instance has a turn that can be handed out. It does not check whether a stream already has
// this turn.
func (c *change) runs() bool {
	i := c.i
	if !c.exists() || len(i.inbox.list) == 0 || c.head.startAt != 0 || terminal(c.head.status) {
		return false
	}
	return i.forced && c.ends() || i.retryAt.IsZero() || !c.time().Before(i.retryAt)
}

// ends reports whether the inbox has a termination of the instance.
func (c *change) ends() bool { return c.i.inbox.end != nil }

// hand gives the next turn of the instance to a stream. If no stream has room, the instance waits. A turn that
// terminates the instance is executed without a worker in these cases:
//
//   - No stream has room.
//   - The turn is too large for a worker.
//   - No worker has answered in time.
func (c *change) hand() {
	i, k := c.i, c.k
	if c.exists() && terminal(c.head.status) && len(i.inbox.list) > 0 {
		c.consume(len(i.inbox.list)) // the instance has ended, so the events have no effect
		return
	}
	if c.exists() && c.ends() && !i.forced {
		c.forceLater()
	}
	if !c.runs() {
		return
	}
	terminates := c.ends()
	ends := terminates && i.forced
	var s *stream
	k.mu.Lock()
	a := k.application(i.App)
	if c.head.status == statusStalled {
		k.stall(i) // a previous leader may have counted the stall
	}
	if i.gone || i.out != nil && !ends || c.head.status == statusStalled && i.tried == a.joins && !terminates {
		k.mu.Unlock()
		return
	}
	tooLarge := c.tooLarge()
	if tooLarge && !terminates {
		k.mu.Unlock()
		c.stall()
		return
	}
	if s = a.pickTurn(i.last); (s == nil || tooLarge) && terminates {
		ends = true // the termination does not need a worker
	}
	if ends {
		k.release(i)
	} else {
		size := int(c.head.bytes) + i.inbox.weight //nolint:gosec // bounded
		if s == nil || a.handed > 0 && a.handed+size > maxHanded {
			k.queueReady(i)
			k.mu.Unlock()
			return
		}
		k.deliveries++
		a.handed += size
		i.out = &handedTurn{stream: s, number: k.deliveries, taken: i.inbox.batch(), size: size, since: c.now}
		s.turns++
		s.held[i.Ref] = i
	}
	i.retryAt, i.tried = zero, a.joins
	k.mu.Unlock()
	if err := i.loadHistory(c.machine); err != nil {
		k.failed(err)
		k.mu.Lock()
		k.release(i)
		c.retryAfter(lastBackoff)
		k.mu.Unlock()
		return
	}
	n := i.inbox.batch()
	if ends {
		c.end()
		return
	}
	events := turn.Begin(i.history, eventsOf(i.inbox.list[:n]), c.time())
	if len(events) == 1 {
		k.mu.Lock()
		k.release(i)
		k.mu.Unlock()
		c.consume(n) // all events are duplicates, or have no effect
		return
	}
	c.deliver(s, events, n)
}

// tooLarge reports whether the next turn is too large for a message to a node: its history and its events together have
// more than maxTurn bytes.
func (c *change) tooLarge() bool {
	bytes, b := int(c.head.bytes), &c.i.inbox //nolint:gosec // bounded
	return bytes+b.weight > maxTurn && bytes+b.next() > maxTurn
}

// stall makes the instance stall, because its turn is too large for a worker.
func (c *change) stall() {
	if c.head.status == statusStalled {
		return
	}
	if err := c.i.loadHistory(c.machine); err != nil {
		c.k.failed(err)
		return
	}
	c.k.opts.Logger.Warn("a workflow stalls: its history and the next event are too large", "app", c.i.App, "instance",
		c.i.ID, "bytes", c.head.bytes, "hint", "pass less data; purge the instance with force to remove it")
	c.apply(0, turn.Stall(c.turnState(nil), protos.StalledReason_PAYLOAD_SIZE_EXCEEDED, tooLong, c.time()))
}

// forceLater makes the instance end without a worker if it still has a termination in its inbox after terminatePause.
func (c *change) forceLater() {
	i, k := c.i, c.k
	if i.forcing {
		return
	}
	i.forcing = true
	k.mu.Lock()
	defer k.mu.Unlock()
	k.after(terminatePause, func() {
		if k.instances[i.Ref] == i {
			k.push(i.Ref, step{do: func(c *change) { i.forcing, i.forced = false, c.ends() }})
		}
	})
}

// end terminates an instance without a worker. If the inbox has more events than fit into a turn, end uses only the
// events that start or terminate the instance.
func (c *change) end() {
	list := c.i.inbox.list
	if c.i.inbox.batch() < len(list) {
		list = slices.DeleteFunc(slices.Clone(list), func(a *arrival) bool {
			return a.event.GetExecutionStarted() == nil && a.event.GetExecutionTerminated() == nil
		})
	}
	events := turn.Begin(c.i.history, eventsOf(list), c.time())
	o, err := turn.Apply(c.turnState(events), nil, c.time())
	if err != nil {
		c.k.failed(err)
		return
	}
	c.k.mu.Lock()
	c.retention = c.k.application(c.i.App).retention
	c.k.mu.Unlock()
	c.apply(len(c.i.inbox.list), o)
}

func (c *change) turnState(events []*protos.HistoryEvent) *turn.State {
	return &turn.State{ID: c.i.ID, App: c.i.App, Namespace: c.k.opts.Namespace, History: c.i.history, New: events}
}

// deliver sends a turn with the given new events to a stream. taken is the number of events of the inbox that the turn
// uses.
func (c *change) deliver(s *stream, events []*protos.HistoryEvent, taken int) {
	i, k := c.i, c.k
	raw := make(map[*protos.HistoryEvent][]byte, len(events))
	for _, a := range i.inbox.list[:taken] {
		raw[a.event] = a.raw
	}
	i.folds = i.folds || i.inbox.unsaved()
	it := &item{stream: s.id, kind: itemTurn, ref: i.Ref, exec: c.head.execution, past: slices.Clip(i.past)}
	for _, e := range events {
		b := raw[e]
		if b == nil {
			b = encodeEvent(e)
		}
		it.fresh = append(it.fresh, b)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if i.out == nil { // the stream has ended
		i.folds = false
		return
	}
	i.out.events, it.number = events, i.out.number
	if s.streamID == i.last && i.seenExecution == c.head.execution && i.seen <= uint64(len(i.past)) {
		it.from = i.seen
	}
	i.last, i.seen, i.seenExecution = s.streamID, uint64(len(i.past)), c.head.execution
	k.totals.of(i.App).turnsHanded++
	s.session.send(it)
	if i.folds {
		k.after(foldPause, func() {
			if k.instances[i.Ref] == i {
				k.push(i.Ref, step{do: func(*change) { i.folds = false }})
			}
		})
	}
}

// completeTurn is the step that processes the answer of a worker to a turn. It ignores an answer to an earlier turn. If
// the answer breaks the rules of package turn, the turn is handed out again after a pause.
func (c *change) completeTurn(session string, number uint64, answer *protos.WorkflowResponse, reply func(error)) {
	i, k := c.i, c.k
	k.mu.Lock()
	out := i.out
	if out == nil || out.number != number || out.stream.session.id != session || out.events == nil {
		k.mu.Unlock()
		c.replies = append(c.replies, reply) // the answer has no effect
		return
	}
	k.totals.of(i.App).turnTimes.add(c.now - min(out.since, c.now))
	k.release(i)
	k.mu.Unlock()
	i.folds = false
	if c.outcome != nil || c.purged || c.wiped {
		c.replies = append(c.replies, reply)
		return
	}
	o, err := turn.Apply(c.turnState(out.events), answer, c.time())
	if err != nil {
		i.history, i.past, i.due = nil, nil, nil // to save memory, because many turns may wait after a refusal
		k.mu.Lock()
		k.totals.of(i.App).refused++
		c.backOff()
		k.mu.Unlock()
		k.opts.Logger.Warn("the answer of a worker breaks the rules; the turn is handed out again", "app", i.App,
			"instance", i.ID, "error", err)
		reply(err)
		return
	}
	i.refused = 0
	c.replies = append(c.replies, reply)
	if c.tooLong(o) {
		k.opts.Logger.Warn("a workflow stalls: its history is too long", "app", i.App, "instance", i.ID,
			"bytes", c.head.bytes, "parts", c.head.chunks, "open", i.history.Open(),
			"hint", "let the workflow continue as new before; purge the instance with force to remove it")
		o = turn.Stall(c.turnState(out.events), protos.StalledReason_PAYLOAD_SIZE_EXCEEDED, tooLong, c.time())
	}
	c.retention = out.stream.worker.Retention
	c.apply(out.taken, o)
}

// backOff hands out the turn of the instance again after a pause. The pause doubles with each refused turn, from
// firstBackoff to lastBackoff. The caller holds k.mu.
func (c *change) backOff() {
	c.i.refused++
	c.retryAfter(min(firstBackoff<<min(c.i.refused-1, 10), lastBackoff))
}

// retryAfter hands the turn of the instance out again after a pause. The caller holds k.mu.
func (c *change) retryAfter(pause time.Duration) {
	i, k := c.i, c.k
	i.retryAt = c.time().Add(pause)
	k.after(pause, func() { k.look(i.Ref) })
}

// tooLong is the description of the stall of an instance that is too large.
const tooLong = "the history of the workflow has more than 48 MiB; let the workflow continue as new"

// tooLong reports whether the outcome o would make an instance too large. An instance must fit into a message to a
// worker, and one log entry must be able to remove it. An outcome that ends the instance or continues as new is never
// too long.
func (c *change) tooLong(o *turn.Outcome) bool {
	if o.Completed != nil || o.Replace || o.Stalled != nil {
		return false
	}
	i := c.i
	size := int(c.head.bytes) //nolint:gosec // bounded
	for _, e := range o.Append {
		size += proto.Size(e)
	}
	keys := int(c.head.chunks) + 1 + i.history.Open() + len(o.Tasks) + len(o.Timers) //nolint:gosec // bounded
	return size+keys*(len(i.App)+len(i.ID)+opCost) > maxHistory
}

// completeTask adds the result of an activity to the entry, which also removes the record of the activity. If there is
// no such record, the result is ignored. So only the first result of an activity has an effect.
func (c *change) completeTask(id taskID, attempt uint64, answer *protos.ActivityResponse, reply func(error)) {
	i, k := c.i, c.k
	key := i.taskKey(id.task, id.birth)
	k.mu.Lock()
	t := k.tasks[id]
	if t == nil {
		k.mu.Unlock()
		v, err := c.machine.Get(kv.WorkflowStore, key, 0)
		if err != nil {
			reply(err)
			return
		}
		if !v.Found {
			c.replies = append(c.replies, reply) // the activity has a result already
			return
		}
		r, ok := readTask(v.Value)
		if !ok {
			reply(errRecord("an activity", i.Ref))
			return
		}
		k.mu.Lock()
		if t = k.tasks[id]; t == nil && !i.gone {
			t = &task{id: id, app: r.app, exec: r.exec, event: r.event, attempt: attempt}
			k.tasks[id] = t
		}
	}
	if t == nil || t.done {
		k.mu.Unlock()
		reply(fault.New(fault.Unavailable, opWork, "a result of the activity is being stored"))
		return
	}
	t.done, t.failed = true, answer.GetFailureDetails() != nil
	k.mu.Unlock()
	finish := func(err error) {
		k.mu.Lock()
		k.finished(t, err)
		k.mu.Unlock()
		reply(err)
	}
	scheduled, err := decodeEvent(t.event)
	if err != nil {
		finish(err)
		return
	}
	if !c.exists() { // an entry that replaces the head would create the instance
		c.verified(ops(remove(key)), finish)
		return
	}
	if terminal(c.head.status) || t.exec != c.head.execution {
		c.add(remove(key)) // the result has no effect
		c.replies = append(c.replies, finish)
		return
	}
	answer.TaskId = id.task
	e := turn.Result(answer, scheduled.GetTaskScheduled().GetTaskExecutionId(), c.time())
	c.arrive(&arrival{event: e, raw: encodeEvent(e), ops: ops(remove(key)), reply: finish})
}

// finished ends an activity whose record was removed from the log, usually by the entry with its result. If err is not
// nil, this entry has failed, and the activity waits for another result. The caller holds k.mu.
func (k *Keeper) finished(t *task, err error) {
	if k.tasks[t.id] != t {
		return // the Keeper does not lead any more
	}
	if err != nil {
		t.done = false
		if t.lease == nil {
			k.queueTask(t)
		}
		return
	}
	delete(k.tasks, t.id)
	now := k.group.Now()
	k.totals.result(t.app, t.failed)
	if s := t.lease; s != nil {
		k.totals.of(t.app).activityTimes.add(now - min(t.since, now))
		s.activities--
		k.fill(t.app)
	}
}

// scan starts a goroutine that finds waiting turns and activities in the records. Call it when the records may have
// work that is not in the queues. The caller holds k.mu.
func (k *Keeper) scan() {
	if k.scanAgain = true; k.scanning {
		return
	}
	k.scanning = true
	k.spawn("scan", func() {
		for k.scanOnce() {
		}
	})
}

// scanOnce scans the buckets of all applications, and returns true. It returns false if no scan was requested since the
// last one began, or if the Keeper has resigned or is closed.
func (k *Keeper) scanOnce() bool {
	k.mu.Lock()
	if !k.scanAgain || k.machine == nil || k.closed {
		k.scanning = false
		k.mu.Unlock()
		return false
	}
	k.scanAgain = false
	m, reign, tasks := k.machine, k.reign, k.endGrace == nil
	var places []place
	var hungry []*application // with activities that were left in the records
	for _, a := range k.apps {
		for b := range a.places {
			places = append(places, place{a.name, b})
		}
		if len(a.streams) > 0 {
			if tasks && a.moreTasks {
				hungry = append(hungry, a)
			}
			a.moreReady, a.moreTasks = false, a.moreTasks && !tasks
		}
	}
	k.mu.Unlock()
	slices.SortFunc(places, comparePlaces)
	for _, p := range places {
		if !k.scanReady(m, reign, p) || tasks && !k.scanTasks(m, reign, p, hungry) {
			break
		}
	}
	return true
}

func (k *Keeper) scanReady(m *kv.Machine, reign uint64, p place) bool {
	for after := ""; ; {
		found, _, err := m.List(kv.WorkflowStore, p.table(tableInbox), after, 1, 0)
		k.mu.Lock()
		if !k.reigns(reign) {
			k.mu.Unlock()
			return false
		}
		if err != nil {
			k.unread(err)
			k.mu.Unlock()
			return false
		}
		a := k.application(p.app)
		if len(found) == 0 || len(a.streams) == 0 {
			k.mu.Unlock()
			return true
		}
		r, _, _, _ := instanceOf(found[0].Key)
		if i := k.instances[r]; i == nil || !i.ready && i.out == nil {
			if len(a.ready) >= maxQueue {
				a.moreReady = true
				k.mu.Unlock()
				return true
			}
			k.look(r)
		}
		k.mu.Unlock()
		after = r.key(tableInbox, "\xff\xff\xff\xff\xff\xff\xff\xff\xff")
	}
}

// scanTasks puts the activities of a bucket into the queues. It returns false if the Keeper has resigned or a read has
// failed.
//
// scanTasks stops early when the queues of all applications in the list hungry are full. The next scan starts when one
// of the queues is less than half full, and reads the bucket from the beginning. It repeats few reads, because the
// records of activities with a result are gone. So the time to read a backlog is proportional to its length.
func (k *Keeper) scanTasks(m *kv.Machine, reign uint64, p place, hungry []*application) bool {
	for after, more := "", true; more; {
		found, again, err := m.Records(kv.WorkflowStore, p.table(tableTask), after, page, pageBytes, 0)
		k.mu.Lock()
		if !k.reigns(reign) {
			k.mu.Unlock()
			return false
		}
		if err != nil {
			k.unread(err)
			k.mu.Unlock()
			return false
		}
		apps := map[string]bool{}
		for n := range found {
			after = found[n].Key
			k.foundTask(m, &found[n], apps)
		}
		for app := range apps {
			k.fill(app)
		}
		k.scanned += len(found)
		if more = again; more && sated(hungry) {
			for _, a := range hungry {
				a.moreTasks = true
			}
			more = false
		}
		k.mu.Unlock()
	}
	return true
}

// sated reports whether the activity queues of all given applications are full. It returns false for an empty list. The
// caller holds k.mu.
func sated(hungry []*application) bool {
	return len(hungry) > 0 && !slices.ContainsFunc(hungry, func(a *application) bool { return len(a.tasks) < maxQueue })
}

// foundTask queues an activity that a scan has found, and adds its application to apps. It skips an activity that is
// already in memory, that has got a result in the meantime, or whose application has no stream. The caller holds k.mu.
func (k *Keeper) foundTask(m *kv.Machine, found *kv.Record, apps map[string]bool) {
	r, _, rest, ok := instanceOf(found.Key)
	t, readable := readTask(found.Value)
	if !ok || !readable || len(rest) != 12 {
		k.failed(errRecord("an activity", r))
		return
	}
	id := taskID{r, unbits(uint64(be32(rest))), number(rest)} //nolint:gosec // bits
	a := k.target(t.app)
	if a == nil || k.tasks[id] != nil {
		return
	}
	if len(a.streams) == 0 {
		a.moreTasks = true
		return
	}
	if v, err := m.Get(kv.WorkflowStore, found.Key, 0); err != nil || !v.Found {
		return // the activity has got its result since
	}
	k.queueTask(&task{id: id, app: t.app, exec: t.exec, event: t.event})
	apps[t.app] = true
}

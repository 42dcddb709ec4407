package workflows

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Limits of what a stream gets from one leader. The node itself limits what its workers get from all groups together.
const (
	maxTurns      = 256
	maxActivities = 256
	maxPull       = 256 // items in one answer
	maxPullBytes  = 4 << 20
	maxHanded     = 64 << 20 // bytes of the histories of an application's turns that streams have; at least one turn
)

// streamID identifies a stream of a node.
type streamID struct {
	session string
	id      uint64
}

// stream is the stream of a worker, as the leader knows it.
type stream struct {
	streamID
	session    *session
	app        string
	worker     workflow.Worker
	turns      int               // turns that the stream has
	activities int               // activities that the stream has
	held       map[Ref]*instance // instances whose turn the stream has
}

// room returns how many further turns and activities the stream can get within the limits of its worker. The node
// enforces these limits, too. But work beyond the limits would wait at the node while other nodes are idle.
func (s *stream) room() (turns, activities int) {
	turns, activities = maxTurns, maxActivities
	if n := s.worker.MaxTurns; n > 0 {
		turns = min(turns, n)
	}
	if n := s.worker.MaxActivities; n > 0 {
		activities = min(activities, n)
	}
	return turns - s.turns, activities - s.activities
}

// session is the session of a node with workers. It ends when the node has not pulled for sessionLife. The leader then
// hands out the turns and activities of the session again. The node ends the streams that had activities.
type session struct {
	id       string
	revision uint64 // of its record
	number   uint64 // Join.Number of the call that has begun the session
	streams  map[uint64]*stream
	out      []*item // items that are not sent yet
	// last is the newest answer, until the node confirms it. If the answer was lost, the next pull returns it again.
	last    []*item
	answers uint64 // number of the newest answer; greater than those of earlier sessions
	wake    chan struct{}
	ended   chan struct{}
	pulls   int         // pulls that wait
	expiry  func() bool // stops the timer that ends the session
}

// The kinds of items.
const (
	itemTurn = 1 // a turn of an instance
	itemTask = 2 // an activity
)

// item is work for a stream.
type item struct {
	stream uint64
	kind   byte
	ref    Ref
	number uint64   // number of the delivery of a turn, or of the attempt of an activity
	exec   string   // execution id of the workflow
	from   uint64   // number of events of the history that this leader has sent to the stream before
	past   [][]byte // the history before a turn; only the events from position from on are sent
	fresh  [][]byte // new events of a turn; the event TaskScheduled of an activity
	task   int32    // id of an activity
	birth  uint64   // number of the entry that scheduled an activity, see change.birth
}

func (i *item) size() (n int) {
	for _, e := range i.past[i.from:] {
		n += len(e)
	}
	for _, e := range i.fresh {
		n += len(e)
	}
	return n + 128
}

// Held is an activity that a stream of a node has when the node joins.
type Held struct {
	Stream  uint64 // id of the stream
	App, ID string // instance of the activity
	Task    int32  // id of the activity
	Birth   uint64 // number of the entry that scheduled the activity
	Attempt uint64 // number of the attempt; 1 = the first
}

// Join describes a node that begins a session, with its streams and activities.
type Join struct {
	Session  string
	Previous string                     // session of the node at an earlier leader; empty = none
	Number   uint64                     // how many times the node has tried to join; 0 = unknown
	Streams  map[uint64]string          // application of each stream of the node, by the id of the stream
	Workers  map[uint64]workflow.Worker // by the id of the stream
	Held     []Held
}

func (s *session) send(i *item) {
	s.out = append(s.out, i)
	s.rouse()
}

func (s *session) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// end makes the pulls of a session return. The caller removes the session from the Keeper.
func (s *session) end() {
	if s.expiry != nil {
		s.expiry()
	}
	select {
	case <-s.ended:
	default:
		close(s.ended)
	}
}

// Join begins a session. The session gets work only after its record is in the log. If the leader changes, the next
// leader finds the record, and waits for this node before it hands out the activities of the node again.
func (k *Keeper) Join(ctx context.Context, j *Join) error {
	k.mu.Lock()
	if err := k.lead(opWork); err != nil {
		k.mu.Unlock()
		return err
	}
	g := k.group
	if len(k.sessions) >= maxSessions || len(j.Streams) > maxStreams {
		k.mu.Unlock()
		return fault.New(fault.Overloaded, opWork, "too many nodes or workers have joined")
	}
	k.mu.Unlock()
	ops := []command.Op{set(sessionPrefix(k.opts.Group)+j.Session, []byte{recordVersion})}
	if j.Previous != "" {
		ops = append(ops, remove(sessionPrefix(k.opts.Group)+j.Previous))
	}
	res, err := g.Commit(ctx, &command.Request{Kind: command.KindWrite, Ops: ops})
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lead(opWork); err != nil {
		return err
	}
	// The node may have joined this leader before: with its previous session, or by a call whose answer was lost.
	before := []*session{k.sessions[j.Previous], k.sessions[j.Session]}
	if old := before[1]; old != nil && j.Number != 0 && j.Number <= old.number {
		old.revision = max(old.revision, res.Revisions[0])
		if j.Number == old.number {
			return nil // the call is repeated, and streams may have begun or ended since
		}
		return fault.New(fault.Unavailable, opWork, "the node has joined again since this call")
	}
	s := &session{id: j.Session, number: j.Number, streams: map[uint64]*stream{}, wake: make(chan struct{}, 1),
		ended: make(chan struct{}), answers: k.group.Now() << 20, revision: res.Revisions[0]}
	k.sessions[j.Session] = s
	k.expireLater(s)
	ids := slices.Sorted(maps.Keys(j.Streams))
	for _, id := range ids {
		k.addStream(s, id, j.Streams[id], j.Workers[id])
	}
	for n := range j.Held {
		if err := k.held(s, before, &j.Held[n]); err != nil {
			return err
		}
	}
	for _, old := range before { // after the loop above has moved the leases that the node still has
		if old != nil {
			k.endSession(old, false)
		}
	}
	delete(k.absent, j.Previous)
	delete(k.absent, j.Session)
	if len(k.absent) == 0 && k.endGrace != nil {
		k.grantAll()
	}
	for _, id := range ids {
		k.fill(j.Streams[id])
	}
	return nil
}

// held restores the lease of an activity that a node has reported in its join. s is the new session of the node. before
// has earlier sessions of the node at this leader; its elements may be nil. The caller holds k.mu.
func (k *Keeper) held(s *session, before []*session, h *Held) error {
	id, st := taskID{Ref{h.App, h.ID}, h.Task, h.Birth}, s.streams[h.Stream]
	t := k.tasks[id]
	if st == nil || t != nil && t.lease != nil && !slices.Contains(before, t.lease.session) {
		return nil
	}
	if t != nil && t.lease != nil {
		t.lease.activities--
		t.lease, t.attempt = st, max(t.attempt, h.Attempt)
		st.activities++
		return nil
	}
	if t != nil && t.done {
		return nil
	}
	v, err := k.machine.Get(kv.WorkflowStore, id.taskKey(id.task, id.birth), 0)
	if err != nil || !v.Found {
		return err
	}
	r, ok := readTask(v.Value)
	if !ok {
		return errRecord("an activity", id.Ref)
	}
	if t == nil {
		t = &task{id: id, app: r.app, exec: r.exec, event: r.event}
		k.tasks[id] = t
	}
	t.lease, t.attempt = st, max(t.attempt, h.Attempt)
	st.activities++
	return nil
}

// grantAll permits this leader to hand out all activities, even those that earlier leaders may have handed out. Call it
// when all nodes that had sessions at earlier leaders have reported their activities, or when sessionLife has passed.
// The caller holds k.mu.
func (k *Keeper) grantAll() {
	if k.endGrace != nil {
		k.endGrace()
		k.endGrace = nil
	}
	for id, revision := range k.absent {
		k.forgetSession(id, revision)
	}
	clear(k.absent)
	for _, a := range k.apps {
		a.moreTasks = true
	}
	k.scan()
}

// forgetSession removes the record of a session that has ended. It does nothing if the node has joined again, because
// the record then has another revision. The caller holds k.mu.
func (k *Keeper) forgetSession(id string, revision uint64) {
	g, op := k.group, remove(sessionPrefix(k.opts.Group)+id)
	op.Cond, op.Revision = command.CondRevision, revision
	k.spawn("forget session "+id, func() {
		// An error does little harm: the next leader waits for a session that does not exist any more.
		_, _ = k.commit(g, ops(op))
	})
}

// AddStream adds a stream to a session. It returns false if this leader does not know the session.
func (k *Keeper) AddStream(session string, id uint64, app string, w workflow.Worker) (known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lead(opWork); err != nil {
		return false, err
	}
	s := k.sessions[session]
	if s == nil {
		return false, nil
	}
	if s.streams[id] == nil {
		if len(s.streams) >= maxStreams {
			return true, fault.New(fault.Overloaded, opWork, "the node has too many workers")
		}
		k.addStream(s, id, app, w)
		k.fill(app)
	}
	return true, nil
}

// addStream adds a stream. The caller holds k.mu, and must call fill afterwards.
func (k *Keeper) addStream(s *session, id uint64, app string, w workflow.Worker) {
	st := &stream{streamID: streamID{s.id, id}, session: s, app: app, worker: w, held: map[Ref]*instance{}}
	s.streams[id] = st
	a := k.application(app)
	a.streams = append(a.streams, st)
	a.joins++
	a.retention = w.Retention
	a.blocked = false
	a.moreReady = true // the next scan also finds stalled instances
}

// RemoveStream ends a stream. The turns and activities that the stream has are handed out again.
func (k *Keeper) RemoveStream(session string, id uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lead(opWork); err != nil {
		return err
	}
	if s := k.sessions[session]; s != nil {
		k.removeStream(s, id)
	}
	return nil
}

func (k *Keeper) removeStream(s *session, id uint64) {
	st := s.streams[id]
	if st == nil {
		return
	}
	delete(s.streams, id)
	a := k.application(st.app)
	a.streams = slices.DeleteFunc(a.streams, func(o *stream) bool { return o == st })
	for _, r := range slices.SortedFunc(maps.Keys(st.held), compareRefs) {
		i := st.held[r]
		k.release(i)
		k.push(i.Ref, step{do: func(c *change) { c.i.folds, c.i.tried = false, 0 }})
	}
	var tasks []*task
	for _, t := range k.tasks {
		if t.lease == st {
			tasks = append(tasks, t)
		}
	}
	slices.SortFunc(tasks, func(a, b *task) int {
		return cmp.Or(compareRefs(a.id.Ref, b.id.Ref), cmp.Compare(a.id.birth, b.id.birth),
			cmp.Compare(a.id.task, b.id.task))
	})
	for _, t := range tasks {
		if t.lease = nil; !t.done {
			k.queueTask(t)
		}
	}
	k.fill(st.app)
}

// expireLater starts a timer that ends a session after sessionLife. The next pull stops the timer.
func (k *Keeper) expireLater(s *session) {
	s.expiry = k.after(sessionLife, func() {
		if k.sessions[s.id] == s && s.pulls == 0 {
			k.endSession(s, true)
		}
	})
}

// endSession ends a session and its streams. If forget is true, it also removes the record of the session. The caller
// holds k.mu.
func (k *Keeper) endSession(s *session, forget bool) {
	s.end()
	if k.sessions[s.id] == s {
		delete(k.sessions, s.id)
	}
	if forget {
		k.forgetSession(s.id, s.revision)
	}
	for _, id := range slices.Sorted(maps.Keys(s.streams)) {
		k.removeStream(s, id)
	}
}

// answer is the answer to a pull.
type answer struct {
	number uint64 // of the answer, which the next pull confirms; 0 = there was no work
	proven bool   // a majority has confirmed that the server led after the pull began
	items  []*item
}

// pull returns the next work for a session. If there is no work for pullPatience, it returns an empty answer, and the
// node pulls again. received is the number of the last answer that the node has received; 0 = none. known is false if
// this leader does not know the session.
//
// Before pull returns an activity, a majority confirms that this server has led since the call began. Otherwise a
// deposed leader could hand out an activity after its successor has stopped waiting for the node.
func (k *Keeper) pull(ctx context.Context, id string, received uint64) (a answer, known bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.lead(opWork); err != nil {
		return a, false, err
	}
	s, g, since := k.sessions[id], k.group, k.confirm.begin()
	if s == nil {
		return a, false, nil
	}
	if s.pulls++; s.expiry != nil {
		s.expiry()
	}
	defer func() {
		if s.pulls--; s.pulls == 0 && k.sessions[id] == s {
			k.expireLater(s)
		}
	}()
	enough := make(chan struct{})
	stop := k.opts.AfterFunc(pullPatience, func() { close(enough) })
	defer stop()
	for {
		if received == s.answers {
			s.last = nil
		}
		if s.last == nil {
			if s.last = k.take(s); s.last != nil {
				s.answers++
			}
		}
		if s.last != nil {
			a = answer{number: s.answers, items: s.last}
		}
		k.mu.Unlock()
		if a.items == nil {
			select {
			case <-s.wake:
				k.gate(ctx, "pull "+id)
				k.mu.Lock()
				continue
			case <-enough:
			case <-ctx.Done():
				err = fault.Wrap(ctx.Err(), opWork, "the pull was given up")
			case <-s.ended:
				err = errNotLeader(opWork)
			}
		}
		if a.proven = k.confirm.covers(since); err == nil && !a.proven && a.needsProof() {
			err = k.confirmed(ctx, g, since)
			a.proven = err == nil
		}
		k.mu.Lock()
		if err == nil && k.sessions[id] != s {
			err = errNotLeader(opWork)
		}
		if err != nil {
			s.rouse() // wake another pull of the session instead
			return answer{}, false, err
		}
		return a, true, nil
	}
}

// needsProof reports whether a majority must confirm that this server leads before pull returns the answer. An answer
// with an activity requires the confirmation (see pull). For an empty answer, the confirmation delays no work, and is
// the proof that the node needs.
func (a *answer) needsProof() bool {
	return len(a.items) == 0 || slices.ContainsFunc(a.items, func(i *item) bool { return i.kind == itemTask })
}

// take removes items from the queue of a session, and returns them, up to the bounds of one answer. It leaves out items
// that were taken away from their streams. The caller holds k.mu.
func (k *Keeper) take(s *session) (taken []*item) {
	size := 0
	for len(s.out) > 0 && len(taken) < maxPull && size < maxPullBytes {
		i := s.out[0]
		s.out = s.out[1:]
		if st := s.streams[i.stream]; st == nil || !k.current(st, i) {
			continue
		}
		size += i.size()
		taken = append(taken, i)
	}
	if len(s.out) == 0 {
		s.out = nil
	}
	return taken
}

// current reports whether a stream still has the lease of an item. The caller holds k.mu.
func (k *Keeper) current(st *stream, i *item) bool {
	if i.kind == itemTask {
		t := k.tasks[taskID{i.ref, i.task, i.birth}]
		return t != nil && t.lease == st && t.attempt == i.number
	}
	one := st.held[i.ref]
	return one != nil && one.out != nil && one.out.number == i.number
}

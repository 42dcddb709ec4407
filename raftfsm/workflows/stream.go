package workflows

import (
	"context"
	"slices"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
)

// Stream implements workflow.Stream for one worker that is connected to this node. Broker.mu guards its fields.
type Stream struct {
	b      *Broker
	id     uint64
	app    string
	worker workflow.Worker

	queue   []*delivery // items that Next has not returned
	has     [3]int      // items that Next has returned and that have no answer, by kind
	changed chan struct{}
	err     error // why the stream has ended; nil = it has not failed
	closed  bool
}

var _ workflow.Stream = (*Stream)(nil)

// Work implements workflow.Engine.
func (b *Broker) Work(ctx context.Context, app string, w workflow.Worker) (workflow.Stream, error) {
	if err := (Ref{app, "x"}).check(opWork); err != nil {
		return nil, err
	}
	groups, err := b.access.Groups(ctx)
	if err != nil {
		return nil, err
	}
	s := &Stream{b: b, app: app, worker: w, changed: make(chan struct{}, 1)}
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil, errClosed()
	}
	b.last++
	s.id = b.last
	b.streams[s.id] = s
	links := make([]*link, 0, groups)
	for gid := range groups {
		l := b.links[gid]
		if l == nil {
			l = &link{b: b, gid: gid, leaving: map[uint64]bool{}, added: make(chan struct{})}
			b.links[gid] = l
		}
		links = append(links, l)
	}
	b.mu.Unlock()
	for _, l := range links {
		if err := l.add(ctx, s); err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Workers implements workflow.Engine.
func (b *Broker) Workers(app string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.streams {
		if s.app == app {
			n++
		}
	}
	return n
}

// idle reports whether the node has no streams. In that case, idle also replaces l.added, so that the goroutine of the
// link waits for a stream.
func (b *Broker) idle(l *link) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.streams) > 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.added:
		l.added = make(chan struct{})
	default:
	}
	return true
}

// inventory returns what a join reports about this node: the application and the worker of each stream, by the id of
// the stream, and the activities of the given group that the streams have.
func (b *Broker) inventory(gid uint32) (streams map[uint64]string, workers map[uint64]workflow.Worker, list []Held) {
	b.mu.Lock()
	defer b.mu.Unlock()
	streams, workers = map[uint64]string{}, map[uint64]workflow.Worker{}
	for id, s := range b.streams {
		streams[id], workers[id] = s.app, s.worker
	}
	for _, d := range b.items {
		if d.link.gid == gid && d.kind == itemTask {
			list = append(list, Held{Stream: d.stream.id, App: d.ref.App, ID: d.ref.ID, Task: d.task, Birth: d.birth,
				Attempt: d.number})
		}
	}
	return streams, workers, list
}

// lose ends the streams that have activities of a group. Call it when the leader of the group may have given these
// activities to other nodes.
func (b *Broker) lose(gid uint32) {
	b.mu.Lock()
	var lost []*Stream
	for _, d := range b.items {
		if d.link.gid == gid && d.kind == itemTask && !slices.Contains(lost, d.stream) {
			lost = append(lost, d.stream)
		}
	}
	b.mu.Unlock()
	for _, s := range lost {
		s.fail(fault.New(fault.Unavailable, opWork, "the leader of the group has not answered for too long"))
		b.running.Go(s.Close)
	}
}

// arrived gives an item to its stream. If a part of the item's history is missing, arrived first reads that part from
// the leader. ctx limits the time for this.
func (b *Broker) arrived(ctx context.Context, l *link, session string, i *item) {
	i.past, i.fresh = detached(i.past), detached(i.fresh)
	var incomplete error
	if i.kind == itemTurn {
		if incomplete = b.completeHistory(ctx, i); fault.Is(incomplete, fault.NotFound) {
			return // the workflow was purged, which has ended the turn
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[i.stream]
	if s == nil {
		// The leader may have executed a delayed call that adds the stream, after the call that ended the stream.
		b.running.Go(func() { l.leave(i.stream) })
		return
	}
	if incomplete != nil {
		s.failLocked(incomplete) // so that the leader gives the turn to another stream
		b.running.Go(s.Close)
	}
	if s.err != nil {
		return // the stream ends, so the leader takes the item back
	}
	d := &delivery{item: i, link: l, session: session, stream: s, token: token(l.gid, i)}
	if o := b.held[i.work()]; o != nil {
		if o.kind == itemTask {
			return // the node has the activity already
		}
		if !o.sending {
			b.forget(o) // the turn was handed out again
		}
	}
	b.items[d.token], b.held[i.work()] = d, d
	s.queue = append(s.queue, d)
	s.wake()
}

// detached returns a copy of events. The originals share the memory of the leader's whole answer, so one small event
// would keep the whole answer in memory.
func detached(events [][]byte) [][]byte {
	size := 0
	for _, e := range events {
		size += len(e)
	}
	memory, copied := make([]byte, 0, size), make([][]byte, 0, len(events))
	for _, e := range events {
		first := len(memory)
		memory = append(memory, e...)
		copied = append(copied, slices.Clip(memory[first:]))
	}
	return copied
}

// completeHistory adds the missing first events to the history in an item. The leader leaves them out if it has sent
// them to the node before. completeHistory reads them from the cache or, if they are not there, from the leader. It
// then adds the whole history to the cache. If it returns an error, no worker may get the item.
func (b *Broker) completeHistory(ctx context.Context, i *item) error {
	b.mu.Lock()
	c := b.cached[i.ref]
	if i.from > 0 && c != nil && c.execution == i.exec && uint64(len(c.events)) >= i.from {
		i.past = append(slices.Clip(c.events[:i.from]), i.past...)
		b.keep(i)
		b.mu.Unlock()
		return nil
	}
	b.mu.Unlock()
	var dropped [][]byte                                        // events that the cache has dropped
	for have := 0; uint64(have) < i.from; have = len(dropped) { //nolint:gosec // positive
		raws, _, err := b.rawHistory(ctx, i.ref, have, int(i.from)-have) //nolint:gosec // bounded
		if err == nil && len(raws) == 0 {
			err = fault.New(fault.Unavailable, opWork, "the history of workflow "+i.ref.ID+" has changed")
		}
		if err != nil {
			return err
		}
		dropped = append(dropped, raws...)
	}
	i.past = append(dropped, i.past...)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keep(i)
	return nil
}

// keep puts the history of an item into the cache. If the cache is full, keep empties it first. A history that needs
// more than half of the cache is not kept. The caller holds b.mu.
func (b *Broker) keep(i *item) {
	if c := b.cached[i.ref]; c != nil {
		b.bytes -= c.bytes
		delete(b.cached, i.ref)
	}
	size := cachedOverhead
	for _, e := range i.past {
		size += len(e) + 24
	}
	if size > maxCached/2 {
		return
	}
	if b.bytes+size > maxCached {
		clear(b.cached)
		b.bytes = 0
	}
	b.cached[i.ref] = &cachedHistory{i.exec, i.past, size}
	b.bytes += size
}

// forget drops an item from the node and its stream. The caller holds b.mu.
func (b *Broker) forget(d *delivery) {
	if b.items[d.token] != d {
		return
	}
	delete(b.items, d.token)
	if d.span != nil {
		d.span.End(errGivenBack())
		d.span = nil
	}
	if w := d.work(); b.held[w] == d {
		delete(b.held, w)
	}
	s := d.stream
	if d.taken {
		s.has[d.kind]--
		for _, o := range b.streams { // the bounds apply to all streams of the application
			if o.app == s.app {
				o.wake()
			}
		}
	} else {
		s.queue = slices.DeleteFunc(s.queue, func(o *delivery) bool { return o == d })
	}
}

func (s *Stream) wake() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// fail makes Next return an error.
func (s *Stream) fail(err error) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.failLocked(err)
}

// failLocked works like fail, for a caller that holds b.mu.
func (s *Stream) failLocked(err error) {
	if s.err == nil {
		s.err = err
	}
	s.wake()
}

// Next implements workflow.Stream.
func (s *Stream) Next(ctx context.Context) (*protos.WorkItem, error) {
	for {
		d, err := s.next()
		if err != nil {
			return nil, err
		}
		if d != nil {
			return s.workItem(d)
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return nil, fault.Wrap(ctx.Err(), opWork, "the worker has ended its stream")
		}
	}
}

// next returns the next item that the bounds of the application allow. It returns nil, nil if there is none.
func (s *Stream) next() (*delivery, error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	if s.closed {
		return nil, fault.New(fault.Unavailable, opWork, "the stream is closed")
	}
	var has [3]int
	for _, o := range b.streams {
		if o.app == s.app {
			has[itemTurn] += o.has[itemTurn]
			has[itemTask] += o.has[itemTask]
		}
	}
	limit := [3]int{itemTurn: s.worker.MaxTurns, itemTask: s.worker.MaxActivities}
	for n, d := range s.queue {
		if limit[d.kind] > 0 && has[d.kind] >= limit[d.kind] {
			continue
		}
		s.queue = slices.Delete(s.queue, n, n+1)
		d.taken = true
		s.has[d.kind]++
		return d, nil
	}
	return nil, nil
}

// workItem returns the message for a worker. It copies the encoded events of a turn into the message as unknown fields,
// which the encoder writes unchanged.
func (s *Stream) workItem(d *delivery) (*protos.WorkItem, error) {
	if d.kind == itemTask {
		e, err := decodeEvent(d.fresh[0])
		if err != nil {
			return nil, err
		}
		r := turn.Request(d.ref.ID, d.exec, e)
		s.b.activitySpan(d, r)
		return &protos.WorkItem{CompletionToken: d.token,
			Request: &protos.WorkItem_ActivityRequest{ActivityRequest: r}}, nil
	}
	r := &protos.WorkflowRequest{InstanceId: d.ref.ID, ExecutionId: wrapperspb.String(d.exec)}
	past := d.past
	if s.worker.CachesHistory && d.from > 0 && uint64(len(past)) >= d.from {
		past = past[d.from:]
		r.CachedHistory = &protos.CachedHistory{EventCount: int32(d.from)} //nolint:gosec // bounded
	}
	size := 0
	for _, list := range [...][][]byte{past, d.fresh} {
		for _, e := range list {
			size += len(e) + 8
		}
	}
	raw := make([]byte, 0, size)
	for _, e := range past {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, fieldPastEvents, protowire.BytesType), e)
	}
	for _, e := range d.fresh {
		raw = protowire.AppendBytes(protowire.AppendTag(raw, fieldNewEvents, protowire.BytesType), e)
	}
	r.ProtoReflect().SetUnknown(raw)
	return &protos.WorkItem{CompletionToken: d.token,
		Request: &protos.WorkItem_WorkflowRequest{WorkflowRequest: r}}, nil
}

// The numbers of fields of protos.WorkflowRequest.
const (
	fieldPastEvents = 3
	fieldNewEvents  = 4
)

// Close implements workflow.Stream.
func (s *Stream) Close() {
	b := s.b
	b.mu.Lock()
	if s.closed {
		b.mu.Unlock()
		return
	}
	s.closed = true
	s.wake()
	delete(b.streams, s.id)
	for _, d := range b.items {
		if d.stream == s && !d.sending {
			b.forget(d)
		}
	}
	links := make([]*link, 0, len(b.links))
	for _, l := range b.links {
		links = append(links, l)
	}
	leaving := !b.closed || b.sending.Err() == nil
	if leaving {
		for _, l := range links {
			b.running.Go(func() { l.leave(s.id) })
		}
	}
	b.mu.Unlock()
}

// find returns the work item to which an answer belongs, or nil if the node does not have the item. Usually the token
// identifies the item. If the answer has no token, find returns the item that matches, or fault.Invalid if several
// items match. The caller holds b.mu.
func (b *Broker) find(app, token string, match func(d *delivery) bool) (found *delivery, err error) {
	if token != "" {
		if d := b.items[token]; d != nil && d.stream.app == app && d.taken && match(d) {
			return d, nil
		}
		return nil, nil
	}
	for _, d := range b.items {
		if d.stream.app != app || !d.taken || !match(d) {
			continue
		}
		if found != nil {
			return nil, &fault.Error{Code: fault.Invalid, Op: opWork, Key: d.ref.ID,
				Msg:  "the answer for workflow '" + d.ref.ID + "' has no completion token, and several items match",
				Hint: "use an SDK that returns the completion token of a work item"}
		}
		found = d
	}
	return found, nil
}

// CompleteTurn implements workflow.Engine.
func (b *Broker) CompleteTurn(ctx context.Context, app string, r *protos.WorkflowResponse) error {
	return b.complete(ctx, app, r.GetCompletionToken(), r, func(d *delivery) bool {
		return d.kind == itemTurn && d.ref.ID == r.GetInstanceId()
	})
}

// CompleteActivity implements workflow.Engine.
func (b *Broker) CompleteActivity(ctx context.Context, app string, r *protos.ActivityResponse) error {
	if err := fits(opWork, r.GetInstanceId(), "the result of the activity", proto.Size(r)); err != nil {
		return err
	}
	return b.complete(ctx, app, r.GetCompletionToken(), r, func(d *delivery) bool {
		return d.kind == itemTask && d.ref.ID == r.GetInstanceId() && d.task == r.GetTaskId()
	})
}

// complete sends the answer of a worker to the leader. If ctx ends, complete returns, but the sending continues until
// the leader has answered.
func (b *Broker) complete(ctx context.Context, app, token string, m proto.Message, match func(d *delivery) bool) error {
	data, err := proto.Marshal(m)
	if err != nil {
		return fault.Wrap(err, opWork, "the answer of a worker cannot be encoded")
	}
	if len(data) > maxPayload {
		return &fault.Error{Code: fault.TooLarge, Op: opWork, Msg: "the answer of a worker is too large",
			Hint: "let the workflow or the activity return less data"}
	}
	b.mu.Lock()
	d, err := b.find(app, token, match)
	if err != nil || d == nil || d.sending {
		b.mu.Unlock()
		return err // the answer has no effect, or another call sends it
	}
	if b.sending.Err() != nil {
		b.mu.Unlock()
		return errClosed()
	}
	d.sending = true
	done := make(chan error, 1)
	b.running.Go(func() {
		out, err := b.sendAnswer(d, data)
		if err == nil {
			b.answerSpans(d, m, out)
		}
		b.mu.Lock()
		b.forget(d)
		b.mu.Unlock()
		done <- err
	})
	b.mu.Unlock()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fault.Wrap(ctx.Err(), opWork, "the answer of a worker is not stored yet")
	}
}

// sendAnswer sends the answer of a worker until the leader has stored or refused the answer, or the Broker closes.
func (b *Broker) sendAnswer(d *delivery, data []byte) (out []byte, err error) {
	for {
		c := &call{what: callTask, session: d.session, ref: d.ref, a: d.stream.id, b: d.birth, c: d.number,
			d: bits(d.task), data: data}
		if d.kind == itemTurn {
			c = &call{what: callTurn, session: d.session, ref: d.ref, a: d.stream.id, b: d.number, data: data}
		}
		ctx, cancel := context.WithTimeout(b.sending, callTimeout)
		out, err = d.link.ask(ctx, c)
		cancel()
		if err == nil || fault.Is(err, fault.Invalid) || fault.Is(err, fault.TooLarge) || b.sending.Err() != nil {
			return out, err
		}
		sleep(b.sending, linkPause)
	}
}

// Rerun implements workflow.Engine.
func (b *Broker) Rerun(ctx context.Context, app string, r *protos.RerunWorkflowFromEventRequest) (string, error) {
	var events []*protos.HistoryEvent
	for more := true; more; {
		var page []*protos.HistoryEvent
		var err error
		page, more, err = b.History(ctx, app, r.GetSourceInstanceID(), len(events), historyPage)
		if fault.Is(err, fault.NotFound) {
			return "", &fault.Error{Code: fault.NotFound, Op: opStart, Key: r.GetSourceInstanceID(),
				Msg: "workflow instance does not exist with ID '" + r.GetSourceInstanceID() + "'"}
		}
		if err != nil {
			return "", err
		}
		events = append(events, page...)
	}
	id, execution := r.GetNewInstanceID(), uuid.NewString()
	if id == "" {
		id = uuid.NewString()
	}
	now := time.Now().UTC()
	f, err := turn.Rerun(app, b.opts.Namespace, events, r, id, execution, now)
	if err != nil {
		return "", err
	}
	n := &creation{fork: f, unique: true}
	for _, e := range f.Events {
		if e.GetExecutionStarted() != nil {
			n.event = e
		}
	}
	if err := b.create(ctx, Ref{app, id}, n); err != nil {
		if fault.Is(err, fault.Conflict) {
			return "", &fault.Error{Code: fault.Conflict, Op: opStart, Key: id,
				Msg: "workflow '" + id + "' has already been created"}
		}
		return "", err
	}
	return id, nil
}

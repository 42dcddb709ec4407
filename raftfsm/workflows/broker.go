package workflows

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Bounds of a Broker.
const (
	maxCached  = 64 << 20 // bytes of histories that the node keeps for its streams
	maxPayload = 60 << 20 // bytes of one request
	closeGrace = 5 * time.Second
	// endPatience is how long a purge waits for the children of a terminated workflow to end. If no worker answers, a
	// child ends after at most terminatePause, so endPatience is a little longer.
	endPatience = terminatePause + 2*time.Second
	maxPurge    = 1000    // instances of one PurgeMatching
	maxTree     = 100_000 // descendants of an instance that one call looks at
)

// BrokerOptions configure a Broker. The zero value has the defaults.
type BrokerOptions struct {
	Namespace string // of the applications
	Logger    *slog.Logger
	Spans     workflow.Spans // nil = no spans
}

// Broker implements workflow.Engine on any node, with the Raft groups of the cluster. While it has streams, it has
// one session in each Raft group.
type Broker struct {
	access  records.Access
	opts    BrokerOptions
	pulling context.Context // for pulls; Close ends it before sending
	endPull context.CancelFunc
	sending context.Context // for answers of workers
	endSend context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	last     uint64 // id of the newest stream
	node     uint64 // random number; part of idempotency keys
	requests uint64 // number of idempotency keys
	links    map[uint32]*link
	streams  map[uint64]*Stream
	items    map[string]*delivery // by token
	held     map[work]*delivery   // the newest item of each work
	cached   map[Ref]*cachedHistory
	bytes    int // bytes of the histories in cached
}

var _ workflow.Engine = (*Broker)(nil)

// delivery is an item that a stream of this node has got from a leader.
type delivery struct {
	*item
	link    *link
	session string
	stream  *Stream
	token   string
	taken   bool          // Next has returned it
	sending bool          // the answer of the worker is on its way to the leader
	span    workflow.Span // of an activity that a worker has; nil = none
}

// work identifies what an item is about: the turns of an instance, or one of its activities.
type work struct {
	Ref
	kind  byte
	task  int32
	birth uint64
}

// work returns what an item is about. An item with a turn has neither a task nor a birth.
func (i *item) work() work { return work{i.ref, i.kind, i.task, i.birth} }

// cachedHistory contains the events of an instance that a leader has sent to this node.
type cachedHistory struct {
	execution string
	events    [][]byte
	bytes     int
}

// NewBroker returns a Broker with the given access to the records of the cluster.
func NewBroker(a records.Access, o BrokerOptions) *Broker {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Broker{access: a, opts: o, node: random(), links: map[uint32]*link{}, streams: map[uint64]*Stream{},
		items: map[string]*delivery{}, held: map[work]*delivery{}, cached: map[Ref]*cachedHistory{}}
	b.pulling, b.endPull = context.WithCancel(context.Background())
	b.sending, b.endSend = context.WithCancel(context.Background())
	return b
}

// Close ends the streams. It continues to send the outstanding answers of workers for up to closeGrace. Work whose
// answer is not stored by then is handed out again by the leader.
func (b *Broker) Close() error {
	b.mu.Lock()
	b.closed = true
	streams := make([]*Stream, 0, len(b.streams))
	for _, s := range b.streams {
		streams = append(streams, s)
	}
	b.mu.Unlock()
	patience := time.AfterFunc(closeGrace, b.endSend)
	for _, s := range streams {
		s.fail(errClosed())
		s.Close()
	}
	b.endPull()
	b.running.Wait()
	patience.Stop()
	b.endSend()
	return nil
}

func errClosed() error { return fault.New(fault.Unavailable, opWork, "this node is shutting down") }

// fits returns fault.TooLarge if the size of an event in bytes is larger than maxEvent. The parameter what is the name
// of the data in the error message.
func fits(op, id, what string, size int) error {
	if size <= maxEvent {
		return nil
	}
	return &fault.Error{Code: fault.TooLarge, Op: op, Key: id, Msg: what + " has more than " +
		strconv.Itoa(maxEvent>>20) + " MiB", Hint: "keep large data in a state store and pass its key"}
}

// locate returns the group of an instance.
func (b *Broker) locate(ctx context.Context, r Ref, op string) (uint32, error) {
	if err := r.check(op); err != nil {
		return 0, err
	}
	return b.access.Locate(ctx, kv.WorkflowStore, r.place().prefix())
}

// ask sends a call to the leader of the group of an instance, and returns the answer. It returns fault.Indeterminate
// if an earlier attempt of the call may have changed the instance.
func (b *Broker) ask(ctx context.Context, op string, c *call) ([]byte, error) {
	if len(c.data) > maxPayload {
		return nil, &fault.Error{Code: fault.TooLarge, Op: op, Key: c.ref.ID,
			Msg: "the request has more than " + strconv.Itoa(maxPayload>>20) + " MiB", Hint: "pass less data"}
	}
	gid, err := b.locate(ctx, c.ref, op)
	if err != nil {
		return nil, err
	}
	out, repeated, err := b.access.Ask(ctx, gid, c.method(), c.append())
	if repeated && c.what == callPurge && fault.Is(err, fault.NotFound) {
		return nil, nil // an earlier attempt has removed the instance
	}
	if err != nil && repeated && c.changes() && notDone(err) {
		err = &fault.Error{Code: fault.Indeterminate, Op: op, Key: c.ref.ID, Err: err,
			Msg:  "an attempt may have been executed, and its answer was lost",
			Hint: "look at the instance, and try again"}
	}
	return out, err
}

// changes reports whether a call is a request of a client that changes an instance.
func (c *call) changes() bool {
	return c.what == callStart || c.what == callEvent || c.what == callPurge
}

// notDone reports whether err says that the last attempt of a call was not executed. Earlier attempts may still have
// been executed.
func notDone(err error) bool {
	switch fault.CodeOf(err) {
	case fault.NotLeader, fault.Unavailable, fault.Timeout, fault.Overloaded, fault.ReadOnly:
		return true
	}
	return false
}

// key returns a new idempotency key for a request.
func (b *Broker) key() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.requests++
	return hash(strconv.FormatUint(b.node, 36) + "/" + strconv.FormatUint(b.requests, 36))
}

// Start implements workflow.Engine.
func (b *Broker) Start(ctx context.Context, app string, r *protos.CreateInstanceRequest) error {
	execution, err := uuid.NewRandom()
	if err != nil {
		return fault.Wrap(err, opStart, "no random number")
	}
	if err := fits(opStart, r.GetInstanceId(), "the input of the workflow", proto.Size(r)); err != nil {
		return err
	}
	r.ParentTraceContext = turn.Bounded(r.GetParentTraceContext())
	span := b.startSpan(r)
	n := &creation{event: turn.Start(r, execution.String(), time.Now().UTC()), unique: r.GetEnforceUniqueInstanceId()}
	if span != nil {
		turn.Traced(n.event.GetExecutionStarted())
	}
	if t := r.GetScheduledStartTimestamp(); t != nil {
		n.startAt = t.AsTime()
	}
	err = b.create(ctx, Ref{app, r.GetInstanceId()}, n)
	if span != nil {
		span.End(err)
	}
	return err
}

// create creates an instance. It may replace a terminal instance with the same id if all descendants of that instance
// are terminal, too.
func (b *Broker) create(ctx context.Context, r Ref, n *creation) error {
	for {
		_, err := b.ask(ctx, opStart, startCall(r, n))
		e, ok := fault.As(err)
		if !ok || e.Op != opChildren {
			return err
		}
		if err := b.endedTree(ctx, r); err != nil {
			return err
		}
		n.checked = e.Msg
	}
}

// endedTree returns an error if a descendant of an instance is not terminal.
func (b *Broker) endedTree(ctx context.Context, r Ref) error {
	return b.walk(ctx, r, func(child Ref, s *protos.WorkflowState) error {
		if !workflow.Terminal(s.GetWorkflowStatus()) {
			return workflow.ChildRuns(r.ID, child.ID)
		}
		return nil
	}, func(Ref) error { return nil })
}

// walk visits an instance and its descendants. For each descendant, it calls enter, then visits the children of the
// descendant, and then calls leave. For the instance itself, it calls only leave, at the end. Two rules apply:
//
//   - A child is visited only if its state names this parent. Otherwise another instance has reused its id.
//   - Every instance is visited only once. If ids were reused, two instances can name each other as parent.
func (b *Broker) walk(ctx context.Context, root Ref, enter func(r Ref, s *protos.WorkflowState) error,
	leave func(r Ref) error) error {
	type node struct {
		Ref
		children []Ref
	}
	children, err := b.children(ctx, root)
	if err != nil {
		return err
	}
	seen, path := map[Ref]bool{root: true}, []node{{root, children}}
	for len(path) > 0 {
		n := &path[len(path)-1]
		if len(n.children) == 0 {
			if err := leave(n.Ref); err != nil {
				return err
			}
			path = path[:len(path)-1]
			continue
		}
		c := n.children[0]
		n.children = n.children[1:]
		if seen[c] {
			continue
		}
		s, err := b.State(ctx, c.App, c.ID, false)
		if fault.Is(err, fault.NotFound) || err == nil && (s.GetParentInstanceId().GetValue() != n.ID ||
			s.GetParentAppId().GetValue() != n.App) {
			continue
		}
		if err != nil {
			return err
		}
		if seen[c] = true; len(seen) > maxTree {
			return &fault.Error{Code: fault.TooLarge, Op: opRead, Key: root.ID,
				Msg:  "the workflow has more than " + strconv.Itoa(maxTree) + " descendants",
				Hint: "repeat a purge, which goes on with what is left; or purge the children first"}
		}
		if err := enter(c, s); err != nil {
			return err
		}
		if children, err = b.children(ctx, c); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		path = append(path, node{c, children})
	}
	return nil
}

// children returns the children that an instance has created, in the order of their creation. It reads them from the
// history of the instance.
func (b *Broker) children(ctx context.Context, r Ref) (list []Ref, err error) {
	for first, more := 0, true; more; {
		var events []*protos.HistoryEvent
		if events, more, err = b.History(ctx, r.App, r.ID, first, historyPage); err != nil {
			return nil, err
		}
		first += len(events)
		for _, e := range events {
			if c := e.GetChildWorkflowInstanceCreated(); c != nil {
				list = append(list, Ref{turn.Owner(r.App, e.GetRouter()), c.GetInstanceId()})
			}
		}
	}
	return list, nil
}

// historyPage is how many events are read at once.
const historyPage = 1000

// State implements workflow.Engine.
func (b *Broker) State(ctx context.Context, app, id string, payloads bool) (*protos.WorkflowState, error) {
	out, err := b.ask(ctx, opRead, &call{what: callState, ref: Ref{app, id}, a: records.Bit(payloads)})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, workflow.NoInstance(id)
	}
	s := &protos.WorkflowState{}
	if err := proto.Unmarshal(out, s); err != nil {
		return nil, records.Truncated(Method)
	}
	return s, nil
}

// Wait implements workflow.Engine.
func (b *Broker) Wait(ctx context.Context, app, id string, until workflow.Until, payloads bool) (*protos.WorkflowState,
	error) {
	for {
		c := &call{what: callWait, ref: Ref{app, id}, a: uint64(until)} //nolint:gosec // small
		out, err := b.ask(ctx, opWait, c)
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, fault.Wrap(err, opWait, "the workflow has not reached the status")
		}
		if len(out) != 1 || out[0] != 1 {
			continue
		}
		s, err := b.State(ctx, app, id, payloads)
		if err == nil && until.Reached(s.GetWorkflowStatus()) {
			return s, nil
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return nil, err
		}
	}
}

func (b *Broker) event(ctx context.Context, app, id string, e *protos.HistoryEvent) error {
	if err := fits(opChange, id, "the data of the event", proto.Size(e)); err != nil {
		return err
	}
	_, err := b.ask(ctx, opChange, &call{what: callEvent, ref: Ref{app, id}, a: b.key(), data: encodeEvent(e)})
	return err
}

// Raise implements workflow.Engine.
func (b *Broker) Raise(ctx context.Context, app string, r *protos.RaiseEventRequest) error {
	if len(r.GetName()) > maxName {
		return fault.New(fault.TooLarge, opChange, "the name of an event has at most 1,024 bytes")
	}
	return b.event(ctx, app, r.GetInstanceId(), turn.Raised(r.GetName(), r.GetInput(), time.Now().UTC()))
}

// Terminate implements workflow.Engine.
func (b *Broker) Terminate(ctx context.Context, app string, r *protos.TerminateRequest) error {
	return b.event(ctx, app, r.GetInstanceId(), turn.Terminated(r.GetOutput(), r.GetRecursive(), time.Now().UTC()))
}

// Suspend implements workflow.Engine.
func (b *Broker) Suspend(ctx context.Context, app string, r *protos.SuspendRequest) error {
	return b.event(ctx, app, r.GetInstanceId(), turn.Suspended(r.GetReason(), time.Now().UTC()))
}

// Resume implements workflow.Engine.
func (b *Broker) Resume(ctx context.Context, app string, r *protos.ResumeRequest) error {
	return b.event(ctx, app, r.GetInstanceId(), turn.Resumed(r.GetReason(), time.Now().UTC()))
}

// Purge implements workflow.Engine. Children are removed before their parent, so a repeated call finds what remains.
// The children of a terminated instance end a little later than their parent, so Purge waits for them.
func (b *Broker) Purge(ctx context.Context, app, id string, recursive, force bool) (removed int, err error) {
	return b.purge(ctx, app, id, recursive, force, endPatience)
}

// purge removes an instance, and also its descendants if recursive is true. patience limits the wait for the children
// of a terminated instance.
func (b *Broker) purge(ctx context.Context, app, id string, recursive, force bool,
	patience time.Duration) (removed int, err error) {
	root := Ref{app, id}
	remove := func(r Ref) error {
		_, err := b.ask(ctx, opPurge, &call{what: callPurge, ref: r, a: records.Bit(force)})
		if err == nil {
			removed++
		} else if r != root && fault.Is(err, fault.NotFound) {
			return nil
		}
		return err
	}
	if !recursive {
		return removed, remove(root)
	}
	ending, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	terminated := false // the root was terminated, so its descendants end soon
	purgeable := func(r Ref, s *protos.WorkflowState) error {
		if terminated && !force && !workflow.Terminal(s.GetWorkflowStatus()) {
			if ended, err := b.Wait(ending, r.App, r.ID, workflow.Completed, false); err == nil {
				s = ended
			}
		}
		switch {
		case force || workflow.Terminal(s.GetWorkflowStatus()):
			return nil
		case int32(s.GetWorkflowStatus()) == statusStalled:
			return workflow.Stalled(r.ID)
		}
		return workflow.NotTerminal(r.ID)
	}
	s, err := b.State(ctx, app, id, false)
	if err == nil {
		err = purgeable(root, s)
	}
	if err != nil {
		return 0, err
	}
	terminated = s.GetWorkflowStatus() == protos.OrchestrationStatus_ORCHESTRATION_STATUS_TERMINATED
	err = b.walk(ctx, root, purgeable, remove)
	return removed, err
}

// PurgeMatching implements workflow.Engine.
func (b *Broker) PurgeMatching(ctx context.Context, app string, f workflow.Filter, recursive bool) (removed int,
	complete bool, err error) {
	var refused error // the first refusal
	for after := ""; removed < maxPurge; {
		page, next, err := b.List(ctx, app, f, after, 100)
		if err != nil {
			return removed, false, err
		}
		for n := range page {
			if !workflow.Terminal(page[n].Status) {
				continue
			}
			one, err := b.purge(ctx, app, page[n].ID, recursive, false, 0)
			switch removed += one; {
			case err == nil || fault.Is(err, fault.NotFound):
			case fault.Is(err, fault.Invalid): // the instance has a child that is not terminal
				refused = cmp.Or(refused, err)
			default:
				return removed, false, err
			}
		}
		if after = next; after == "" {
			return removed, refused == nil, refused
		}
	}
	return removed, false, refused
}

// List implements workflow.Engine.
func (b *Broker) List(ctx context.Context, app string, f workflow.Filter, after string,
	limit int) (page []workflow.Listed, next string, err error) {
	if err := (Ref{app, "x"}).check(opRead); err != nil {
		return nil, "", err
	}
	limit = min(max(limit, 1), records.MaxPage)
	created, afterID := uint64(0), ""
	if after != "" {
		first, rest, ok := strings.Cut(after, ":")
		if created, err = strconv.ParseUint(first, 36, 64); err != nil || !ok || len(rest) > maxName {
			return nil, "", fault.New(fault.Invalid, opRead, "the continuation token is not one of this cluster")
		}
		afterID = rest
	}
	groups, err := b.access.Groups(ctx)
	if err != nil {
		return nil, "", err
	}
	var all []listed
	more := false
	for gid := range min(groups, buckets) {
		gid = (PartitionOf(place{app, 0}.prefix(), groups) + gid) % groups
		c := &call{what: callList, ref: Ref{App: app}, a: created, text: afterID, data: appendFilter(&f),
			b: uint64(limit)} //nolint:gosec // positive
		out, _, err := b.access.Ask(ctx, gid, c.method(), c.append())
		if err != nil {
			return nil, "", err
		}
		part, again, err := readListAnswer(out)
		if err != nil {
			return nil, "", err
		}
		all, more = append(all, part...), more || again
	}
	slices.SortFunc(all, compareListed)
	if len(all) > limit {
		all, more = all[:limit], true
	}
	for n := range all {
		page = append(page, all[n].Listed)
	}
	if more && len(all) > 0 {
		l := all[len(all)-1]
		next = strconv.FormatUint(l.created, 36) + ":" + l.ID
	}
	return page, next, nil
}

// Applications implements workflow.Engine. Every stream joins all groups, so the number of workers of an application is
// the largest number that any group reports.
func (b *Broker) Applications(ctx context.Context) ([]workflow.Application, error) {
	groups, err := b.access.Groups(ctx)
	if err != nil {
		return nil, err
	}
	workers := map[string]int{}
	for gid := range groups {
		for after, more := "", true; more && len(workers) < maxListed; {
			out, _, err := b.access.Ask(ctx, gid, Method, (&call{what: callApps, text: after}).append())
			if err != nil {
				return nil, err
			}
			part, again, err := readApps(out)
			if err != nil {
				return nil, err
			}
			for n := range part {
				after = part[n].ID
				workers[after] = max(workers[after], part[n].Workers)
			}
			more = again && len(part) > 0
		}
	}
	list := make([]workflow.Application, 0, len(workers))
	for _, id := range slices.Sorted(maps.Keys(workers)) {
		list = append(list, workflow.Application{ID: id, Workers: workers[id]})
	}
	return list, nil
}

// maxListed bounds the applications that Applications returns.
const maxListed = 10_000

// History implements workflow.Engine.
func (b *Broker) History(ctx context.Context, app, id string, first, limit int) (events []*protos.HistoryEvent,
	more bool, err error) {
	raws, more, err := b.rawHistory(ctx, Ref{app, id}, first, limit)
	if err != nil {
		return nil, false, err
	}
	for _, raw := range raws {
		e, err := decodeEvent(raw)
		if err != nil {
			return nil, false, err
		}
		events = append(events, e)
	}
	return events, more, nil
}

func (b *Broker) rawHistory(ctx context.Context, r Ref, first, limit int) (raws [][]byte, more bool, err error) {
	out, err := b.ask(ctx, opRead, &call{what: callEvents, ref: r, a: uint64(max(first, 0)), //nolint:gosec // positive
		b: uint64(max(limit, 1))}) //nolint:gosec // positive
	if err != nil {
		return nil, false, err
	}
	if len(out) < 2 {
		return nil, false, records.Truncated(Method)
	}
	if out[0] == 0 {
		return nil, false, workflow.NoInstance(r.ID)
	}
	raws, ok := readEvents(out[2:])
	if !ok {
		return nil, false, records.Truncated(Method)
	}
	return raws, out[1] == 1, nil
}

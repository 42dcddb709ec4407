package workflowtest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
)

// Memory is a workflow engine that keeps everything in memory. It is slow, and meant only for tests.
type Memory struct {
	mu        sync.Mutex
	instances map[address]*instance
	streams   map[*stream]struct{}
	delivered map[string]struct{} // keys of messages that were delivered
	changed   chan struct{}       // closed and replaced by every change
	sequence  int                 // number of instances that were created
	tokens    int                 // number of completion tokens
	closed    bool
}

type address struct{ app, id string }

// instance is one instance of a workflow.
type instance struct {
	address
	sequence   int    // position in the order of creation
	creation   string // execution id at the creation
	start      *protos.HistoryEvent
	events     []*protos.HistoryEvent
	history    *turn.History
	inbox      []*protos.HistoryEvent
	custom     *wrapperspb.StringValue
	generation int
	raised     time.Time // timestamp of the newest external event
	waits      bool      // the instance waits for its start time
	stalled    bool      // the instance is stalled, and nothing has happened since
	retry      time.Time // the next turn is not handed out before this time
	refused    int       // number of consecutive answers that were refused
	out        *turnOut  // the turn that a worker has; nil = none
	tasks      map[int32]*activity
	timers     map[int32]*time.Timer
	children   []address
}

// turnOut is a turn that the engine has given to a worker and that is not completed yet.
type turnOut struct {
	stream *stream
	token  string
	events []*protos.HistoryEvent
	inbox  int // number of events of the inbox that belong to the turn
}

// activity is a task without a result.
type activity struct {
	of         *instance
	app        string
	generation int
	event      *protos.HistoryEvent
	stream     *stream // the stream that has the activity; nil = none
	token      string
}

// NewMemory returns an empty engine.
func NewMemory() *Memory {
	return &Memory{instances: map[address]*instance{}, streams: map[*stream]struct{}{}, changed: make(chan struct{}),
		delivered: map[string]struct{}{}}
}

// Close stops timers and ends streams.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for _, i := range m.instances {
		i.stopTimers()
	}
	m.announce()
}

// announce wakes all calls that wait for a change. The caller holds m.mu, as for most unexported methods.
func (m *Memory) announce() {
	close(m.changed)
	m.changed = make(chan struct{})
}

func (i *instance) stopTimers() {
	for _, t := range i.timers {
		t.Stop()
	}
	i.timers = map[int32]*time.Timer{}
}

func (i *instance) status() protos.OrchestrationStatus { return i.history.Status() }

func (i *instance) terminal() bool { return workflow.Terminal(i.status()) }

func (i *instance) execution() string {
	start := i.history.Started()
	if start == nil {
		start = i.start.GetExecutionStarted()
	}
	return start.GetWorkflowInstance().GetExecutionId().GetValue()
}

func (i *instance) state(payloads bool) *protos.WorkflowState {
	return proto.CloneOf(i.history.State(i.id, i.start, i.custom, payloads))
}

// Start implements workflow.Engine.
func (m *Memory) Start(_ context.Context, app string, r *protos.CreateInstanceRequest) error {
	if n := len(r.GetInstanceId()); n == 0 || n > turn.MaxID {
		return fault.New(fault.Invalid, "workflowtest.Start", "the id of an instance has 1 to 1024 bytes")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.create(address{app, r.GetInstanceId()}, turn.Start(r, uuid.NewString(), time.Now()),
		r.GetEnforceUniqueInstanceId())
}

func (m *Memory) create(at address, start *protos.HistoryEvent, unique bool) error {
	if old := m.instances[at]; old != nil {
		same, err := turn.Reuse(at.id, old.status(), old.begun(), start.GetExecutionStarted(), unique)
		if same || err != nil {
			return err
		}
		if child := m.running(old); child != "" {
			return workflow.ChildRuns(at.id, child)
		}
		m.remove(old)
	}
	m.sequence++
	i := &instance{address: at, sequence: m.sequence, start: start, history: turn.Read(nil),
		creation: start.GetExecutionStarted().GetWorkflowInstance().GetExecutionId().GetValue(),
		inbox:    []*protos.HistoryEvent{start}, tasks: map[int32]*activity{}, timers: map[int32]*time.Timer{}}
	m.instances[at] = i
	if due := start.GetExecutionStarted().GetScheduledStartTimestamp(); due != nil && time.Until(due.AsTime()) > 0 {
		i.waits = true
		i.timers[-1] = time.AfterFunc(time.Until(due.AsTime()), func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			i.waits = false
			m.announce()
		})
	}
	m.announce()
	return nil
}

// begun returns the event ExecutionStarted of the instance.
func (i *instance) begun() *protos.ExecutionStartedEvent {
	if start := i.history.Started(); start != nil {
		return start
	}
	return i.start.GetExecutionStarted()
}

// running returns the id of a descendant that is not terminal, or "" if there is none.
func (m *Memory) running(i *instance) string {
	for _, child := range m.descendants(i) {
		if !child.terminal() {
			return child.id
		}
	}
	return ""
}

// descendants returns all descendants of an instance. Parents come before their children. An id in the field children
// may belong to an instance of another parent, which is not a descendant.
func (m *Memory) descendants(i *instance) []*instance {
	seen := map[*instance]bool{i: true}
	list := []*instance{i}
	for n := 0; n < len(list); n++ {
		for _, at := range list[n].children {
			child := m.instances[at]
			if child == nil || seen[child] {
				continue
			}
			p := child.begun().GetParentInstance()
			if p.GetAppID() == list[n].app && p.GetWorkflowInstance().GetInstanceId() == list[n].id {
				seen[child] = true
				list = append(list, child)
			}
		}
	}
	return list[1:]
}

func (m *Memory) remove(i *instance) {
	i.stopTimers()
	delete(m.instances, i.address)
	m.announce()
}

func (m *Memory) find(app, id string) (*instance, error) {
	if i := m.instances[address{app, id}]; i != nil {
		return i, nil
	}
	return nil, workflow.NoInstance(id)
}

// State implements workflow.Engine.
func (m *Memory) State(_ context.Context, app, id string, payloads bool) (*protos.WorkflowState, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.find(app, id)
	if err != nil {
		return nil, err
	}
	return i.state(payloads), nil
}

// Wait implements workflow.Engine.
func (m *Memory) Wait(ctx context.Context, app, id string, until workflow.Until,
	payloads bool) (*protos.WorkflowState, error) {
	for {
		m.mu.Lock()
		i, changed := m.instances[address{app, id}], m.changed
		if i != nil && until.Reached(i.status()) {
			defer m.mu.Unlock()
			return i.state(payloads), nil
		}
		m.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fault.Wrap(ctx.Err(), "workflowtest.Wait", "waiting for workflow '"+id+"'")
		}
	}
}

// put adds an event to the inbox of an instance, unless the instance is terminal.
func (m *Memory) put(i *instance, e *protos.HistoryEvent) {
	if i.terminal() {
		return
	}
	i.inbox = append(i.inbox, e)
	i.stalled = false
	m.announce()
}

// change executes a request of a client. It calls e to create the new event, and adds this event to the inbox of the
// instance, unless the event has no effect (see turn.Repeats). The caller must not hold m.mu.
func (m *Memory) change(app, id string, e func(i *instance) *protos.HistoryEvent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.find(app, id)
	if err != nil {
		return err
	}
	if i.status() == protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED {
		return workflow.Stalled(id)
	}
	suspended := i.status() == protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED
	for _, event := range i.inbox {
		suspended = turn.Pauses(suspended, event)
	}
	if event := e(i); !turn.Repeats(event, suspended) {
		m.put(i, event)
	}
	return nil
}

func (i *instance) stamp(now time.Time) time.Time {
	i.raised = turn.NextRaised(i.raised, now)
	return i.raised
}

// Raise implements workflow.Engine.
func (m *Memory) Raise(_ context.Context, app string, r *protos.RaiseEventRequest) error {
	return m.change(app, r.GetInstanceId(), func(i *instance) *protos.HistoryEvent {
		return turn.Raised(r.GetName(), r.GetInput(), i.stamp(time.Now()))
	})
}

// Terminate implements workflow.Engine.
func (m *Memory) Terminate(_ context.Context, app string, r *protos.TerminateRequest) error {
	err := m.change(app, r.GetInstanceId(), func(i *instance) *protos.HistoryEvent {
		i.waits = false
		return turn.Terminated(r.GetOutput(), r.GetRecursive(), time.Now())
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endWithoutWorker()
	return nil
}

// endWithoutWorker ends the instances that have a termination in their inbox, but whose application has no worker.
func (m *Memory) endWithoutWorker() {
	for again := true; again; {
		again = false
		for _, i := range m.instances {
			ends := slices.ContainsFunc(i.inbox,
				func(e *protos.HistoryEvent) bool { return e.GetExecutionTerminated() != nil })
			if !ends || i.out != nil || i.terminal() || m.workers(i.app) > 0 {
				continue
			}
			events := turn.Begin(i.history, i.inbox, time.Now())
			if o, err := turn.Apply(m.turnOf(i, events), nil, time.Now()); err == nil {
				m.apply(i, o, len(i.inbox))
				again = true
			}
		}
	}
}

func (m *Memory) turnOf(i *instance, events []*protos.HistoryEvent) *turn.State {
	return &turn.State{ID: i.id, App: i.app, History: i.history, New: events}
}

// Suspend implements workflow.Engine.
func (m *Memory) Suspend(_ context.Context, app string, r *protos.SuspendRequest) error {
	return m.change(app, r.GetInstanceId(), func(*instance) *protos.HistoryEvent {
		return turn.Suspended(r.GetReason(), time.Now())
	})
}

// Resume implements workflow.Engine.
func (m *Memory) Resume(_ context.Context, app string, r *protos.ResumeRequest) error {
	return m.change(app, r.GetInstanceId(), func(*instance) *protos.HistoryEvent {
		return turn.Resumed(r.GetReason(), time.Now())
	})
}

// Purge implements workflow.Engine.
func (m *Memory) Purge(_ context.Context, app, id string, recursive, force bool) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.find(app, id)
	if err != nil {
		return 0, err
	}
	return m.purge(i, recursive, force)
}

func (m *Memory) purge(i *instance, recursive, force bool) (int, error) {
	list := []*instance{i}
	if recursive {
		list = append(list, m.descendants(i)...)
	}
	for _, one := range list {
		switch {
		case force || one.terminal():
		case one.status() == protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED:
			return 0, workflow.Stalled(one.id)
		default:
			return 0, workflow.NotTerminal(one.id)
		}
	}
	for _, one := range list {
		m.remove(one)
	}
	return len(list), nil
}

// PurgeMatching implements workflow.Engine.
func (m *Memory) PurgeMatching(_ context.Context, app string, f workflow.Filter, recursive bool) (int, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	removed := 0
	var refused error
	for _, i := range m.sorted(app, f) {
		if m.instances[i.address] == i && i.terminal() {
			n, err := m.purge(i, recursive, false)
			removed, refused = removed+n, cmp.Or(refused, err)
		}
	}
	return removed, refused == nil, refused
}

// sorted returns the instances of an application that match f, in the order of their creation.
func (m *Memory) sorted(app string, f workflow.Filter) []*instance {
	var list []*instance
	for _, i := range m.instances {
		if l := i.listed(); i.app == app && f.Matches(&l) {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b *instance) int { return cmp.Compare(a.sequence, b.sequence) })
	return list
}

func (i *instance) listed() workflow.Listed {
	s := i.state(false)
	return workflow.Listed{ID: i.id, Name: s.GetName(), Parent: s.GetParentInstanceId().GetValue(), Status: i.status(),
		Created: s.GetCreatedTimestamp().AsTime(), Updated: s.GetLastUpdatedTimestamp().AsTime()}
}

// List implements workflow.Engine.
func (m *Memory) List(_ context.Context, app string, f workflow.Filter, after string, limit int) ([]workflow.Listed,
	string, error) {
	from := 0
	if after != "" {
		var err error
		if from, err = strconv.Atoi(after); err != nil {
			return nil, "", fault.New(fault.Invalid, "workflowtest.List", "the continuation token is not valid")
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var page []workflow.Listed
	for _, i := range m.sorted(app, f) {
		if i.sequence <= from {
			continue
		}
		if len(page) == limit {
			return page, strconv.Itoa(from), nil
		}
		page, from = append(page, i.listed()), i.sequence
	}
	return page, "", nil
}

// Applications implements workflow.Engine.
func (m *Memory) Applications(context.Context) (list []workflow.Application, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	workers := map[string]int{}
	for a := range m.instances {
		workers[a.app] += 0
	}
	for s := range m.streams {
		workers[s.app]++
	}
	for _, id := range slices.Sorted(maps.Keys(workers)) {
		list = append(list, workflow.Application{ID: id, Workers: workers[id]})
	}
	return list, nil
}

// History implements workflow.Engine.
func (m *Memory) History(_ context.Context, app, id string, first, limit int) ([]*protos.HistoryEvent, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, err := m.find(app, id)
	if err != nil {
		return nil, false, err
	}
	rest := i.events[min(first, len(i.events)):]
	return slices.Clone(rest[:min(limit, len(rest))]), len(rest) > limit, nil
}

// Rerun implements workflow.Engine.
func (m *Memory) Rerun(_ context.Context, app string, r *protos.RerunWorkflowFromEventRequest) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	source, err := m.find(app, r.GetSourceInstanceID())
	if err != nil {
		return "", &fault.Error{Code: fault.NotFound, Op: "workflowtest.Rerun",
			Msg: "workflow instance does not exist with ID '" + r.GetSourceInstanceID() + "'"}
	}
	id := cmp.Or(r.GetNewInstanceID(), uuid.NewString())
	f, err := turn.Rerun(app, "", source.events, r, id, uuid.NewString(), time.Now())
	if err != nil {
		return "", err
	}
	if m.instances[address{app, id}] != nil {
		return "", &fault.Error{Code: fault.Conflict, Op: "workflowtest.Rerun",
			Msg: "workflow '" + id + "' has already been created"}
	}
	m.sequence++
	i := &instance{address: address{app, id}, sequence: m.sequence, history: turn.Read(nil),
		tasks:  map[int32]*activity{},
		timers: map[int32]*time.Timer{}}
	m.instances[i.address] = i
	m.record(i, f.Events)
	m.schedule(i, f.Tasks, f.Timers)
	m.send(f.Messages)
	m.announce()
	return id, nil
}

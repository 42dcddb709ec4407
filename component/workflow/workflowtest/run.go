package workflowtest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
)

// stream implements workflow.Stream for one worker.
type stream struct {
	m      *Memory
	app    string
	worker workflow.Worker
}

// Work implements workflow.Engine.
func (m *Memory) Work(_ context.Context, app string, w workflow.Worker) (workflow.Stream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &stream{m, app, w}
	m.streams[s] = struct{}{}
	for _, i := range m.instances {
		if i.app == app {
			i.stalled = false // the new worker may have the version or the patches that earlier workers lacked
		}
	}
	m.announce()
	return s, nil
}

// Workers implements workflow.Engine.
func (m *Memory) Workers(app string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.workers(app)
}

func (m *Memory) workers(app string) int {
	n := 0
	for s := range m.streams {
		if s.app == app {
			n++
		}
	}
	return n
}

// Close implements workflow.Stream.
func (s *stream) Close() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	delete(s.m.streams, s)
	for _, i := range s.m.instances {
		if i.out != nil && i.out.stream == s {
			i.out = nil
		}
		for _, a := range i.tasks {
			if a.stream == s {
				a.stream = nil
			}
		}
	}
	s.m.endWithoutWorker()
	s.m.announce()
}

// Next implements workflow.Stream.
func (s *stream) Next(ctx context.Context) (*protos.WorkItem, error) {
	for {
		s.m.mu.Lock()
		item, wait, changed, closed := s.m.hand(s), s.m.pause(s.app), s.m.changed, s.m.closed
		s.m.mu.Unlock()
		switch {
		case item != nil:
			return item, nil
		case closed:
			return nil, fault.New(fault.Unavailable, "workflowtest.Next", "the engine is closed")
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fault.Wrap(ctx.Err(), "workflowtest.Next", "waiting for work")
		}
		timer.Stop()
	}
}

// pause returns how long to wait until a refused turn of the application is handed out again. It returns an hour if no
// turn was refused.
func (m *Memory) pause(app string) time.Duration {
	wait := time.Hour
	for _, i := range m.instances {
		if i.app == app && len(i.inbox) > 0 && !i.retry.IsZero() {
			wait = min(wait, max(time.Until(i.retry), time.Millisecond))
		}
	}
	return wait
}

// hand returns an item for a stream, or nil if there is none.
func (m *Memory) hand(s *stream) *protos.WorkItem {
	turns, activities := m.held(s.app)
	for _, i := range m.sorted(s.app, workflow.Filter{}) {
		if s.worker.MaxTurns > 0 && turns >= s.worker.MaxTurns {
			break
		}
		if i.out != nil || i.waits || i.stalled || i.terminal() || len(i.inbox) == 0 || time.Now().Before(i.retry) {
			continue
		}
		events := turn.Begin(i.history, i.inbox, time.Now())
		if len(events) == 1 {
			i.inbox = nil
			continue
		}
		i.out = &turnOut{stream: s, token: m.token(), events: events, inbox: len(i.inbox)}
		item := &protos.WorkItem{CompletionToken: i.out.token, Request: &protos.WorkItem_WorkflowRequest{
			WorkflowRequest: &protos.WorkflowRequest{InstanceId: i.id, ExecutionId: wrapperspb.String(i.execution()),
				PastEvents: i.events, NewEvents: events}}}
		return proto.CloneOf(item)
	}
	for _, i := range m.instances {
		for _, a := range i.tasks {
			if a.app != s.app || a.stream != nil || s.worker.MaxActivities > 0 && activities >= s.worker.MaxActivities {
				continue
			}
			a.stream, a.token = s, m.token()
			return proto.CloneOf(&protos.WorkItem{CompletionToken: a.token, Request: &protos.WorkItem_ActivityRequest{
				ActivityRequest: turn.Request(i.id, i.execution(), a.event)}})
		}
	}
	return nil
}

// held returns how many turns and activities of an application are in progress at its workers.
func (m *Memory) held(app string) (turns, activities int) {
	for _, i := range m.instances {
		if i.app == app && i.out != nil {
			turns++
		}
		for _, a := range i.tasks {
			if a.app == app && a.stream != nil {
				activities++
			}
		}
	}
	return turns, activities
}

func (m *Memory) token() string {
	m.tokens++
	return "token-" + strconv.Itoa(m.tokens)
}

// CompleteTurn implements workflow.Engine.
func (m *Memory) CompleteTurn(_ context.Context, app string, r *protos.WorkflowResponse) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	i := m.instances[address{app, r.GetInstanceId()}]
	if i == nil || i.out == nil || r.GetCompletionToken() != "" && r.GetCompletionToken() != i.out.token {
		return nil
	}
	out := i.out
	i.out = nil
	o, err := turn.Apply(m.turnOf(i, out.events), proto.CloneOf(r), time.Now())
	if err != nil {
		i.retry = time.Now().Add(min(time.Second<<i.refused, time.Minute))
		i.refused = min(i.refused+1, 6)
		m.announce()
		return err
	}
	i.retry, i.refused = time.Time{}, 0
	m.apply(i, o, out.inbox)
	if d := out.stream.worker.Retention.Of(i.status()); d > 0 && i.terminal() {
		i.timers[-2] = time.AfterFunc(d, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if m.instances[i.address] == i {
				m.remove(i)
			}
		})
	}
	return nil
}

// apply stores the outcome of a turn. read is the number of events of the inbox that belong to the turn.
func (m *Memory) apply(i *instance, o *turn.Outcome, read int) {
	i.custom = o.Custom
	if o.Consumed {
		i.inbox = i.inbox[read:]
	}
	if o.Replace {
		i.events, i.history = nil, turn.Read(nil)
		i.start = o.Inbox[0]
		i.generation++
		i.stopTimers()
		i.inbox = append(slices.Clone(o.Inbox), i.inbox...)
	}
	m.record(i, o.Append)
	i.stalled = o.Stalled != nil
	for _, id := range o.Dropped {
		if t := i.timers[id]; t != nil {
			t.Stop()
			delete(i.timers, id)
		}
	}
	m.schedule(i, o.Tasks, o.Timers)
	if o.Completed != nil {
		i.inbox = nil
		i.stopTimers()
	}
	m.send(o.Messages)
	m.announce()
}

func (m *Memory) record(i *instance, events []*protos.HistoryEvent) {
	i.events = append(i.events, events...)
	i.history.Add(events...)
	for _, e := range events {
		if c := e.GetChildWorkflowInstanceCreated(); c != nil {
			i.children = append(i.children, address{turn.Owner(i.app, e.GetRouter()), c.GetInstanceId()})
		}
	}
}

func (m *Memory) schedule(i *instance, tasks []turn.Task, timers []turn.Timer) {
	for _, t := range tasks {
		i.tasks[t.ID] = &activity{of: i, app: t.App, generation: i.generation, event: t.Event}
	}
	for _, t := range timers {
		generation := i.generation
		i.timers[t.ID] = time.AfterFunc(time.Until(t.FireAt), func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			if i.generation == generation && m.instances[i.address] == i {
				m.put(i, turn.Fire(&t, time.Now()))
			}
		})
	}
}

// send delivers messages to their instances.
func (m *Memory) send(messages []turn.Message) {
	for len(messages) > 0 {
		msg := messages[0]
		messages = messages[1:]
		if _, again := m.delivered[msg.Key]; again {
			continue
		}
		m.delivered[msg.Key] = struct{}{}
		e := proto.CloneOf(msg.Event)
		at := address{msg.App, msg.Instance}
		if start := e.GetExecutionStarted(); start != nil {
			err := m.create(at, e, turn.Foreign(at.app, e))
			if err == nil {
				continue
			}
			if back, ok := turn.Refused(msg.App, msg.Key, start, "AlreadyExists", fault.Text(err), time.Now()); ok {
				messages = append(messages, back)
			}
			continue
		}
		i := m.instances[at]
		if i == nil || i.terminal() || msg.Execution != "" && msg.Execution != i.execution() &&
			(e.GetExecutionTerminated() == nil || msg.Execution != i.creation) {
			continue
		}
		if r := e.GetEventRaised(); r != nil {
			e = turn.Raised(r.GetName(), r.GetInput(), i.stamp(time.Now()))
		}
		if e.GetExecutionTerminated() != nil {
			i.waits = false
		}
		m.put(i, e)
	}
	m.endWithoutWorker()
}

// CompleteActivity implements workflow.Engine.
func (m *Memory) CompleteActivity(_ context.Context, app string, r *protos.ActivityResponse) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, err := m.task(app, r)
	if err != nil || a == nil {
		return err
	}
	delete(a.of.tasks, r.GetTaskId())
	if a.generation == a.of.generation {
		m.put(a.of, turn.Result(proto.CloneOf(r), a.event.GetTaskScheduled().GetTaskExecutionId(), time.Now()))
	}
	m.announce()
	return nil
}

// task returns the activity to which an answer belongs, or nil if there is none.
func (m *Memory) task(app string, r *protos.ActivityResponse) (found *activity, err error) {
	for _, i := range m.instances {
		a := i.tasks[r.GetTaskId()]
		if i.id == r.GetInstanceId() && a != nil && a.app == app && a.stream != nil &&
			(r.GetCompletionToken() == "" || r.GetCompletionToken() == a.token) {
			if found != nil {
				return nil, fault.New(fault.Invalid, "workflowtest.CompleteActivity",
					"the answer has no completion token, and several items match")
			}
			found = a
		}
	}
	return found, nil
}

// errNoItem is the error of a worker that got no item in time.
var errNoItem = errors.New("no work came in time")

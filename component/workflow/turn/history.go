package turn

import (
	"slices"
	"strings"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// kind is the kind of a scheduled event.
type kind byte

const (
	task kind = iota + 1
	timer
	child
)

// pending is a scheduled event without a resolution.
type pending struct {
	kind kind
	// event is the upper-case name of the external event for which a timer is the timeout; "" = none.
	event string
	// instance is the id of a child. router is the router of the event that has created the child.
	instance string
	router   *protos.TaskRouter
}

// raised identifies an external event.
type raised struct {
	name string
	at   time.Time
}

// History is a summary of the committed events of one generation of an instance. It contains what the rules need to
// know, so that a turn does not have to read the whole history. A History is not safe for concurrent use, but Begin and
// Apply only read it.
type History struct {
	count     int       // number of events
	first     time.Time // time of the first event
	last      time.Time // time of the newest event
	start     *protos.HistoryEvent
	completed *protos.HistoryEvent
	stalled   *protos.ExecutionStalledEvent // the newest event, if it is ExecutionStalled
	suspended bool
	open      map[int32]pending   // scheduled events without a resolution, by id
	guards    map[string][]int32  // by pending.event: ids of the open timers, ascending
	used      ids                 // ids of actions
	raised    map[raised]struct{} // external events
	patches   []string            // patches of the workflow's code, in order
	version   string              // name of the version of the workflow's code
}

// Read returns the History of events.
func Read(events []*protos.HistoryEvent) *History {
	h := &History{}
	h.Add(events...)
	return h
}

// Add adds events to the end of the history.
func (h *History) Add(events ...*protos.HistoryEvent) {
	for _, e := range events {
		h.add(e)
	}
}

func (h *History) add(e *protos.HistoryEvent) {
	at := when(e)
	if h.count == 0 {
		h.first = at
	}
	h.count++
	h.last, h.stalled = at, nil
	switch v := e.GetEventType().(type) {
	case *protos.HistoryEvent_ExecutionStarted:
		if h.start == nil {
			h.start = e
		}
	case *protos.HistoryEvent_ExecutionCompleted:
		if h.completed == nil {
			h.completed = e
		}
	case *protos.HistoryEvent_ExecutionSuspended:
		h.suspended = true
	case *protos.HistoryEvent_ExecutionResumed:
		h.suspended = false
	case *protos.HistoryEvent_ExecutionStalled:
		h.stalled = v.ExecutionStalled
	case *protos.HistoryEvent_WorkflowStarted:
		h.patches = append(h.patches, v.WorkflowStarted.GetVersion().GetPatches()...)
		if name := v.WorkflowStarted.GetVersion().GetName(); name != "" && h.version == "" {
			h.version = name
		}
	case *protos.HistoryEvent_EventRaised:
		if h.raised == nil {
			h.raised = map[raised]struct{}{}
		}
		h.raised[raised{v.EventRaised.GetName(), at}] = struct{}{}
		if list := h.guards[strings.ToUpper(v.EventRaised.GetName())]; len(list) > 0 {
			h.resolve(list[0]) // the oldest timer, because ids ascend with time
		}
	case *protos.HistoryEvent_EventSent, *protos.HistoryEvent_DetachedWorkflowInstanceCreated:
		h.used.add(e.GetEventId())
	default:
		if id, _, ok := resolves(e); ok {
			h.resolve(id)
		} else if p, ok := schedules(e); ok {
			h.schedule(e.GetEventId(), p)
		}
	}
}

// schedule notes that a scheduled event waits for its resolution.
func (h *History) schedule(id int32, p pending) {
	if h.open == nil {
		h.open, h.guards = map[int32]pending{}, map[string][]int32{}
	}
	h.open[id] = p
	h.used.add(id)
	if p.event != "" {
		list := h.guards[p.event]
		if at, again := slices.BinarySearch(list, id); !again {
			h.guards[p.event] = slices.Insert(list, at, id)
		}
	}
}

// resolve notes that a scheduled event has its resolution.
func (h *History) resolve(id int32) {
	p := h.open[id]
	delete(h.open, id)
	list := h.guards[p.event]
	switch at, ok := slices.BinarySearch(list, id); {
	case p.event == "" || !ok:
	case len(list) == 1:
		delete(h.guards, p.event)
	case at == 0:
		h.guards[p.event] = list[1:]
	default:
		h.guards[p.event] = slices.Delete(list, at, at+1)
	}
}

// schedules returns the pending entry of a scheduled event. ok is false for other events.
func schedules(e *protos.HistoryEvent) (p pending, ok bool) {
	switch v := e.GetEventType().(type) {
	case *protos.HistoryEvent_TaskScheduled:
		return pending{kind: task}, true
	case *protos.HistoryEvent_TimerCreated:
		return pending{kind: timer, event: strings.ToUpper(guarded(v.TimerCreated))}, true
	case *protos.HistoryEvent_ChildWorkflowInstanceCreated:
		id := v.ChildWorkflowInstanceCreated.GetInstanceId()
		return pending{kind: child, instance: id, router: e.GetRouter()}, true
	}
	return pending{}, false
}

// guarded returns the name of an external event if the timer is the timeout of a wait for this event. It returns "" for
// any other timer. For a timer without an origin, which older workers create, it returns the name of the timer.
func guarded(t *protos.TimerCreatedEvent) string {
	if o := t.GetExternalEvent(); o != nil {
		return o.GetName()
	}
	if t.GetOrigin() == nil {
		return t.GetName()
	}
	return ""
}

// resolves returns the id and the kind of the scheduled event that e resolves. ok is false if e resolves none.
func resolves(e *protos.HistoryEvent) (id int32, k kind, ok bool) {
	switch v := e.GetEventType().(type) {
	case *protos.HistoryEvent_TaskCompleted:
		return v.TaskCompleted.GetTaskScheduledId(), task, true
	case *protos.HistoryEvent_TaskFailed:
		return v.TaskFailed.GetTaskScheduledId(), task, true
	case *protos.HistoryEvent_TimerFired:
		return v.TimerFired.GetTimerId(), timer, true
	case *protos.HistoryEvent_ChildWorkflowInstanceCompleted:
		return v.ChildWorkflowInstanceCompleted.GetTaskScheduledId(), child, true
	case *protos.HistoryEvent_ChildWorkflowInstanceFailed:
		return v.ChildWorkflowInstanceFailed.GetTaskScheduledId(), child, true
	}
	return 0, 0, false
}

func when(e *protos.HistoryEvent) time.Time {
	if e.GetTimestamp() == nil {
		return time.Time{}
	}
	return e.GetTimestamp().AsTime()
}

// Len returns the number of events.
func (h *History) Len() int { return h.count }

// Open returns the number of tasks, timers and children that have not ended.
func (h *History) Open() int { return len(h.open) }

// Started returns the event ExecutionStarted; nil = the first turn has not run.
func (h *History) Started() *protos.ExecutionStartedEvent { return h.start.GetExecutionStarted() }

// Completed returns the event ExecutionCompleted; nil = the instance is not terminal.
func (h *History) Completed() *protos.ExecutionCompletedEvent {
	return h.completed.GetExecutionCompleted()
}

// Status returns the status of an instance with this history.
func (h *History) Status() protos.OrchestrationStatus {
	switch {
	case h.completed != nil:
		return h.Completed().GetWorkflowStatus()
	case h.stalled != nil:
		return protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED
	case h.suspended:
		return protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED
	case h.start == nil:
		return protos.OrchestrationStatus_ORCHESTRATION_STATUS_PENDING
	}
	return protos.OrchestrationStatus_ORCHESTRATION_STATUS_RUNNING
}

// State returns the public state of an instance with this history. The parameter start is used before the first turn,
// when the history does not yet contain the event ExecutionStarted. Input, output, custom status and failure are set
// only if payloads is true.
func (h *History) State(id string, start *protos.HistoryEvent, custom *wrapperspb.StringValue,
	payloads bool) *protos.WorkflowState {
	if h.start != nil {
		start = h.start
	}
	begun := start.GetExecutionStarted()
	s := &protos.WorkflowState{InstanceId: id, Name: begun.GetName(), Version: begun.GetVersion(),
		WorkflowStatus: h.Status(), ScheduledStartTimestamp: begun.GetScheduledStartTimestamp(),
		CreatedTimestamp: start.GetTimestamp(), LastUpdatedTimestamp: start.GetTimestamp(), Tags: begun.GetTags(),
		ExecutionId: begun.GetWorkflowInstance().GetExecutionId()}
	if h.count > 0 {
		s.StartedAt, s.LastUpdatedTimestamp = timestamppb.New(h.first), timestamppb.New(h.last)
	}
	if p := begun.GetParentInstance(); p != nil {
		s.ParentInstanceId = wrapperspb.String(p.GetWorkflowInstance().GetInstanceId())
		if p.AppID != nil {
			s.ParentAppId = wrapperspb.String(p.GetAppID())
		}
	}
	if h.completed != nil {
		s.CompletedTimestamp = h.completed.GetTimestamp()
	}
	if payloads {
		s.Input, s.CustomStatus = begun.GetInput(), custom
		s.Output, s.FailureDetails = h.Completed().GetResult(), h.Completed().GetFailureDetails()
	}
	return s
}

// ids is a set of event ids. It is a sorted list of ranges, each with its first and its last id. Workers use
// consecutive ids, so even a long history has few ranges.
type ids [][2]int32

func (s ids) has(id int32) bool {
	_, ok := s.find(id)
	return ok
}

// find returns the position of the range that contains id. If no range contains it, find returns the position at which
// to insert a new range.
func (s ids) find(id int32) (at int, ok bool) {
	return slices.BinarySearchFunc(s, id, func(run [2]int32, id int32) int {
		switch {
		case run[1] < id:
			return -1
		case run[0] > id:
			return 1
		}
		return 0
	})
}

func (s *ids) add(id int32) {
	at, ok := s.find(id)
	if ok {
		return
	}
	before := at > 0 && int64((*s)[at-1][1])+1 == int64(id)
	after := at < len(*s) && int64((*s)[at][0])-1 == int64(id)
	switch {
	case before && after:
		(*s)[at-1][1] = (*s)[at][1]
		*s = slices.Delete(*s, at, at+1)
	case before:
		(*s)[at-1][1] = id
	case after:
		(*s)[at][0] = id
	default:
		*s = slices.Insert(*s, at, [2]int32{id, id})
	}
}

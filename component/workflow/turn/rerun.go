package turn

import (
	"fmt"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/internal/fault"
)

// Fork is a new instance that begins in the middle of the history of another instance.
type Fork struct {
	ID       string
	Events   []*protos.HistoryEvent // the history of the new instance
	Tasks    []Task
	Timers   []Timer
	Messages []Message
}

// Rerun returns a new instance that repeats a terminal instance from a certain event on. The request names this event,
// and the history of the new instance ends with it. Activities, timers and children without a result in this history
// start again, and the children get new ids. id and execution are the ids of the new instance and of its execution.
func Rerun(app, namespace string, events []*protos.HistoryEvent, r *protos.RerunWorkflowFromEventRequest, id,
	execution string, now time.Time) (*Fork, error) {
	source := r.GetSourceInstanceID()
	h := Read(events)
	switch {
	case h.completed == nil:
		return nil, cannot(fault.Invalid, source, "'"+source+"' is not in a terminal state")
	case h.Started().GetParentInstance() != nil:
		return nil, cannot(fault.Invalid, source, "'"+source+"': cannot rerun from child-workflows")
	case id == source:
		return nil, cannot(fault.Invalid, source,
			"rerun workflow instance ID must be different from the original instance ID")
	case id == "" || len(id) > MaxID:
		return nil, cannot(fault.Invalid, source, fmt.Sprintf("the new instance ID must have 1 to %d bytes", MaxID))
	case len(r.GetNewChildWorkflowInstanceID()) > MaxID:
		return nil, cannot(fault.Invalid, source, fmt.Sprintf("the new child ID must have at most %d bytes", MaxID))
	}
	at := -1
	for i, e := range events {
		// the events of the engine have the id -1, which a request cannot name
		if e.GetEventId() >= 0 && uint32(e.GetEventId()) == r.GetEventID() {
			at = i
			break
		}
	}
	if at < 0 {
		return nil, cannot(fault.NotFound, source, fmt.Sprintf("does not have history event with ID '%d'",
			r.GetEventID()))
	}
	target, err := retarget(source, events[at], r, id, now)
	if err != nil {
		return nil, err
	}
	f := &Fork{ID: id, Events: make([]*protos.HistoryEvent, 0, at+1)}
	f.Events = append(append(f.Events, events[:at]...), target)
	f.restart(app, namespace, execution, now)
	return f, nil
}

func cannot(code fault.Code, id, msg string) *fault.Error {
	return &fault.Error{Code: code, Op: "turn.Rerun", Msg: msg, Key: id}
}

// retarget returns a copy of the event that runs again, with the changes that the request contains, such as a new
// input. It returns an error if an event of this type cannot run again or cannot be changed in this way.
func retarget(source string, e *protos.HistoryEvent, r *protos.RerunWorkflowFromEventRequest, id string,
	now time.Time) (*protos.HistoryEvent, error) {
	rerun := &protos.RerunParentInstanceInfo{InstanceID: source}
	number := fmt.Sprintf("event '%d'", r.GetEventID())
	e = proto.CloneOf(e)
	e.Timestamp = timestamppb.New(now)
	switch v := e.GetEventType().(type) {
	case *protos.HistoryEvent_TaskScheduled:
		if r.NewChildWorkflowInstanceID != nil {
			return nil, cannot(fault.Invalid, source, "cannot set new child workflow instance ID on activity "+number)
		}
		v.TaskScheduled.RerunParentInstanceInfo = rerun
		if r.GetOverwriteInput() {
			v.TaskScheduled.Input = r.GetInput()
		}
	case *protos.HistoryEvent_TimerCreated:
		if r.GetOverwriteInput() {
			return nil, cannot(fault.Invalid, source, "cannot write input to timer "+number)
		}
		if r.NewChildWorkflowInstanceID != nil {
			return nil, cannot(fault.Invalid, source, "cannot set new child workflow instance ID on timer "+number)
		}
		v.TimerCreated.RerunParentInstanceInfo = rerun
	case *protos.HistoryEvent_ChildWorkflowInstanceCreated:
		c := v.ChildWorkflowInstanceCreated
		c.RerunParentInstanceInfo, c.InstanceId = rerun, ChildID(id, e.GetEventId())
		if r.NewChildWorkflowInstanceID != nil {
			c.InstanceId = r.GetNewChildWorkflowInstanceID()
		}
		if r.GetOverwriteInput() {
			c.Input = r.GetInput()
		}
	case *protos.HistoryEvent_DetachedWorkflowInstanceCreated:
		return nil, cannot(fault.Invalid, source, number+" starts a detached workflow and cannot be rerun")
	default:
		return nil, cannot(fault.NotFound, source,
			fmt.Sprintf("target event '%T' with ID '%d' is not an event that can be "+
				"rerun", e.GetEventType(), r.GetEventID()))
	}
	return e, nil
}

// restart gives the new instance its own ids. It also starts the activities, timers and children that have no result in
// the history.
func (f *Fork) restart(app, namespace, execution string, now time.Time) {
	h, target := Read(f.Events), f.Events[len(f.Events)-1]
	a := &applier{State: &State{ID: f.ID, App: app, Namespace: namespace}, now: now}
	for i, e := range f.Events {
		switch v := e.GetEventType().(type) {
		case *protos.HistoryEvent_ExecutionStarted:
			e = proto.CloneOf(e)
			a.start = e.GetExecutionStarted()
			a.start.WorkflowInstance = &protos.WorkflowInstance{InstanceId: f.ID,
				ExecutionId: wrapperspb.String(execution)}
			if a.start.GetWorkflowSpanID() != nil {
				Traced(a.start) // the new instance needs a span of its own
			}
			f.Events[i] = e
		case *protos.HistoryEvent_TaskScheduled:
			if _, open := h.open[e.GetEventId()]; open {
				f.Tasks = append(f.Tasks, Task{ID: e.GetEventId(), App: Owner(app, e.GetRouter()), Event: e})
			}
		case *protos.HistoryEvent_TimerCreated:
			if _, open := h.open[e.GetEventId()]; open {
				if t, ok := fires(e.GetEventId(), v.TimerCreated); ok {
					f.Timers = append(f.Timers, t)
				}
			}
		case *protos.HistoryEvent_ChildWorkflowInstanceCreated:
			if _, open := h.open[e.GetEventId()]; !open {
				continue
			}
			if e != target {
				e = proto.CloneOf(e)
				e.GetChildWorkflowInstanceCreated().InstanceId = ChildID(f.ID, e.GetEventId())
				f.Events[i] = e
			}
			f.Messages = append(f.Messages, a.begin(e.GetEventId(), Owner(app, e.GetRouter()), e.GetRouter(),
				e.GetChildWorkflowInstanceCreated()))
		}
	}
}

// Owner returns the application to which an event with the router r is sent. If r names a target application, Owner
// returns that application in the namespace of app. Otherwise Owner returns app.
func Owner(app string, r *protos.TaskRouter) string {
	if to := r.GetTargetAppID(); to != "" {
		return beside(app, to)
	}
	return app
}

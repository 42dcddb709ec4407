package turn

import (
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
)

// Start returns the event ExecutionStarted for a request to start an instance. If the request has no execution id,
// Start uses the parameter execution, which is a new UUID.
func Start(r *protos.CreateInstanceRequest, execution string, now time.Time) *protos.HistoryEvent {
	if id := r.GetExecutionId().GetValue(); id != "" {
		execution = id
	}
	return event(-1, now, &protos.HistoryEvent{Router: r.GetRouter(), EventType: &protos.HistoryEvent_ExecutionStarted{
		ExecutionStarted: &protos.ExecutionStartedEvent{Name: r.GetName(), Version: r.GetVersion(), Input: r.GetInput(),
			ScheduledStartTimestamp: r.GetScheduledStartTimestamp(), ParentTraceContext: r.GetParentTraceContext(),
			Tags: r.GetTags(), WorkflowInstance: &protos.WorkflowInstance{InstanceId: r.GetInstanceId(),
				ExecutionId: wrapperspb.String(execution)}}}})
}

// Reuse decides what happens if an instance is started and its id is already in use. status and existing are from the
// existing instance, and wanted is the event of the new start. If unique is true, only a child of the same parent may
// replace the existing instance. There are three results:
//
//   - same is true: the existing instance was created by this same start. The caller changes nothing.
//   - err is not nil: the existing instance must not be replaced.
//   - Otherwise, the caller replaces the existing instance. Before that, it must check that all descendants of the
//     existing instance are terminal (see workflow.ChildRuns).
func Reuse(id string, status protos.OrchestrationStatus, existing, wanted *protos.ExecutionStartedEvent,
	unique bool) (same bool, err error) {
	switch {
	case sameCreation(existing, wanted):
		return true, nil
	case !workflow.Terminal(status):
		return false, workflow.AlreadyRuns(id)
	case unique && !siblings(existing, wanted):
		return false, workflow.AlreadyExists(id)
	}
	return false, nil
}

// Foreign reports whether another application requests the start of an instance of app. For such a start, Reuse must be
// called with unique = true, because an application must not replace the instances of another one.
func Foreign(app string, start *protos.HistoryEvent) bool {
	if p := start.GetExecutionStarted().GetParentInstance(); p != nil {
		return p.GetAppID() != app
	}
	return start.GetRouter().GetTargetAppID() != ""
}

// siblings reports whether two instances are children of the same parent instance. They are siblings even if different
// executions of the parent have started them.
func siblings(a, b *protos.ExecutionStartedEvent) bool {
	pa, pb := a.GetParentInstance(), b.GetParentInstance()
	return pa != nil && pb != nil && pa.GetAppID() == pb.GetAppID() &&
		pa.GetWorkflowInstance().GetInstanceId() == pb.GetWorkflowInstance().GetInstanceId()
}

// sameCreation reports whether two events ExecutionStarted are from the same start of an instance. Two starts by
// clients are the same if they have the same execution id. Two starts by parents are the same if the execution of the
// parent and the task id are the same.
func sameCreation(a, b *protos.ExecutionStartedEvent) bool {
	pa, pb := a.GetParentInstance(), b.GetParentInstance()
	if pa != nil && pb != nil {
		return pa.GetTaskScheduledId() == pb.GetTaskScheduledId() && siblings(a, b) &&
			pa.GetWorkflowInstance().GetExecutionId().GetValue() == pb.GetWorkflowInstance().GetExecutionId().GetValue()
	}
	id := a.GetWorkflowInstance().GetExecutionId().GetValue()
	return pa == nil && pb == nil && id != "" && id == b.GetWorkflowInstance().GetExecutionId().GetValue()
}

// Refused returns the message that informs the parent that its child could not be started. ok is false if start has no
// parent. The parameter key is the key of the message that should have started the child.
func Refused(app, key string, start *protos.ExecutionStartedEvent, errorType, message string,
	now time.Time) (m Message, ok bool) {
	p := start.GetParentInstance()
	if p == nil {
		return Message{}, false
	}
	m = toParent(app, p)
	m.Key = key + "/refused"
	m.Event.EventType = &protos.HistoryEvent_ChildWorkflowInstanceFailed{
		ChildWorkflowInstanceFailed: &protos.ChildWorkflowInstanceFailedEvent{TaskScheduledId: p.GetTaskScheduledId(),
			FailureDetails: &protos.TaskFailureDetails{ErrorType: errorType, ErrorMessage: message}}}
	event(-1, now, m.Event)
	return m, true
}

// Request returns the work item of an activity.
func Request(id, execution string, scheduled *protos.HistoryEvent) *protos.ActivityRequest {
	t := scheduled.GetTaskScheduled()
	return &protos.ActivityRequest{Name: t.GetName(), Version: t.GetVersion(), Input: t.GetInput(),
		WorkflowInstance: &protos.WorkflowInstance{InstanceId: id, ExecutionId: wrapperspb.String(execution)},
		TaskId:           scheduled.GetEventId(), ParentTraceContext: t.GetParentTraceContext(),
		TaskExecutionId: t.GetTaskExecutionId()}
}

// Result returns the event for the answer of an activity. The parameter taskExecution is the execution id in the event
// TaskScheduled of the activity.
func Result(r *protos.ActivityResponse, taskExecution string, now time.Time) *protos.HistoryEvent {
	if d := r.GetFailureDetails(); d != nil {
		return Failure(r.GetTaskId(), taskExecution, d, now)
	}
	return event(-1, now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_TaskCompleted{
		TaskCompleted: &protos.TaskCompletedEvent{TaskScheduledId: r.GetTaskId(), Result: r.GetResult(),
			TaskExecutionId: taskExecution}}})
}

// Failure returns the event of an activity that has failed.
func Failure(id int32, taskExecution string, d *protos.TaskFailureDetails, now time.Time) *protos.HistoryEvent {
	return event(-1, now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_TaskFailed{
		TaskFailed: &protos.TaskFailedEvent{TaskScheduledId: id, FailureDetails: d, TaskExecutionId: taskExecution}}})
}

// Raised returns the event EventRaised for an external event. The timestamp must be a result of NextRaised.
func Raised(name string, input *wrapperspb.StringValue, at time.Time) *protos.HistoryEvent {
	return event(-1, at, &protos.HistoryEvent{EventType: &protos.HistoryEvent_EventRaised{
		EventRaised: &protos.EventRaisedEvent{Name: name, Input: input}}})
}

// NextRaised returns the timestamp of the next external event of an instance. Timestamps ascend strictly, because an
// event is identified by its name and its timestamp. The parameter last is the timestamp of the previous external
// event.
func NextRaised(last, now time.Time) time.Time {
	if now.After(last) {
		return now
	}
	return last.Add(1)
}

// Terminated returns the event of a termination. If recurse is true, the children of the instance are also terminated.
func Terminated(reason *wrapperspb.StringValue, recurse bool, now time.Time) *protos.HistoryEvent {
	return event(-1, now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ExecutionTerminated{
		ExecutionTerminated: &protos.ExecutionTerminatedEvent{Input: reason, Recurse: recurse}}})
}

// Suspended returns the event of a suspension.
func Suspended(reason *wrapperspb.StringValue, now time.Time) *protos.HistoryEvent {
	return event(-1, now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ExecutionSuspended{
		ExecutionSuspended: &protos.ExecutionSuspendedEvent{Input: reason}}})
}

// Resumed returns the event that ends a suspension.
func Resumed(reason *wrapperspb.StringValue, now time.Time) *protos.HistoryEvent {
	return event(-1, now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ExecutionResumed{
		ExecutionResumed: &protos.ExecutionResumedEvent{Input: reason}}})
}

// Pauses reports whether an instance is suspended after the event e. suspended is whether the instance was suspended
// before.
func Pauses(suspended bool, e *protos.HistoryEvent) bool {
	return (suspended || e.GetExecutionSuspended() != nil) && e.GetExecutionResumed() == nil
}

// Repeats reports whether an event suspends a suspended instance, or resumes one that is not suspended. suspended is
// the state of the instance after all events in the inbox.
//
// An engine must drop such an event. Otherwise an SDK would remember the second suspension, and suspend the workflow
// again after it was resumed.
func Repeats(e *protos.HistoryEvent, suspended bool) bool {
	return suspended && e.GetExecutionSuspended() != nil || !suspended && e.GetExecutionResumed() != nil
}

// Fire returns the event of a timer that fires.
func Fire(t *Timer, now time.Time) *protos.HistoryEvent {
	return &protos.HistoryEvent{EventId: -1, Timestamp: timestamppb.New(now), EventType: t.Event.GetEventType()}
}

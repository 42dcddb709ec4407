package workflows

import (
	"fmt"
	"strings"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
)

// eventOf describes an event of a history. The description has the payload only if payloads is true.
func eventOf(position int, e *protos.HistoryEvent, payloads bool) schema.WorkflowEvent {
	out := schema.WorkflowEvent{Position: position, ID: e.GetEventId(), Time: timeOf(e)}
	var payload *wrapperspb.StringValue
	ref := func(id int32) { out.Ref = &id }
	switch t := e.GetEventType().(type) {
	case *protos.HistoryEvent_ExecutionStarted:
		v := t.ExecutionStarted
		out.Type, out.Name, payload = "ExecutionStarted", v.GetName(), v.GetInput()
		if p := v.GetParentInstance(); p != nil {
			out.Detail = "parent " + p.GetWorkflowInstance().GetInstanceId()
		}
	case *protos.HistoryEvent_ExecutionCompleted:
		v := t.ExecutionCompleted
		out.Type, out.Detail, payload = "ExecutionCompleted", statusText(v.GetWorkflowStatus()), v.GetResult()
		out.Failure = failureOf(v.GetFailureDetails(), payloads)
	case *protos.HistoryEvent_ExecutionTerminated:
		out.Type, payload = "ExecutionTerminated", t.ExecutionTerminated.GetInput()
		if t.ExecutionTerminated.GetRecurse() {
			out.Detail = "with children"
		}
	case *protos.HistoryEvent_TaskScheduled:
		v := t.TaskScheduled
		out.Type, out.Name, payload = "TaskScheduled", v.GetName(), v.GetInput()
		if app := e.GetRouter().GetTargetAppID(); app != "" {
			out.Detail = "for application " + app
		}
	case *protos.HistoryEvent_TaskCompleted:
		out.Type, payload = "TaskCompleted", t.TaskCompleted.GetResult()
		ref(t.TaskCompleted.GetTaskScheduledId())
	case *protos.HistoryEvent_TaskFailed:
		out.Type, out.Failure = "TaskFailed", failureOf(t.TaskFailed.GetFailureDetails(), payloads)
		ref(t.TaskFailed.GetTaskScheduledId())
	case *protos.HistoryEvent_ChildWorkflowInstanceCreated:
		v := t.ChildWorkflowInstanceCreated
		out.Type, out.Name, payload = "ChildWorkflowInstanceCreated", v.GetName(), v.GetInput()
		out.Detail = "instance " + v.GetInstanceId()
	case *protos.HistoryEvent_ChildWorkflowInstanceCompleted:
		out.Type, payload = "ChildWorkflowInstanceCompleted", t.ChildWorkflowInstanceCompleted.GetResult()
		ref(t.ChildWorkflowInstanceCompleted.GetTaskScheduledId())
	case *protos.HistoryEvent_ChildWorkflowInstanceFailed:
		v := t.ChildWorkflowInstanceFailed
		out.Type, out.Failure = "ChildWorkflowInstanceFailed", failureOf(v.GetFailureDetails(), payloads)
		ref(v.GetTaskScheduledId())
	default:
		payload = otherEvent(&out, e)
	}
	if payloads && payload != nil {
		shown, size := cut(payload.GetValue())
		out.Payload, out.Cut = &shown, size
	}
	out.Name, out.Detail = short(out.Name), short(out.Detail)
	return out
}

// otherEvent describes an event whose type eventOf does not handle itself. It completes out, and returns the payload of
// the event, or nil if there is none.
func otherEvent(out *schema.WorkflowEvent, e *protos.HistoryEvent) (payload *wrapperspb.StringValue) {
	switch t := e.GetEventType().(type) {
	case *protos.HistoryEvent_TimerCreated:
		v := t.TimerCreated
		out.Type, out.Name, out.Detail = "TimerCreated", v.GetName(), timerText(v)
	case *protos.HistoryEvent_TimerFired:
		out.Type = "TimerFired"
		id := t.TimerFired.GetTimerId()
		out.Ref = &id
	case *protos.HistoryEvent_WorkflowStarted:
		out.Type = "WorkflowStarted"
		if v := t.WorkflowStarted.GetVersion(); v != nil {
			out.Detail = strings.TrimSpace(v.GetName() + " " + strings.Join(v.GetPatches(), ","))
		}
	case *protos.HistoryEvent_EventRaised:
		out.Type, out.Name, payload = "EventRaised", t.EventRaised.GetName(), t.EventRaised.GetInput()
	case *protos.HistoryEvent_EventSent:
		v := t.EventSent
		out.Type, out.Name, payload = "EventSent", v.GetName(), v.GetInput()
		out.Detail = "to instance " + v.GetInstanceId()
	case *protos.HistoryEvent_ExecutionSuspended:
		out.Type, payload = "ExecutionSuspended", t.ExecutionSuspended.GetInput()
	case *protos.HistoryEvent_ExecutionResumed:
		out.Type, payload = "ExecutionResumed", t.ExecutionResumed.GetInput()
	case *protos.HistoryEvent_ExecutionStalled:
		out.Type, out.Detail = "ExecutionStalled", t.ExecutionStalled.GetDescription()
	case *protos.HistoryEvent_DetachedWorkflowInstanceCreated:
		out.Type = "DetachedWorkflowInstanceCreated"
		out.Detail = "instance " + t.DetachedWorkflowInstanceCreated.GetInstanceId()
	case *protos.HistoryEvent_ContinueAsNew:
		out.Type, payload = "ContinueAsNew", t.ContinueAsNew.GetInput()
	default:
		out.Type = strings.TrimPrefix(fmt.Sprintf("%T", t), "*protos.HistoryEvent_")
	}
	return payload
}

// timerText returns the purpose of a timer, and when it is due.
func timerText(t *protos.TimerCreatedEvent) string {
	what := ""
	switch {
	case t.GetExternalEvent() != nil:
		what = "waits for event " + t.GetExternalEvent().GetName()
	case t.GetActivityRetry() != nil, t.GetChildWorkflowRetry() != nil:
		what = "before a retry"
	}
	if due := t.GetFireAt().AsTime(); due.Year() < never {
		if what != "" {
			what += ", "
		}
		what += "due " + due.Format(time.RFC3339)
	}
	return what
}

// statusText returns the name of a status. It is the same as in Dapr's API, except that a stalled instance has the name
// STALLED.
func statusText(s protos.OrchestrationStatus) string {
	return strings.TrimPrefix(s.String(), "ORCHESTRATION_STATUS_")
}

// Limits of the shown texts of applications, in bytes.
const (
	maxPayload = 16 << 10
	maxText    = 512
)

// cut returns at most the first maxPayload bytes of a payload. If the payload is longer, size is its full size, and
// otherwise 0.
func cut(s string) (shown string, size int) {
	if len(s) <= maxPayload {
		return s, 0
	}
	return fault.Shorten(s, maxPayload), len(s)
}

// short returns at most the first maxText bytes of a text.
func short(s string) string { return fault.Shorten(s, maxText) }

package turn

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
)

// invalid returns the error of an answer that breaks a rule.
func invalid(id, format string, args ...any) *fault.Error {
	return &fault.Error{Code: fault.Invalid, Op: "turn.Apply", Key: id,
		Msg:  "the worker's answer for workflow '" + id + "' is refused: " + fmt.Sprintf(format, args...),
		Hint: "the worker gets the turn again; check that its SDK is supported and that the workflow is deterministic"}
}

// broken returns the error of a turn that a correct engine never makes.
func broken(msg string) *fault.Error { return fault.New(fault.Internal, "turn.Apply", msg) }

// applier collects the outcome of one answer.
type applier struct {
	*State
	now   time.Time
	out   Outcome
	start *protos.ExecutionStartedEvent
	trace *protos.TraceContext // parent of the spans of activities and children; nil = not traced
	ended *protos.HistoryEvent_ExecutionTerminated
	// recurse reports that the termination also ends the children.
	recurse   bool
	suspended bool
	closed    map[int32]struct{}             // ids of the scheduled events that New resolves
	guarded   map[string]int                 // by event name: how many timers of History.guards are known to be closed
	looked    int                            // number of timers that guard has looked at
	used      map[int32]struct{}             // ids of the actions of this answer
	next      *protos.CompleteWorkflowAction // a continue-as-new
	pause     *protos.HistoryEvent           // the newest ExecutionSuspended, while suspended
}

// Apply returns the changes that result from a worker's answer. A nil answer is allowed only if the new events contain
// ExecutionTerminated. In this case, the instance ends without a worker.
//
// After an error, the caller must not apply any part of the answer. The error is fault.Invalid if the answer breaks the
// rules, and fault.Internal if the turn is one that a correct engine never makes.
func Apply(s *State, answer *protos.WorkflowResponse, now time.Time) (*Outcome, error) {
	a := &applier{State: s, now: now}
	if err := a.read(answer); err != nil {
		return nil, err
	}
	if why := a.stalls(answer); why != nil {
		return a.stall(why, answer), nil
	}
	a.out.Consumed, a.out.Custom = true, answer.GetCustomStatus()
	a.out.Append = slices.Clone(s.New)
	a.note(answer.GetVersion())
	for _, action := range answer.GetActions() {
		if err := a.act(action); err != nil {
			return nil, err
		}
		if a.next != nil {
			break
		}
	}
	return a.finish(), nil
}

// read reads the new events of the turn. It then checks the turn and the answer, except for the individual actions of
// the answer.
func (a *applier) read(answer *protos.WorkflowResponse) error {
	a.start = a.History.Started()
	a.suspended = a.History.suspended
	for _, e := range a.New {
		switch v := e.GetEventType().(type) {
		case *protos.HistoryEvent_ExecutionStarted:
			a.start = v.ExecutionStarted
		case *protos.HistoryEvent_ExecutionTerminated:
			if a.ended == nil {
				a.ended = v
			}
			a.recurse = a.recurse || v.ExecutionTerminated.GetRecurse()
		case *protos.HistoryEvent_ExecutionSuspended:
			a.suspended, a.pause = true, e
		case *protos.HistoryEvent_ExecutionResumed:
			a.suspended, a.pause = false, nil
		case *protos.HistoryEvent_EventRaised:
			if id, ok := a.guard(v.EventRaised.GetName()); ok {
				a.close(id)
				a.out.Dropped = append(a.out.Dropped, id)
			}
		default:
			if id, _, ok := resolves(e); ok {
				a.close(id)
			}
		}
	}
	a.trace = Context(a.start)
	switch {
	case len(a.New) == 0 || a.New[0].GetWorkflowStarted() == nil:
		return broken("a turn of workflow '" + a.ID + "' does not begin with WorkflowStarted")
	case a.start == nil:
		return broken("workflow '" + a.ID + "' has no event ExecutionStarted")
	case a.History.completed != nil:
		return broken("workflow '" + a.ID + "' has ended before this turn")
	case answer == nil && a.ended == nil:
		return broken("a turn of workflow '" + a.ID + "' has no answer")
	case len(answer.GetActions()) > MaxActions:
		return invalid(a.ID, "it has %d actions, the limit is %d; start fewer activities at a time",
			len(answer.GetActions()), MaxActions)
	case len(answer.GetVersion().GetPatches()) > MaxPatches:
		return invalid(a.ID, "it has %d patches, the limit is %d", len(answer.GetVersion().GetPatches()), MaxPatches)
	case len(answer.GetCustomStatus().GetValue()) > MaxCustom:
		return invalid(a.ID, "its custom status has %d bytes, the limit is %d",
			len(answer.GetCustomStatus().GetValue()), MaxCustom)
	case len(answer.GetVersion().GetName()) > MaxName:
		return invalid(a.ID, "its version name has more than %d bytes", MaxName)
	}
	for _, p := range answer.GetVersion().GetPatches() {
		if len(p) > MaxName {
			return invalid(a.ID, "a patch has a name of more than %d bytes", MaxName)
		}
	}
	return nil
}

// guard returns the id of the oldest open timer that is the timeout of a wait for the given external event. ok is false
// if there is no such timer. Timers that the new events have resolved are not open.
func (a *applier) guard(event string) (id int32, ok bool) {
	name := strings.ToUpper(event)
	list := a.History.guards[name]
	for n := a.guarded[name]; n < len(list); n++ {
		a.looked++
		if _, gone := a.closed[list[n]]; !gone {
			if a.guarded == nil {
				a.guarded = map[string]int{}
			}
			a.guarded[name] = n
			return list[n], true
		}
	}
	return 0, false
}

func (a *applier) close(id int32) {
	if a.closed == nil {
		a.closed = map[int32]struct{}{}
	}
	a.closed[id] = struct{}{}
}

// stalls returns the reason why the worker cannot run this turn, or nil if the worker can.
func (a *applier) stalls(answer *protos.WorkflowResponse) *protos.ExecutionStalledEvent {
	if answer == nil {
		return nil
	}
	for _, action := range answer.GetActions() {
		if action.GetWorkflowVersionNotAvailable() != nil {
			return &protos.ExecutionStalledEvent{Reason: protos.StalledReason_VERSION_NOT_AVAILABLE,
				Description: proto.String("Version not available: " + a.History.version)}
		}
	}
	known, current := a.History.patches, answer.GetVersion().GetPatches()
	if len(known) == 0 || len(current) >= len(known) && slices.Equal(known, current[:len(known)]) {
		return nil
	}
	return &protos.ExecutionStalledEvent{Reason: protos.StalledReason_PATCH_MISMATCH, Description: proto.String(
		fmt.Sprintf("Patch mismatch. History patches: [%s], current patches: [%s]. ", list(known), list(current)))}
}

// list joins names with commas. It cuts the text off after about 2,000 bytes.
func list(names []string) string {
	const most = 2000
	var b []byte
	for i, name := range names {
		if i > 0 {
			b = append(b, ", "...)
		}
		if len(b)+len(name) > most {
			return string(append(b, "..."...))
		}
		b = append(b, name...)
	}
	return string(b)
}

// Stall returns the outcome to use if the engine cannot store the outcome of a turn. The instance stalls with the given
// reason, and the turn changes nothing else.
func Stall(s *State, reason protos.StalledReason, description string, now time.Time) *Outcome {
	a := &applier{State: s, now: now}
	return a.stall(&protos.ExecutionStalledEvent{Reason: reason, Description: proto.String(description)}, nil)
}

func (a *applier) stall(why *protos.ExecutionStalledEvent, answer *protos.WorkflowResponse) *Outcome {
	out := &Outcome{Stalled: why, Custom: answer.GetCustomStatus(),
		Status: protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED}
	if a.History.stalled.GetDescription() != why.GetDescription() || a.History.stalled == nil {
		out.Append = []*protos.HistoryEvent{event(-1, a.now, &protos.HistoryEvent{
			EventType: &protos.HistoryEvent_ExecutionStalled{ExecutionStalled: why}})}
	}
	return out
}

// note copies the version and the new patches of an answer into the event WorkflowStarted of the outcome.
func (a *applier) note(v *protos.WorkflowVersion) {
	patches := v.GetPatches()[min(len(a.History.patches), len(v.GetPatches())):]
	if len(patches) == 0 && v.GetName() == "" {
		return
	}
	noted := &protos.WorkflowVersion{Patches: slices.Clone(patches)}
	if v.GetName() != "" {
		noted.Name = proto.String(v.GetName())
	}
	first := a.New[0]
	a.out.Append[0] = &protos.HistoryEvent{EventId: first.GetEventId(), Timestamp: first.GetTimestamp(),
		Router: first.GetRouter(), EventType: &protos.HistoryEvent_WorkflowStarted{
			WorkflowStarted: &protos.WorkflowStartedEvent{Version: noted}}}
}

// complete handles an action that completes the workflow or continues it as new. Only the first such action of an
// answer counts. If the turn terminates the instance, complete ignores a continue-as-new.
func (a *applier) complete(id int32, c *protos.CompleteWorkflowAction) error {
	switch {
	case a.out.Completed != nil:
		return nil
	case c.GetWorkflowStatus() == protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW:
		if len(c.GetCarryoverEvents()) > MaxCarried {
			return invalid(a.ID, "it carries %d events over, the limit is %d", len(c.GetCarryoverEvents()), MaxCarried)
		}
		if a.ended == nil { // a terminated instance does not continue
			a.next = c
		}
		return a.bounded("the new version", c.GetNewVersion().GetValue(), MaxName, false)
	case !workflow.Terminal(c.GetWorkflowStatus()):
		return invalid(a.ID, "it completes the workflow with status %d, which is not terminal", c.GetWorkflowStatus())
	}
	a.finishAs(id, &protos.ExecutionCompletedEvent{WorkflowStatus: c.GetWorkflowStatus(), Result: c.GetResult(),
		FailureDetails: c.GetFailureDetails()})
	return nil
}

// finishAs ends the instance. If the instance has a parent, finishAs also adds the message to the parent. id is the id
// of the event ExecutionCompleted.
func (a *applier) finishAs(id int32, c *protos.ExecutionCompletedEvent) {
	a.out.Completed = c
	a.append(event(id, a.now, &protos.HistoryEvent{Router: &protos.TaskRouter{SourceAppID: a.App},
		EventType: &protos.HistoryEvent_ExecutionCompleted{ExecutionCompleted: c}}))
	if m, ok := a.report(c); ok {
		a.out.Messages = append(a.out.Messages, m)
	}
}

// report returns the message to the parent. ok is false if the instance has no parent.
func (a *applier) report(c *protos.ExecutionCompletedEvent) (m Message, ok bool) {
	p := a.start.GetParentInstance()
	if p == nil {
		return Message{}, false
	}
	m = toParent(a.App, p)
	m.Key = a.key("result", p.GetTaskScheduledId())
	if c.GetWorkflowStatus() == protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED {
		m.Event.EventType = &protos.HistoryEvent_ChildWorkflowInstanceCompleted{
			ChildWorkflowInstanceCompleted: &protos.ChildWorkflowInstanceCompletedEvent{
				TaskScheduledId: p.GetTaskScheduledId(), Result: c.GetResult()}}
	} else {
		details := c.GetFailureDetails()
		if details == nil {
			word := statusWord(c.GetWorkflowStatus())
			details = &protos.TaskFailureDetails{ErrorType: word,
				ErrorMessage: "the child workflow '" + a.ID + "' ended with the status " + word}
		}
		m.Event.EventType = &protos.HistoryEvent_ChildWorkflowInstanceFailed{
			ChildWorkflowInstanceFailed: &protos.ChildWorkflowInstanceFailedEvent{
				TaskScheduledId: p.GetTaskScheduledId(), FailureDetails: details}}
	}
	event(-1, a.now, m.Event)
	return m, true
}

// toParent returns a message to a parent. The caller must set the type of its event.
func toParent(app string, p *protos.ParentInstanceInfo) Message {
	m := Message{App: app, Instance: p.GetWorkflowInstance().GetInstanceId(),
		Execution: p.GetWorkflowInstance().GetExecutionId().GetValue(),
		Event:     &protos.HistoryEvent{Router: &protos.TaskRouter{SourceAppID: app}}}
	if p.GetAppID() != "" {
		m.App = p.GetAppID()
		m.Event.Router.TargetAppID, m.Event.Router.TargetAppNamespace = proto.String(p.GetAppID()), p.AppNamespace
	}
	return m
}

func statusWord(s protos.OrchestrationStatus) string {
	switch s {
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_TERMINATED:
		return "TERMINATED"
	case protos.OrchestrationStatus_ORCHESTRATION_STATUS_CANCELED:
		return "CANCELED"
	}
	return "FAILED"
}

// finish completes the outcome after the last action.
func (a *applier) finish() *Outcome {
	switch {
	case a.next != nil:
		a.replace()
	case a.ended != nil && a.out.Completed == nil:
		a.finishAs(-1, &protos.ExecutionCompletedEvent{Result: a.ended.ExecutionTerminated.GetInput(),
			WorkflowStatus: protos.OrchestrationStatus_ORCHESTRATION_STATUS_TERMINATED})
	}
	if a.recurse {
		a.cascade()
	}
	switch {
	case a.out.Completed != nil:
		a.out.Status = a.out.Completed.GetWorkflowStatus()
		a.out.Timers = nil
	case a.suspended:
		a.out.Status = protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED
	default:
		a.out.Status = protos.OrchestrationStatus_ORCHESTRATION_STATUS_RUNNING
	}
	return &a.out
}

// cascade terminates the children that have no result. Each message contains the execution id of the child. If a child
// was not started because its id was in use, another instance has this id. That instance ignores the message, because
// it has a different execution id.
func (a *applier) cascade() {
	children := map[int32]pending{}
	for id, p := range a.History.open {
		if _, gone := a.closed[id]; p.kind == child && !gone {
			children[id] = p
		}
	}
	for _, e := range a.out.Append[len(a.New):] {
		if p, ok := schedules(e); ok && p.kind == child {
			children[e.GetEventId()] = p
		}
	}
	sorted := slices.Sorted(maps.Keys(children))
	reason := a.ended.ExecutionTerminated.GetInput()
	if len(sorted)*len(reason.GetValue()) > MaxReasons {
		reason = nil
	}
	for _, id := range sorted {
		_, execution := a.newborn(id)
		a.out.Messages = append(a.out.Messages, Message{Key: a.key("end", id), Execution: execution,
			App: Owner(a.App, children[id].router), Instance: children[id].instance,
			Event: a.end(children[id].router, reason, true)})
	}
}

// replace begins the next generation of the instance. Activities, children and events stay in the outcome if their
// actions precede the continue-as-new in the answer. Timers are dropped, because the next generation does not wait for
// them.
func (a *applier) replace() {
	execution := Derive(a.execution(), "next")
	start := &protos.ExecutionStartedEvent{Name: a.start.GetName(), Version: a.start.GetVersion(),
		Input: a.next.GetResult(), ParentInstance: a.start.GetParentInstance(), Tags: a.start.GetTags(),
		WorkflowInstance: &protos.WorkflowInstance{InstanceId: a.ID, ExecutionId: wrapperspb.String(execution)}}
	if v := a.next.GetNewVersion(); v != nil {
		start.Version = v
	}
	if previous := a.start.GetParentTraceContext(); previous != nil {
		start.ParentTraceContext = rootTrace(execution, previous)
	}
	start = a.inherit(start)
	a.out.Replace, a.out.Append, a.out.Timers, a.out.Dropped = true, nil, nil, nil
	a.out.Inbox = append(a.out.Inbox, event(-1, a.now, &protos.HistoryEvent{
		Router: &protos.TaskRouter{SourceAppID: a.App}, EventType: &protos.HistoryEvent_ExecutionStarted{
			ExecutionStarted: start}}))
	if a.suspended {
		pause := a.pause
		if pause == nil {
			pause = event(-1, a.now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ExecutionSuspended{
				ExecutionSuspended: &protos.ExecutionSuspendedEvent{}}})
		}
		a.out.Inbox = append(a.out.Inbox, pause)
	}
	a.carry(a.next.GetCarryoverEvents())
}

// carry puts the external events that a continue-as-new carries over into the inbox. It ignores all other events.
//
// An event is identified by its name and timestamp, but the Python worker sets the timestamps of all carried events to
// 0. Therefore carry gives ascending timestamps to events with the same name.
func (a *applier) carry(list []*protos.HistoryEvent) {
	last := map[string]time.Time{}
	for _, e := range list {
		r := e.GetEventRaised()
		if r == nil || len(r.GetName()) > MaxName {
			continue
		}
		at := time.Unix(0, 0)
		if e.GetTimestamp().CheckValid() == nil {
			at = e.GetTimestamp().AsTime()
		}
		at = NextRaised(last[r.GetName()], at)
		last[r.GetName()] = at
		a.out.Inbox = append(a.out.Inbox, &protos.HistoryEvent{EventId: -1, Timestamp: timestamppb.New(at),
			Router: e.GetRouter(), EventType: e.GetEventType()})
	}
}

package turn_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
)

const (
	running    = protos.OrchestrationStatus_ORCHESTRATION_STATUS_RUNNING
	completed  = protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED
	failed     = protos.OrchestrationStatus_ORCHESTRATION_STATUS_FAILED
	terminated = protos.OrchestrationStatus_ORCHESTRATION_STATUS_TERMINATED
	continued  = protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW
	suspended  = protos.OrchestrationStatus_ORCHESTRATION_STATUS_SUSPENDED
	stalled    = protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED
)

type (
	events  = []*protos.HistoryEvent
	actions = []*protos.WorkflowAction
)

func now() time.Time { return time.Unix(1_700_000_000, 0) }

func text(s string) *wrapperspb.StringValue { return wrapperspb.String(s) }

// at sets the timestamp of an event to n nanoseconds after now.
func at(n int, e *protos.HistoryEvent) *protos.HistoryEvent {
	e.Timestamp = timestamppb.New(now().Add(time.Duration(n)))
	return e
}

func started() *protos.HistoryEvent {
	return turn.Start(&protos.CreateInstanceRequest{InstanceId: "i", Name: "order", Input: text("in")}, "exec", now())
}

// startedBy returns the start event of an instance that is a child of an instance of the application app.
func startedBy(app string) *protos.HistoryEvent {
	e := started()
	e.GetExecutionStarted().ParentInstance = &protos.ParentInstanceInfo{TaskScheduledId: 7, AppID: proto.String(app),
		WorkflowInstance: &protos.WorkflowInstance{InstanceId: "p", ExecutionId: text("pexec")}}
	return e
}

func begun(patches ...string) *protos.HistoryEvent {
	s := &protos.WorkflowStartedEvent{}
	if len(patches) > 0 {
		s.Version = &protos.WorkflowVersion{Patches: patches, Name: proto.String("v2")}
	}
	return at(0, &protos.HistoryEvent{EventId: -1, EventType: &protos.HistoryEvent_WorkflowStarted{WorkflowStarted: s}})
}

func scheduled(id int32) *protos.HistoryEvent {
	return at(0, &protos.HistoryEvent{EventId: id, EventType: &protos.HistoryEvent_TaskScheduled{
		TaskScheduled: &protos.TaskScheduledEvent{Name: "pay", TaskExecutionId: "t"}}})
}

func done(id int32) *protos.HistoryEvent {
	return turn.Result(&protos.ActivityResponse{TaskId: id, Result: text("ok")}, "t", now())
}

func broken(id int32) *protos.HistoryEvent {
	return turn.Result(&protos.ActivityResponse{TaskId: id, FailureDetails: &protos.TaskFailureDetails{}}, "t", now())
}

func waits(id int32, event string) *protos.HistoryEvent {
	return at(0, &protos.HistoryEvent{EventId: id, EventType: &protos.HistoryEvent_TimerCreated{
		TimerCreated: &protos.TimerCreatedEvent{FireAt: timestamppb.New(now()),
			Origin: &protos.TimerCreatedEvent_ExternalEvent{
				ExternalEvent: &protos.TimerOriginExternalEvent{Name: event}}}}})
}

// waitsByName returns the timer of a wait for an event, from a worker that sends no origin.
func waitsByName(id int32, event string) *protos.HistoryEvent {
	return at(0, &protos.HistoryEvent{EventId: id, EventType: &protos.HistoryEvent_TimerCreated{
		TimerCreated: &protos.TimerCreatedEvent{FireAt: timestamppb.New(now()), Name: proto.String(event)}}})
}

func fired(id int32) *protos.HistoryEvent {
	return at(0, &protos.HistoryEvent{EventId: -1, EventType: &protos.HistoryEvent_TimerFired{
		TimerFired: &protos.TimerFiredEvent{TimerId: id}}})
}

func child(id int32, instance, app string) *protos.HistoryEvent {
	e := at(0, &protos.HistoryEvent{EventId: id, EventType: &protos.HistoryEvent_ChildWorkflowInstanceCreated{
		ChildWorkflowInstanceCreated: &protos.ChildWorkflowInstanceCreatedEvent{InstanceId: instance, Name: "ship"}}})
	if app != "" {
		e.Router = &protos.TaskRouter{SourceAppID: "shop", TargetAppID: proto.String(app)}
	}
	return e
}

func childDone(id int32) *protos.HistoryEvent {
	return at(0, &protos.HistoryEvent{EventId: -1, EventType: &protos.HistoryEvent_ChildWorkflowInstanceCompleted{
		ChildWorkflowInstanceCompleted: &protos.ChildWorkflowInstanceCompletedEvent{TaskScheduledId: id}}})
}

func raised(n int, name string) *protos.HistoryEvent {
	return turn.Raised(name, text("data"), now().Add(time.Duration(n)))
}

func ends(s protos.OrchestrationStatus, result string, carried ...*protos.HistoryEvent) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: 99, WorkflowActionType: &protos.WorkflowAction_CompleteWorkflow{
		CompleteWorkflow: &protos.CompleteWorkflowAction{WorkflowStatus: s, Result: text(result),
			CarryoverEvents: carried}}}
}

func calls(id int32) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_ScheduleTask{
		ScheduleTask: &protos.ScheduleTaskAction{Name: "pay", Input: text("1"), TaskExecutionId: "t"}}}
}

func sleeps(id int32, until time.Time) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_CreateTimer{
		CreateTimer: &protos.CreateTimerAction{FireAt: timestamppb.New(until)}}}
}

func begets(id int32, instance string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_CreateChildWorkflow{
		CreateChildWorkflow: &protos.CreateChildWorkflowAction{Name: "ship", InstanceId: instance, Input: text("2")}}}
}

func detaches(id int32, instance string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_CreateDetachedWorkflow{
		CreateDetachedWorkflow: &protos.CreateDetachedWorkflowAction{Name: "audit", InstanceId: instance,
			Tags: map[string]string{"a": "b"}}}}
}

func sends(id int32, to string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_SendEvent{
		SendEvent: &protos.SendEventAction{Instance: &protos.WorkflowInstance{InstanceId: to}, Name: "hello"}}}
}

func kills(id int32, to string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_TerminateWorkflow{
		TerminateWorkflow: &protos.TerminateWorkflowAction{InstanceId: to, Reason: text("why"), Recurse: true}}}
}

func lacksVersion() *protos.WorkflowAction {
	return &protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_WorkflowVersionNotAvailable{
		WorkflowVersionNotAvailable: &protos.WorkflowVersionNotAvailableAction{}}}
}

func elsewhere(app string, a *protos.WorkflowAction) *protos.WorkflowAction {
	a.Router = &protos.TaskRouter{SourceAppID: "forged", TargetAppID: proto.String(app)}
	return a
}

// word returns a short text for an event: its type, and the id or the name that identifies it.
func word(e *protos.HistoryEvent) string {
	name := ""
	switch v := e.GetEventType().(type) {
	case *protos.HistoryEvent_EventRaised:
		name = ":" + v.EventRaised.GetName()
	case *protos.HistoryEvent_TaskScheduled, *protos.HistoryEvent_TimerCreated, *protos.HistoryEvent_EventSent,
		*protos.HistoryEvent_ChildWorkflowInstanceCreated, *protos.HistoryEvent_DetachedWorkflowInstanceCreated:
		name = ":" + string(rune('0'+e.GetEventId()))
	}
	m := e.ProtoReflect()
	field := m.WhichOneof(m.Descriptor().Oneofs().ByName("eventType"))
	if field == nil {
		return "none"
	}
	return string(field.Name()) + name
}

func words(es events) string {
	list := make([]string, len(es))
	for i, e := range es {
		list[i] = word(e)
	}
	return strings.Join(list, " ")
}

func TestBegin_TakesWhatIsNewAndAwaited(t *testing.T) {
	history := events{begun(), started(), scheduled(0), waits(1, "go"), child(2, "c", ""), raised(1, "a"),
		scheduled(3), done(3)}
	for _, c := range []struct {
		name    string
		history events
		inbox   events
		want    string
	}{
		{"empty inbox", history, nil, "workflowStarted"},
		{"first turn", nil, events{raised(1, "early"), started(), raised(2, "x")},
			"workflowStarted eventRaised:early executionStarted eventRaised:x"},
		{"second start", history, events{started()}, "workflowStarted"},
		{"two starts", nil, events{started(), started()}, "workflowStarted executionStarted"},
		{"result", history, events{done(0)}, "workflowStarted taskCompleted"},
		{"failure", history, events{broken(0)}, "workflowStarted taskFailed"},
		{"second result", history, events{done(0), broken(0)}, "workflowStarted taskCompleted"},
		{"result of a resolved task", history, events{done(3)}, "workflowStarted"},
		{"result of an unknown task", history, events{done(8)}, "workflowStarted"},
		{"result for a timer", history, events{done(1)}, "workflowStarted"},
		{"timer", history, events{fired(1), fired(1)}, "workflowStarted timerFired"},
		{"timer for a task", history, events{fired(0)}, "workflowStarted"},
		{"child", history, events{childDone(2), childDone(2)}, "workflowStarted childWorkflowInstanceCompleted"},
		{"event twice", history, events{raised(2, "a"), raised(2, "a")}, "workflowStarted eventRaised:a"},
		{"event of the history", history, events{raised(1, "a")}, "workflowStarted"},
		{"same time, other name", history, events{raised(1, "b")}, "workflowStarted eventRaised:b"},
		{"same name, other time", history, events{raised(2, "a"), raised(3, "a")},
			"workflowStarted eventRaised:a eventRaised:a"},
		{"guarded timer has been cancelled", append(slices.Clone(history), raised(5, "GO")), events{fired(1)},
			"workflowStarted"},
		{"no type", history, events{{}}, "workflowStarted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := words(turn.Begin(turn.Read(c.history), c.inbox, now())); got != c.want {
				t.Errorf("new events: %s\nwant:       %s", got, c.want)
			}
		})
	}
}

// outcome returns an Outcome as text.
func outcome(o *turn.Outcome) string {
	var b strings.Builder
	b.WriteString(strings.TrimPrefix(o.Status.String(), "ORCHESTRATION_STATUS_"))
	if len(o.Append) > 0 {
		b.WriteString("; append " + words(o.Append))
	}
	if o.Replace {
		b.WriteString("; replace")
	}
	if len(o.Inbox) > 0 {
		b.WriteString("; inbox " + words(o.Inbox))
	}
	for _, task := range o.Tasks {
		b.WriteString("; task " + string(rune('0'+task.ID)) + " of " + task.App)
	}
	for _, timer := range o.Timers {
		b.WriteString("; timer " + string(rune('0'+timer.ID)))
	}
	for _, id := range o.Dropped {
		b.WriteString("; drop " + string(rune('0'+id)))
	}
	for _, m := range o.Messages {
		b.WriteString("; to " + m.App + "/" + m.Instance)
		switch {
		case m.Event.GetExecutionTerminated() != nil && m.Execution != "":
			b.WriteString("@its")
		case m.Execution != "":
			b.WriteString("@" + m.Execution)
		}
		b.WriteString(" " + word(m.Event))
	}
	if o.Completed != nil {
		b.WriteString("; result " + o.Completed.GetResult().GetValue())
	}
	if o.Stalled != nil {
		b.WriteString("; stalled " + o.Stalled.GetReason().String() + " " + o.Stalled.GetDescription())
	}
	if !o.Consumed {
		b.WriteString("; inbox kept")
	}
	return b.String()
}

func TestApply_FollowsTheRules(t *testing.T) {
	first, started1 := events{started()}, events{begun(), started()}
	end := turn.Terminated(text("stop"), false, now())
	endAll := turn.Terminated(text("stop"), true, now())
	for _, c := range []struct {
		name    string
		history events
		inbox   events
		actions actions
		patches []string
		want    string
	}{
		{"nothing to do", nil, first, nil, nil, "RUNNING; append workflowStarted executionStarted"},
		{"activity", nil, first, actions{calls(0)}, nil,
			"RUNNING; append workflowStarted executionStarted taskScheduled:0; task 0 of shop"},
		{"activity of another application", nil, first, actions{elsewhere("bank", calls(0))}, nil,
			"RUNNING; append workflowStarted executionStarted taskScheduled:0; task 0 of bank"},
		{"timer", nil, first, actions{sleeps(0, now().Add(time.Hour))}, nil,
			"RUNNING; append workflowStarted executionStarted timerCreated:0; timer 0"},
		{"timer that never fires", nil, first, actions{sleeps(0, time.Date(9999, 12, 31, 23, 59, 59, 999_999_999,
			time.UTC))},
			nil, "RUNNING; append workflowStarted executionStarted timerCreated:0"},
		{"child", nil, first, actions{begets(0, "c")}, nil, "RUNNING; append workflowStarted executionStarted " +
			"childWorkflowInstanceCreated:0; to shop/c executionStarted"},
		{"child without an id", nil, first, actions{begets(5, "")}, nil,
			"RUNNING; append workflowStarted executionStarted " +
				"childWorkflowInstanceCreated:5; to shop/i:0005 executionStarted"},
		{"child of another application", nil, first, actions{elsewhere("bank", begets(0, "c"))}, nil,
			"RUNNING; append " +
				"workflowStarted executionStarted childWorkflowInstanceCreated:0; to bank/c executionStarted"},
		{"detached", nil, first, actions{detaches(0, "d")}, nil, "RUNNING; append workflowStarted executionStarted " +
			"detachedWorkflowInstanceCreated:0; to shop/d executionStarted"},
		{"event to another instance", nil, first, actions{sends(0, "other")}, nil, "RUNNING; append workflowStarted " +
			"executionStarted eventSent:0; to shop/other eventRaised:hello"},
		{"terminate another instance", nil, first, actions{kills(0, "other")}, nil, "RUNNING; append workflowStarted " +
			"executionStarted; to shop/other executionTerminated"},
		{"completion", nil, first, actions{ends(completed, "out")}, nil,
			"COMPLETED; append workflowStarted executionStarted executionCompleted; result out"},
		{"first completion wins", nil, first, actions{ends(completed, "one"), ends(failed, "two"), ends(continued,
			"3")}, nil,
			"COMPLETED; append workflowStarted executionStarted executionCompleted; result one"},
		{"activity that is not awaited", nil, first, actions{calls(0), ends(completed, "")}, nil, "COMPLETED; append " +
			"workflowStarted executionStarted taskScheduled:0 executionCompleted; task 0 of shop; result "},
		{"child completes", nil, events{startedBy("boss")}, actions{ends(completed, "out")}, nil, "COMPLETED; append " +
			"workflowStarted executionStarted executionCompleted; to boss/p@pexec childWorkflowInstanceCompleted; " +
			"result out"},
		{"child fails", nil, events{startedBy("shop")}, actions{ends(failed, "")}, nil,
			"FAILED; append workflowStarted " +
				"executionStarted executionCompleted; to shop/p@pexec childWorkflowInstanceFailed; result "},
		{"child is terminated", events{begun(), startedBy("shop")}, events{end}, nil, nil, "TERMINATED; append " +
			"workflowStarted executionTerminated executionCompleted; to shop/p@pexec childWorkflowInstanceFailed; " +
			"result stop"},
		{"worker completes a terminated instance", started1, events{end}, actions{ends(terminated, "mine")}, nil,
			"TERMINATED; append workflowStarted executionTerminated executionCompleted; result mine"},
		{"terminated instance does not continue", started1, events{end}, actions{ends(continued, "again")}, nil,
			"TERMINATED; append workflowStarted executionTerminated executionCompleted; result stop"},
		{"terminated with children",
			events{begun(), started(), child(0, "a", ""), child(1, "b", "bank"), child(2, "c", ""), childDone(2)},
			events{endAll}, actions{begets(3, "d")}, nil, "TERMINATED; append workflowStarted executionTerminated " +
				"childWorkflowInstanceCreated:3 executionCompleted; to shop/d executionStarted; " +
				"to shop/a@its executionTerminated; " +
				"to bank/b@its executionTerminated; to shop/d@its executionTerminated; result stop"},
		{"terminated without children", events{begun(), started(), child(0, "a", "")}, events{end}, nil, nil,
			"TERMINATED; append workflowStarted executionTerminated executionCompleted; result stop"},
		{"continue as new", events{begun(), started(), waits(0, "x")}, events{raised(1, "a")},
			actions{calls(1), sleeps(2, now()), ends(continued, "in2", raised(3, "b"), raised(2, "c"), done(1)),
				calls(3)}, nil,
			"RUNNING; replace; inbox executionStarted eventRaised:b eventRaised:c; task 1 of shop"},
		{"continue as new while suspended", started1, events{done(1), turn.Suspended(nil, now())},
			actions{ends(continued, "in2")}, nil, "SUSPENDED; replace; inbox executionStarted executionSuspended"},
		{"suspended", started1, events{turn.Suspended(nil, now())}, nil, nil,
			"SUSPENDED; append workflowStarted executionSuspended"},
		{"stays suspended", events{begun(), started(), turn.Suspended(nil, now())}, events{raised(1, "a")}, nil, nil,
			"SUSPENDED; append workflowStarted eventRaised:a"},
		{"resumed", events{begun(), started(), turn.Suspended(nil, now())}, events{turn.Resumed(nil, now())}, nil, nil,
			"RUNNING; append workflowStarted executionResumed"},
		{"event cancels the oldest timer of its name", events{begun(), started(), waits(0, "x"), waits(1, "Go"),
			waits(2, "go")},
			events{raised(1, "GO")}, nil, nil, "RUNNING; append workflowStarted eventRaised:GO; drop 1"},
		{"two events cancel two timers", events{begun(), started(), waits(0, "go"), waitsByName(1, "go"), waits(2,
			"go")},
			events{raised(1, "go"), raised(2, "go")}, nil, nil,
			"RUNNING; append workflowStarted eventRaised:go eventRaised:go; drop 0; drop 1"},
		{"timer that has fired is not cancelled", events{begun(), started(), waits(0, "go"), waits(1, "go")},
			events{fired(0), raised(1, "go")}, nil, nil,
			"RUNNING; append workflowStarted timerFired eventRaised:go; drop 1"},
		{"patches are a prefix", events{begun("a", "b"), started()}, events{raised(1, "x")}, nil, []string{"a", "b",
			"c"},
			"RUNNING; append workflowStarted eventRaised:x"},
		{"patch is missing", events{begun("a", "b"), started()}, events{raised(1, "x")}, actions{calls(0)},
			[]string{"a"},
			"STALLED; append executionStalled; stalled PATCH_MISMATCH Patch mismatch. " +
				"History patches: [a, b], current patches: " +
				"[a]. ; inbox kept"},
		{"patches in another order", events{begun("a", "b"), started()}, events{raised(1, "x")}, nil, []string{"b",
			"a"},
			"STALLED; append executionStalled; stalled PATCH_MISMATCH Patch mismatch. " +
				"History patches: [a, b], current patches: " +
				"[b, a]. ; inbox kept"},
		{"version is not available", events{begun("a"), started()}, events{raised(1, "x")}, actions{calls(0),
			lacksVersion()},
			[]string{"a"},
			"STALLED; append executionStalled; stalled VERSION_NOT_AVAILABLE Version not available: v2; inbox kept"},
		{"stalls again for the same reason", events{begun("a"), started(), at(0, &protos.HistoryEvent{
			EventType: &protos.HistoryEvent_ExecutionStalled{ExecutionStalled: &protos.ExecutionStalledEvent{
				Description: proto.String("Version not available: v2")}}})}, events{raised(1, "x")},
			actions{lacksVersion()},
			[]string{"a"}, "STALLED; stalled VERSION_NOT_AVAILABLE Version not available: v2; inbox kept"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := turn.Read(c.history)
			s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, c.inbox, now())}
			if c.name == "continue as new while suspended" {
				s.New = append(s.New[:1:1], c.inbox...)
			}
			o, err := turn.Apply(s, &protos.WorkflowResponse{Actions: c.actions,
				Version: &protos.WorkflowVersion{Patches: c.patches}}, now())
			if err != nil {
				t.Fatal(err)
			}
			if got := outcome(o); got != c.want {
				t.Errorf("outcome %s\nwant    %s", got, c.want)
			}
			if !o.Replace {
				h.Add(o.Append...)
				if h.Status() != o.Status {
					t.Errorf("the history says %s, the outcome %s", h.Status(), o.Status)
				}
			}
			seen := map[string]bool{}
			for _, m := range o.Messages {
				if seen[m.Key] {
					t.Errorf("two messages have the key %s", m.Key)
				}
				seen[m.Key] = true
			}
		})
	}
}

func TestApply_NotesVersionAndNewPatches(t *testing.T) {
	h := turn.Read(events{begun("a"), started()})
	s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, events{raised(1, "x")}, now())}
	o, err := turn.Apply(s, &protos.WorkflowResponse{Version: &protos.WorkflowVersion{Patches: []string{"a", "b"},
		Name: proto.String("v3")}}, now())
	if err != nil {
		t.Fatal(err)
	}
	got := o.Append[0].GetWorkflowStarted().GetVersion()
	if !slices.Equal(got.GetPatches(), []string{"b"}) || got.GetName() != "v3" {
		t.Errorf("noted %v", got)
	}
	if s.New[0].GetWorkflowStarted().GetVersion() != nil {
		t.Error("the event of the caller was changed")
	}
}

func TestApply_WithoutWorkerEndsOnlyTerminatedInstances(t *testing.T) {
	h := turn.Read(events{begun(), started(), scheduled(0)})
	s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, events{done(0)}, now())}
	if _, err := turn.Apply(s, nil, now()); !fault.Is(err, fault.Internal) {
		t.Errorf("a turn without an answer: %v", err)
	}
	s.New = turn.Begin(h, events{turn.Terminated(text("stop"), false, now())}, now())
	o, err := turn.Apply(s, nil, now())
	if err != nil || o.Status != terminated {
		t.Errorf("outcome %v, error %v", o, err)
	}
}

func TestApply_ChildKnowsItsParent(t *testing.T) {
	h := turn.Read(nil)
	s := &turn.State{ID: "i", App: "shop", Namespace: "prod", History: h, New: turn.Begin(h, events{started()}, now())}
	answer := &protos.WorkflowResponse{Actions: actions{elsewhere("bank", begets(4, "c"))}}
	o, err := turn.Apply(s, answer, now())
	if err != nil {
		t.Fatal(err)
	}
	e := o.Messages[0].Event
	p := e.GetExecutionStarted().GetParentInstance()
	if p.GetTaskScheduledId() != 4 || p.GetName().GetValue() != "order" || p.GetAppID() != "shop" ||
		p.GetAppNamespace() != "prod" || p.GetWorkflowInstance().GetInstanceId() != "i" ||
		p.GetWorkflowInstance().GetExecutionId().GetValue() != "exec" || e.GetRouter().GetSourceAppID() != "shop" {
		t.Errorf("start of the child: %v", e)
	}
	again, err := turn.Apply(s, answer, now())
	if err != nil || !proto.Equal(again.Messages[0].Event, e) || again.Messages[0].Key != o.Messages[0].Key {
		t.Errorf("a repeated turn starts another child: %v, %v", again, err)
	}
}

// A termination of a child names the execution of the child, because another instance may have the id of the child by
// now.
func TestApply_CascadeNamesTheExecutionOfTheChild(t *testing.T) {
	h := turn.Read(nil)
	s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, events{started()}, now())}
	begin, err := turn.Apply(s, &protos.WorkflowResponse{Actions: actions{elsewhere("bank", begets(4, "c"))}}, now())
	if err != nil {
		t.Fatal(err)
	}
	h.Add(begin.Append...)
	s.New = turn.Begin(h, events{turn.Terminated(nil, true, now())}, now())
	end, err := turn.Apply(s, nil, now())
	if err != nil {
		t.Fatal(err)
	}
	want := begin.Messages[0].Event.GetExecutionStarted().GetWorkflowInstance().GetExecutionId().GetValue()
	if m := end.Messages[0]; want == "" || m.Execution != want || m.App != "bank" || m.Instance != "c" {
		t.Errorf("the child is ended by %v, want one for its execution %s", m, want)
	}
}

// One log entry has the messages to all children. So the messages have no reason if their reasons would be too large
// together.
func TestApply_CascadeBoundsTheReasons(t *testing.T) {
	for name, c := range map[string]struct {
		children, reason int
		kept             bool
	}{
		"few children":  {4, 1 << 20, true},
		"many children": {400, 1 << 20, false},
		"short reason":  {400, 1 << 10, true},
	} {
		list := events{begun(), started()}
		for id := range c.children {
			list = append(list, child(int32(id), "c"+strconv.Itoa(id), "")) //nolint:gosec // few
		}
		h, reason := turn.Read(list), strings.Repeat("x", c.reason)
		s := &turn.State{ID: "i", App: "shop", History: h,
			New: turn.Begin(h, events{turn.Terminated(text(reason), true, now())}, now())}
		o, err := turn.Apply(s, nil, now())
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for n := range o.Messages {
			size += proto.Size(o.Messages[n].Event)
			end := o.Messages[n].Event.GetExecutionTerminated()
			if kept := end.GetInput() != nil; kept != c.kept || !end.GetRecurse() {
				t.Fatalf("%s: a child gets a reason: %t", name, kept)
			}
		}
		if len(o.Messages) != c.children || size > 16<<20 || o.Completed.GetResult().GetValue() != reason {
			t.Errorf("%s: %d messages of %d bytes", name, len(o.Messages), size)
		}
	}
}

func TestForeign_TellsCreationsOfOtherApplications(t *testing.T) {
	for _, c := range []struct {
		name   string
		action *protos.WorkflowAction
		want   bool
	}{
		{"child", begets(4, "c"), false},
		{"child of another application", elsewhere("bank", begets(4, "c")), true},
		{"child of the application that is named", elsewhere("shop", begets(4, "c")), false},
		{"detached", detaches(4, "c"), false},
		{"detached in another application", elsewhere("bank", detaches(4, "c")), true},
		{"detached in the application that is named", elsewhere("shop", detaches(4, "c")), false},
	} {
		for _, app := range []string{"shop", "prod/shop"} {
			h := turn.Read(nil)
			s := &turn.State{ID: "i", App: app, History: h, New: turn.Begin(h, events{started()}, now())}
			o, err := turn.Apply(s, &protos.WorkflowResponse{Actions: actions{c.action}}, now())
			if err != nil {
				t.Fatal(err)
			}
			if m := o.Messages[0]; turn.Foreign(m.App, m.Event) != c.want {
				t.Errorf("%s of %s: foreign is %v", c.name, app, !c.want)
			}
		}
	}
}

func TestApply_RefusesAnswersThatBreakRules(t *testing.T) {
	many := make(actions, turn.MaxActions+1)
	for i := range many {
		many[i] = calls(int32(i))
	}
	foreign := elsewhere("bank", calls(0))
	foreign.Router.TargetAppNamespace = proto.String("other")
	versioned := ends(continued, "")
	versioned.GetCompleteWorkflow().NewVersion = text(strings.Repeat("x", turn.MaxName+1))
	for _, c := range []struct {
		name    string
		actions actions
		says    string
	}{
		{"id of the history", actions{calls(0)}, "the id 0"},
		{"id twice", actions{calls(5), sleeps(5, now())}, "the id 5"},
		{"negative id", actions{calls(-1)}, "negative"},
		{"no type", actions{{Id: 5}}, "no type"},
		{"nil action", actions{nil}, "no type"},
		{"too many actions", many, "10001 actions"},
		{"activity without a name", actions{{Id: 5, WorkflowActionType: &protos.WorkflowAction_ScheduleTask{}}},
			"is empty"},
		{"timer without a time", actions{{Id: 5, WorkflowActionType: &protos.WorkflowAction_CreateTimer{}}},
			"no valid time"},
		{"long name", actions{{Id: 5, WorkflowActionType: &protos.WorkflowAction_ScheduleTask{
			ScheduleTask: &protos.ScheduleTaskAction{Name: strings.Repeat("x", turn.MaxName+1)}}}}, "1025 bytes"},
		{"long child id", actions{begets(5, strings.Repeat("x", turn.MaxID+1))}, "1025 bytes"},
		{"detached without an id", actions{detaches(5, "")}, "is empty"},
		{"event to no instance", actions{sends(5, "")}, "is empty"},
		{"terminates no instance", actions{kills(5, "")}, "is empty"},
		{"odd application", actions{elsewhere("a||b", calls(5))}, "no valid id"},
		{"other namespace", actions{foreign}, "another namespace"},
		{"event to another application", actions{elsewhere("bank", sends(5, "c"))}, "of application 'bank'"},
		{"terminates in another application", actions{elsewhere("bank", kills(5, "c"))}, "of application 'bank'"},
		{"child id with a zero byte", actions{begets(5, "a\x00b")}, "zero byte"},
		{"event to an id with a zero byte", actions{sends(5, "a\x00b")}, "zero byte"},
		{"long version", actions{versioned}, "the new version"},
		{"many events are carried over", actions{ends(continued, "", make(events, turn.MaxCarried+1)...)},
			"carries 50001 events"},
		{"completes as running", actions{ends(running, "")}, "not terminal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := turn.Read(events{begun(), started(), scheduled(0), done(0)})
			s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, events{raised(1, "x")}, now())}
			_, err := turn.Apply(s, &protos.WorkflowResponse{Actions: c.actions}, now())
			if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(err), c.says) {
				t.Errorf("error %v, want one with %q", err, c.says)
			}
		})
	}
}

func TestApply_BoundsTheCustomStatus(t *testing.T) {
	h := turn.Read(nil)
	s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, events{started()}, now())}
	for size, fits := range map[int]bool{turn.MaxCustom: true, turn.MaxCustom + 1: false} {
		_, err := turn.Apply(s, &protos.WorkflowResponse{CustomStatus: text(strings.Repeat("x", size))}, now())
		if (err == nil) != fits {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// Ids in descending order, and events for which many timers wait, must not make the cost per event grow.
func TestHistory_ReadsHostileHistoriesFast(t *testing.T) {
	const n = 200_000
	h := turn.Read(events{begun(), started()})
	for id := range int32(n) {
		h.Add(waits(id, "guarded"+strconv.Itoa(int(id%1000))))
	}
	for e := range n {
		h.Add(raised(e, "other"+strconv.Itoa(e)))
	}
	if h.Open() != n {
		t.Errorf("%d timers are open", h.Open())
	}
	for e := range n {
		h.Add(raised(n+e, "GUARDED"+strconv.Itoa(e%1000)))
	}
	if h.Open() != 0 {
		t.Errorf("%d timers are open", h.Open())
	}
	h = turn.Read(events{begun(), started()})
	s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, events{raised(1, "x")}, now())}
	for id := int32(1 << 30); ; {
		var list actions
		for range 5000 {
			list = append(list, calls(id))
			id -= 2
		}
		o, err := turn.Apply(s, &protos.WorkflowResponse{Actions: list}, now())
		if err != nil {
			if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(err), "gaps") || h.Open() < turn.MaxGaps {
				t.Errorf("after %d actions: %v", h.Open(), err)
			}
			return
		}
		h.Add(o.Append...)
	}
}

func TestReuse_DecidesByStatusParentAndUniqueness(t *testing.T) {
	other := turn.Start(&protos.CreateInstanceRequest{InstanceId: "i", Name: "order"}, "exec2",
		now()).GetExecutionStarted()
	mine, byParent := started().GetExecutionStarted(), startedBy("shop").GetExecutionStarted()
	next := startedBy("shop").GetExecutionStarted()
	next.ParentInstance.TaskScheduledId = 8
	for _, c := range []struct {
		name             string
		status           protos.OrchestrationStatus
		existing, wanted *protos.ExecutionStartedEvent
		unique, same     bool
		says             string
	}{
		{"runs", running, mine, other, false, false, "an active workflow with ID 'i' already exists"},
		{"stalled", stalled, mine, other, false, false, "an active workflow"},
		{"suspended", suspended, mine, other, false, false, "an active workflow"},
		{"ended", completed, mine, other, false, false, ""},
		{"ended, unique", completed, mine, other, true, false, "enforces instance ID uniqueness"},
		{"same call", running, mine, mine, false, true, ""},
		{"same call, unique", completed, mine, mine, true, true, ""},
		{"same parent and task", running, byParent, startedBy("shop").GetExecutionStarted(), false, true, ""},
		{"same parent, other task", running, byParent, next, false, false, "an active workflow"},
		{"parent of another application", running, byParent, startedBy("x").GetExecutionStarted(), false, false,
			"an active"},
		{"child of a client's instance", running, mine, byParent, false, false, "an active workflow"},
		{"same parent, other task, ended, unique", completed, byParent, next, true, false, ""},
		{"same parent, other task, unique", running, byParent, next, true, false, "an active workflow"},
		{"child of a client's instance, ended, unique", completed, mine, byParent, true, false,
			"enforces instance ID uniqueness"},
		{"parent of another application, ended, unique", completed, byParent,
			startedBy("x").GetExecutionStarted(), true, false, "enforces instance ID uniqueness"},
	} {
		t.Run(c.name, func(t *testing.T) {
			same, err := turn.Reuse("i", c.status, c.existing, c.wanted, c.unique)
			if same != c.same || (err == nil) != (c.says == "") || !strings.Contains(fault.Text(err), c.says) {
				t.Errorf("same %v, error %v", same, err)
			}
		})
	}
}

func TestHistory_StateShowsPayloadsOnRequest(t *testing.T) {
	h := turn.Read(events{begun(), startedBy("boss"), at(9, &protos.HistoryEvent{
		EventType: &protos.HistoryEvent_ExecutionCompleted{ExecutionCompleted: &protos.ExecutionCompletedEvent{
			WorkflowStatus: completed, Result: text("out")}}})})
	s := h.State("i", nil, text("half"), true)
	if s.GetName() != "order" || s.GetInput().GetValue() != "in" || s.GetOutput().GetValue() != "out" ||
		s.GetCustomStatus().GetValue() != "half" || s.GetParentInstanceId().GetValue() != "p" ||
		s.GetParentAppId().GetValue() != "boss" || s.GetCompletedTimestamp().AsTime() != now().Add(9).UTC() ||
		s.GetWorkflowStatus() != completed || s.GetExecutionId().GetValue() != "exec" {
		t.Errorf("state %v", s)
	}
	if s = h.State("i", nil, text("half"), false); s.Input != nil || s.Output != nil || s.CustomStatus != nil {
		t.Errorf("payloads without the request: %v", s)
	}
	waiting := turn.Read(nil).State("i", started(), nil, false)
	if waiting.GetName() != "order" || waiting.GetWorkflowStatus().String() != "ORCHESTRATION_STATUS_PENDING" {
		t.Errorf("pending: %v", waiting)
	}
}

func TestRerun_CopiesTheHistoryBeforeTheEvent(t *testing.T) {
	source := events{begun(), started(), scheduled(0), scheduled(1), child(2, "old", ""), waits(3, "x"), done(0),
		scheduled(4),
		done(4), at(0, &protos.HistoryEvent{EventId: 5, EventType: &protos.HistoryEvent_ExecutionCompleted{
			ExecutionCompleted: &protos.ExecutionCompletedEvent{WorkflowStatus: completed}}})}
	before := words(source)
	ask := func(id uint32, change func(*protos.RerunWorkflowFromEventRequest)) (*turn.Fork, error) {
		r := &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "i", EventID: id}
		if change != nil {
			change(r)
		}
		return turn.Rerun("shop", "", source, r, "new", "exec2", now())
	}
	f, err := ask(4, func(r *protos.RerunWorkflowFromEventRequest) { r.OverwriteInput, r.Input = true, text("other") })
	if err != nil {
		t.Fatal(err)
	}
	if got, want := words(f.Events), "workflowStarted executionStarted taskScheduled:0 taskScheduled:1 "+
		"childWorkflowInstanceCreated:2 timerCreated:3 taskCompleted taskScheduled:4"; got != want {
		t.Errorf("history %s, want %s", got, want)
	}
	if len(f.Tasks) != 2 || f.Tasks[0].ID != 1 || f.Tasks[1].ID != 4 || len(f.Timers) != 1 || f.Timers[0].ID != 3 ||
		len(f.Messages) != 1 || f.Messages[0].Instance != "new:0002" {
		t.Errorf("tasks %v, timers %v, messages %v", f.Tasks, f.Timers, f.Messages)
	}
	last := f.Events[7].GetTaskScheduled()
	if last.GetInput().GetValue() != "other" || last.GetRerunParentInstanceInfo().GetInstanceID() != "i" {
		t.Errorf("the event that runs again: %v", last)
	}
	own := f.Events[1].GetExecutionStarted().GetWorkflowInstance()
	if own.GetInstanceId() != "new" || own.GetExecutionId().GetValue() != "exec2" {
		t.Errorf("the new instance is %v", own)
	}
	if words(source) != before || source[1].GetExecutionStarted().GetWorkflowInstance().GetInstanceId() != "i" ||
		source[7].GetTaskScheduled().GetRerunParentInstanceInfo() != nil ||
		source[4].GetChildWorkflowInstanceCreated().GetInstanceId() != "old" {
		t.Error("the source was changed")
	}
	for _, c := range []struct {
		name   string
		event  uint32
		change func(*protos.RerunWorkflowFromEventRequest)
		code   fault.Code
		says   string
	}{
		{"no event", 77, nil, fault.NotFound, "does not have history event with ID '77'"},
		{"completion", 5, nil, fault.NotFound, "is not an event that can be rerun"},
		{"event of the engine", 4294967295, nil, fault.NotFound, "does not have history event"},
		{"input for a timer", 3, func(r *protos.RerunWorkflowFromEventRequest) { r.OverwriteInput = true },
			fault.Invalid,
			"cannot write input to timer event '3'"},
		{"child id for a timer", 3, func(r *protos.RerunWorkflowFromEventRequest) {
			r.NewChildWorkflowInstanceID = proto.String("x")
		}, fault.Invalid, "cannot set new child workflow instance ID on timer event '3'"},
		{"child id for an activity", 0, func(r *protos.RerunWorkflowFromEventRequest) {
			r.NewChildWorkflowInstanceID = proto.String("x")
		}, fault.Invalid, "cannot set new child workflow instance ID on activity event '0'"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := ask(c.event, c.change); !fault.Is(err, c.code) || !strings.Contains(fault.Text(err), c.says) {
				t.Errorf("error %v, want %s %q", err, c.code, c.says)
			}
		})
	}
	t.Run("same id", func(t *testing.T) {
		_, err := turn.Rerun("shop", "", source, &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "i",
			EventID: 4}, "i",
			"e", now())
		if !fault.Is(err, fault.Invalid) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("runs", func(t *testing.T) {
		_, err := turn.Rerun("shop", "", source[:5], &protos.RerunWorkflowFromEventRequest{SourceInstanceID: "i"},
			"n", "e", now())
		if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Text(err), "is not in a terminal state") {
			t.Errorf("error %v", err)
		}
	})
}

// FuzzApply applies arbitrary answers to a turn of an instance with an open activity, timer and child.
func FuzzApply(f *testing.F) {
	for _, as := range []actions{{calls(8)}, {sleeps(8, now()), begets(9, "")}, {ends(continued, "x", raised(1, "a"))},
		{ends(failed, ""), detaches(10, "d"), sends(11, "e"), kills(12, "f")}, {lacksVersion()}, {nil}} {
		b, err := proto.Marshal(&protos.WorkflowResponse{Actions: as,
			Version: &protos.WorkflowVersion{Patches: []string{"a"}}})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, ended bool) {
		var answer protos.WorkflowResponse
		if proto.Unmarshal(b, &answer) != nil {
			return
		}
		h := turn.Read(events{begun(), startedBy("boss"), scheduled(0), waits(1, "x"), child(2, "c", "bank")})
		inbox := events{done(0), raised(4, "x")}
		if ended {
			inbox = append(inbox, turn.Terminated(nil, true, now()))
		}
		s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, inbox, now())}
		o, err := turn.Apply(s, &answer, now())
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if ended && o.Stalled == nil && o.Completed == nil {
			t.Fatal("a terminated instance goes on")
		}
		if len(o.Tasks)+len(o.Timers) > len(answer.GetActions()) || len(o.Messages) > len(answer.GetActions())*2+2 {
			t.Fatalf("%d actions: %d tasks, %d timers, %d messages", len(answer.GetActions()), len(o.Tasks),
				len(o.Timers),
				len(o.Messages))
		}
		keys, ids := map[string]bool{}, map[int32]bool{0: true, 1: true, 2: true}
		for _, m := range o.Messages {
			if keys[m.Key] || m.Instance == "" || len(m.Instance) > turn.MaxID || !turn.ValidApp(m.App) {
				t.Fatalf("message %v", m)
			}
			keys[m.Key] = true
		}
		for _, task := range o.Tasks {
			if ids[task.ID] || !turn.ValidApp(task.App) {
				t.Fatalf("task %v", task)
			}
			ids[task.ID] = true
		}
		if !o.Replace {
			h.Add(o.Append...)
			if h.Status() != o.Status {
				t.Fatalf("the history says %s, the outcome %s", h.Status(), o.Status)
			}
		}
	})
}

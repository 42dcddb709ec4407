package workflows

import (
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api/admin/schema"
)

// at returns e with the given id and the time n, in Unix seconds.
func at(n int64, id int32, e *protos.HistoryEvent) *protos.HistoryEvent {
	e.EventId, e.Timestamp = id, timestamppb.New(time.Unix(n, 0))
	return e
}

func scheduled(name, execution string) *protos.HistoryEvent {
	return &protos.HistoryEvent{EventType: &protos.HistoryEvent_TaskScheduled{TaskScheduled: &protos.TaskScheduledEvent{
		Name: name, TaskExecutionId: execution, Input: wrapperspb.String("secret")}}}
}

func failed(id int32) *protos.HistoryEvent {
	return &protos.HistoryEvent{EventType: &protos.HistoryEvent_TaskFailed{TaskFailed: &protos.TaskFailedEvent{
		TaskScheduledId: id, FailureDetails: &protos.TaskFailureDetails{ErrorType: "T", ErrorMessage: "m",
			StackTrace: wrapperspb.String("stack")}}}}
}

func timer(t *protos.TimerCreatedEvent, due time.Time) *protos.HistoryEvent {
	t.FireAt = timestamppb.New(due)
	return &protos.HistoryEvent{EventType: &protos.HistoryEvent_TimerCreated{TimerCreated: t}}
}

func fired(id int32) *protos.HistoryEvent {
	return &protos.HistoryEvent{EventType: &protos.HistoryEvent_TimerFired{TimerFired: &protos.TimerFiredEvent{
		TimerId: id}}}
}

func waitFor(name string, due time.Time) *protos.HistoryEvent {
	return timer(&protos.TimerCreatedEvent{Origin: &protos.TimerCreatedEvent_ExternalEvent{
		ExternalEvent: &protos.TimerOriginExternalEvent{Name: name}}}, due)
}

func raised(name string) *protos.HistoryEvent {
	return &protos.HistoryEvent{EventType: &protos.HistoryEvent_EventRaised{EventRaised: &protos.EventRaisedEvent{
		Name: name}}}
}

func TestSteps_OfAHistory(t *testing.T) {
	due, never := time.Unix(1000, 0), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	events := []*protos.HistoryEvent{
		at(1, -1, &protos.HistoryEvent{EventType: &protos.HistoryEvent_WorkflowStarted{
			WorkflowStarted: &protos.WorkflowStartedEvent{}}}),
		at(2, 0, scheduled("pay", "x")),
		at(3, -1, failed(0)),
		at(3, 1, timer(&protos.TimerCreatedEvent{Origin: &protos.TimerCreatedEvent_ActivityRetry{
			ActivityRetry: &protos.TimerOriginActivityRetry{}}}, due)),
		at(4, -1, fired(1)),
		at(4, 2, scheduled("pay", "x")),
		at(5, 3, waitFor("Go", never)),
		at(5, 4, waitFor("late", due)),
		at(6, -1, raised("gO")),
		at(7, -1, raised("early")),
		at(8, -1, fired(4)),
		at(8, -1, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ExecutionSuspended{
			ExecutionSuspended: &protos.ExecutionSuspendedEvent{}}}),
		at(9, -1, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ExecutionResumed{
			ExecutionResumed: &protos.ExecutionResumedEvent{}}}),
		at(9, 5, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ChildWorkflowInstanceCreated{
			ChildWorkflowInstanceCreated: &protos.ChildWorkflowInstanceCreatedEvent{InstanceId: "c", Name: "ship"}}}),
		at(10, -1, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ExecutionStalled{
			ExecutionStalled: &protos.ExecutionStalledEvent{Description: new("no patch p")}}}),
		at(11, -1, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ChildWorkflowInstanceCompleted{
			ChildWorkflowInstanceCompleted: &protos.ChildWorkflowInstanceCompletedEvent{TaskScheduledId: 5}}}),
	}
	s := newSteps(false)
	for _, e := range events {
		s.add(e)
	}
	sec := func(n int64) time.Time { return time.Unix(n, 0).UTC() }
	failure := &schema.WorkflowFailure{Type: "T", Message: "m"}
	want := []schema.WorkflowStep{
		{Kind: "activity", EventID: 0, Name: "pay", Begin: sec(2), End: sec(3), Outcome: "failed", Attempt: 1,
			Failure: failure},
		{Kind: "retry", EventID: 1, Begin: sec(3), End: sec(4), Due: sec(1000), Outcome: "fired"},
		{Kind: "activity", EventID: 2, Name: "pay", Begin: sec(4), Attempt: 2},
		{Kind: "wait", EventID: 3, Name: "Go", Begin: sec(5), End: sec(6), Outcome: "received"},
		{Kind: "wait", EventID: 4, Name: "late", Begin: sec(5), End: sec(8), Due: sec(1000), Outcome: "timed out"},
		{Kind: "event", EventID: -1, Name: "early", Begin: sec(7), End: sec(7), Outcome: "received"},
		{Kind: "suspended", EventID: -1, Begin: sec(8), End: sec(9), Outcome: "done"},
		{Kind: "child", EventID: 5, Name: "ship", Child: "c", Begin: sec(9), End: sec(11), Outcome: "completed"},
		{Kind: "stalled", EventID: -1, Name: "no patch p", Begin: sec(10), End: sec(11), Outcome: "done"},
	}
	if diff := cmp.Diff(want, s.list); diff != "" || s.turns != 1 {
		t.Errorf("%d turns, %s", s.turns, diff)
	}
	s.add(at(12, 6, &protos.HistoryEvent{EventType: &protos.HistoryEvent_ExecutionCompleted{
		ExecutionCompleted: &protos.ExecutionCompletedEvent{}}}))
	if one := s.list[2]; one.Outcome != "canceled" || one.End != sec(12) {
		t.Errorf("the activity without a result: %+v", one)
	}
	if f := failureOf(failed(0).GetTaskFailed().GetFailureDetails(), true); f.Stack != "stack" {
		t.Errorf("with payloads: %+v", f)
	}
}

// SDKs identify the attempts of an activity in different ways.
func TestSteps_CountAttempts(t *testing.T) {
	retry := func(execution string) *protos.HistoryEvent {
		return timer(&protos.TimerCreatedEvent{Origin: &protos.TimerCreatedEvent_ActivityRetry{
			ActivityRetry: &protos.TimerOriginActivityRetry{TaskExecutionId: execution}}}, time.Unix(9, 0))
	}
	plain := timer(&protos.TimerCreatedEvent{}, time.Unix(9, 0))
	for name, c := range map[string]struct {
		events []*protos.HistoryEvent
		want   []int // attempts of the activities
	}{
		"the same id": {[]*protos.HistoryEvent{at(1, 0, scheduled("pay", "x")), at(2, -1, failed(0)),
			at(2, 1, retry("x")), at(3, -1, fired(1)), at(3, 2, scheduled("pay", "x")), at(4, -1, failed(2)),
			at(4, 3, retry("x")), at(5, -1, fired(3)), at(5, 4, scheduled("pay", "x"))}, []int{1, 2, 3}},
		"the same id, other timers": {[]*protos.HistoryEvent{at(1, 0, scheduled("pay", "x")), at(2, -1, failed(0)),
			at(2, 1, plain), at(3, -1, fired(1)), at(3, 2, scheduled("pay", "x"))}, []int{1, 2}},
		"another id": {[]*protos.HistoryEvent{at(1, 0, scheduled("pay", "x")), at(2, -1, failed(0)),
			at(2, 1, retry("y")), at(3, -1, fired(1)), at(3, 2, scheduled("pay", "z")), at(4, -1, failed(2)),
			at(4, 3, retry("")), at(5, -1, fired(3)), at(5, 4, scheduled("pay", "u"))}, []int{1, 2, 3}},
		"no id": {[]*protos.HistoryEvent{at(1, 0, scheduled("pay", "")), at(2, -1, failed(0)),
			at(2, 1, retry("")), at(3, -1, fired(1)), at(3, 2, scheduled("pay", "")),
			at(4, 3, scheduled("other", ""))}, []int{1, 2, 0}},
		"an activity that is no repetition": {[]*protos.HistoryEvent{at(1, 0, scheduled("pay", "x")),
			at(2, -1, failed(0)), at(2, 1, scheduled("pay", "y")), at(3, 2, retry("x")), at(4, -1, fired(2)),
			at(4, 3, scheduled("other", "z")), at(4, 4, scheduled("pay", "x"))}, []int{1, 1, 1, 2}},
		"several at once": {[]*protos.HistoryEvent{at(1, 0, scheduled("a", "x")), at(1, 1, scheduled("b", "y")),
			at(2, -1, failed(0)), at(2, -1, failed(1)), at(2, 2, retry("x")), at(2, 3, retry("y")), at(3, -1, fired(3)),
			at(3, 4, scheduled("b", "v")), at(4, -1, failed(4)), at(4, 5, retry("v")), at(5, -1, fired(5)),
			at(5, 6, scheduled("b", "w")), at(6, -1, fired(2)), at(6, 7, scheduled("a", "u"))},
			[]int{1, 1, 2, 3, 2}},
	} {
		s := newSteps(false)
		for _, e := range c.events {
			s.add(e)
		}
		var got []int
		for _, one := range s.list {
			if one.Kind == schema.StepActivity {
				got = append(got, one.Attempt)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestEvent_HidesPayloads(t *testing.T) {
	for _, payloads := range []bool{false, true} {
		e := eventOf(3, at(1, 7, scheduled("pay", "x")), payloads)
		if e.Position != 3 || e.ID != 7 || e.Type != "TaskScheduled" || e.Name != "pay" ||
			(e.Payload != nil) != payloads || payloads && *e.Payload != "secret" {
			t.Errorf("payloads %t: %+v", payloads, e)
		}
	}
	long := make([]byte, maxPayload+1)
	e := at(1, -1, raised("n"))
	e.GetEventRaised().Input = wrapperspb.String(string(long))
	if got := eventOf(0, e, true); got.Cut != len(long) || len(*got.Payload) > maxPayload {
		t.Errorf("of %d bytes, %d are shown; cut is %d", len(long), len(*got.Payload), got.Cut)
	}
}

package turn

import (
	"strings"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A turn has many events, and each event resolves one of many timers. Some of the timers fire in the same turn. The
// turn looks at each timer only a few times.
func TestApply_LooksAtEachTimerAFewTimes(t *testing.T) {
	const count = 10_000
	now := time.UnixMilli(1_000_000)
	h := Read([]*protos.HistoryEvent{Start(&protos.CreateInstanceRequest{Name: "order"}, "execution", now)})
	var inbox []*protos.HistoryEvent
	for id := range int32(count) {
		h.Add(event(id, now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_TimerCreated{
			TimerCreated: &protos.TimerCreatedEvent{FireAt: timestamppb.New(now),
				Origin: &protos.TimerCreatedEvent_ExternalEvent{
					ExternalEvent: &protos.TimerOriginExternalEvent{Name: "go"}}}}}))
		if id%3 == 2 {
			inbox = append(inbox, event(-1, now, &protos.HistoryEvent{EventType: &protos.HistoryEvent_TimerFired{
				TimerFired: &protos.TimerFiredEvent{TimerId: id}}}))
		} else {
			inbox = append(inbox, Raised("GO", nil, now.Add(time.Duration(id))))
		}
	}
	a := &applier{State: &State{ID: "i", App: "shop", History: h, New: Begin(h, inbox, now)}, now: now}
	if err := a.read(&protos.WorkflowResponse{}); err != nil {
		t.Fatal(err)
	}
	if len(a.closed) != count || len(a.out.Dropped) != count-count/3 {
		t.Errorf("%d timers are resolved, %d of them by events", len(a.closed), len(a.out.Dropped))
	}
	if a.looked > 2*count {
		t.Errorf("guard has looked at %d timers of %d", a.looked, count)
	}
}

// The worker of Python gives all events that it carries over the time 0. Although a name and a time identify an event,
// each of these events must reach the next generation once.
func TestApply_CarriesEventsWithEqualTimesOver(t *testing.T) {
	now := time.UnixMilli(1_000_000)
	start := Start(&protos.CreateInstanceRequest{InstanceId: "i", Name: "order"}, "execution", now)
	carried := []*protos.HistoryEvent{Raised("go", nil, time.Unix(0, 0)), Raised("go", nil, time.Unix(0, 0)),
		Raised("stop", nil, time.Unix(0, 0)), Raised("go", nil, time.Unix(0, 0)), Raised("go", nil, now),
		Raised("go", nil, now)}
	carried[3].Timestamp = nil
	h := Read(nil)
	again := &protos.CompleteWorkflowAction{CarryoverEvents: carried,
		WorkflowStatus: protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW}
	o, err := Apply(&State{ID: "i", App: "shop", History: h, New: Begin(h, []*protos.HistoryEvent{start}, now)},
		&protos.WorkflowResponse{Actions: []*protos.WorkflowAction{{
			WorkflowActionType: &protos.WorkflowAction_CompleteWorkflow{CompleteWorkflow: again}}}}, now)
	if err != nil {
		t.Fatal(err)
	}
	next := Begin(Read(nil), o.Inbox, now)
	var names []string
	for _, e := range next {
		if e.GetEventRaised() != nil {
			names = append(names, e.GetEventRaised().GetName())
		}
	}
	if got := strings.Join(names, " "); got != "go go stop go go go" {
		t.Errorf("the next generation gets the events %s", got)
	}
}

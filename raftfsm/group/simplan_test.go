package group

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/internal/history"
)

// How a step of a plan begins when its inputs are known. Without one of these, it begins at once.
const (
	viaTimer = "timer"
	viaEvent = "event" // after an external event with the name of the step
	viaChild = "child" // in a child workflow
	viaAgain = "again" // after a continue-as-new
)

const (
	planName    = "plan"
	planRetries = 2  // number of retries that an activity may need
	planIDs     = 16 // number of ids of actions that each step has
)

// simPlan is the input of a workflow: the activities that it executes. Its output is the list of their results.
type simPlan struct {
	Instance string    `json:"instance"` // id of the instance that a client has started
	Steps    []simStep `json:"steps"`
	Results  []string  `json:"results,omitempty"` // results of the first steps, from before a continue-as-new
	Input    []string  `json:"input,omitempty"`   // input of a child workflow
}

// simStep is one activity. Its input is the results of earlier steps.
type simStep struct {
	Name  string        `json:"name"`
	After []int         `json:"after,omitempty"`
	Via   string        `json:"via,omitempty"`
	Wait  time.Duration `json:"wait,omitempty"`  // duration of the timer
	Depth int           `json:"depth,omitempty"` // how many further children a child has below it
}

// simInput is the input of an activity.
type simInput struct {
	Instance string   `json:"instance"`
	Results  []string `json:"results"`
	Try      int      `json:"try"`
}

// randomPlan returns the plan of an instance. A plan consists of groups of steps. Each step gets the results of the
// previous group.
func randomPlan(rnd *rand.Rand, id string) *simPlan {
	p := &simPlan{Instance: id}
	var before []int
	for range 1 + rnd.IntN(4) {
		var group []int
		size := 1
		if rnd.IntN(3) == 0 {
			size = 2 + rnd.IntN(4)
		}
		for range size {
			s := simStep{Name: fmt.Sprint("s", len(p.Steps)), After: before}
			switch n := rnd.IntN(12); {
			case n < 2:
				s.Via, s.Wait = viaTimer, time.Duration(20+rnd.IntN(2000))*time.Millisecond
				if rnd.IntN(8) == 0 {
					s.Wait *= 10
				}
			case n < 4:
				s.Via = viaEvent
			case n < 6:
				s.Via, s.Depth = viaChild, rnd.IntN(2)
			case n < 8 && size == 1:
				s.Via = viaAgain
			}
			group = append(group, len(p.Steps))
			p.Steps = append(p.Steps, s)
		}
		before = group
	}
	return p
}

// recorded returns the steps of the plan in the form that package history uses.
func (p *simPlan) recorded() (list []history.Step) {
	for _, s := range p.Steps {
		list = append(list, history.Step{Name: s.Name, After: s.After})
	}
	return list
}

// events returns the names of the external events for which the workflow waits.
func (p *simPlan) events() (names []string) {
	for _, s := range p.Steps {
		if s.Via == viaEvent {
			names = append(names, s.Name)
		}
	}
	return names
}

// simTurn is what one turn of a workflow knows.
type simTurn struct {
	plan      simPlan
	results   map[int]string
	begun     map[int32]bool // ids of the actions that have begun
	failed    map[int32]bool
	fired     map[int32]bool
	raised    map[string]*protos.HistoryEvent
	suspended bool
	ends      bool
	actions   []*protos.WorkflowAction
}

// readTurn reads the events of a workflow.
func readTurn(events []*protos.HistoryEvent) *simTurn {
	t := &simTurn{results: map[int]string{}, begun: map[int32]bool{}, failed: map[int32]bool{},
		fired: map[int32]bool{}, raised: map[string]*protos.HistoryEvent{}}
	for _, e := range events {
		switch {
		case e.GetExecutionStarted() != nil:
			_ = json.Unmarshal([]byte(e.GetExecutionStarted().GetInput().GetValue()), &t.plan) // input of this test
			for i, result := range t.plan.Results {
				t.results[i] = result
			}
		case e.GetTaskScheduled() != nil, e.GetTimerCreated() != nil, e.GetChildWorkflowInstanceCreated() != nil:
			t.begun[e.GetEventId()] = true
		case e.GetTaskCompleted() != nil:
			c := e.GetTaskCompleted()
			t.results[int(c.GetTaskScheduledId())/planIDs] = c.GetResult().GetValue()
		case e.GetTaskFailed() != nil:
			t.failed[e.GetTaskFailed().GetTaskScheduledId()] = true
		case e.GetChildWorkflowInstanceCompleted() != nil:
			c := e.GetChildWorkflowInstanceCompleted()
			var list []string
			if json.Unmarshal([]byte(c.GetResult().GetValue()), &list) == nil && len(list) == 1 {
				t.results[int(c.GetTaskScheduledId())/planIDs] = list[0]
			}
		case e.GetTimerFired() != nil:
			t.fired[e.GetTimerFired().GetTimerId()] = true
		case e.GetEventRaised() != nil:
			t.raised[e.GetEventRaised().GetName()] = e
		case e.GetExecutionSuspended() != nil:
			t.suspended = true
		case e.GetExecutionResumed() != nil:
			t.suspended = false
		case e.GetExecutionTerminated() != nil:
			t.ends = true
		}
	}
	return t
}

// run is the code of all workflows: it returns the actions of the turn. Activities, children and timers of step i have
// the ids from planIDs*i on.
func (t *simTurn) run() []*protos.WorkflowAction {
	if t.suspended || t.ends {
		return nil
	}
	var output []string
	for i := range t.plan.Steps {
		if result, ok := t.results[i]; ok {
			output = append(output, result)
			continue
		}
		if t.begin(i); len(t.actions) > 0 && t.actions[len(t.actions)-1].GetCompleteWorkflow() != nil {
			return t.actions // the workflow continues as new
		}
	}
	if len(output) == len(t.plan.Steps) {
		t.complete(protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED, encodeText(output), nil)
	}
	return t.actions
}

// begin begins step i, which has no result yet. It does nothing if the step has begun already, or if the input or the
// external event of the step is missing.
func (t *simTurn) begin(i int) {
	s, first := &t.plan.Steps[i], int32(planIDs*i) //nolint:gosec // few
	input, ready := t.input(s)
	switch {
	case !ready || s.Via == viaEvent && t.raised[s.Name] == nil:
	case s.Via == viaAgain && len(t.plan.Results) < i:
		t.again(i)
	case s.Via == viaTimer && !t.fired[first]:
		if !t.begun[first] {
			t.act(first, &protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_CreateTimer{
				CreateTimer: &protos.CreateTimerAction{FireAt: timestamppb.New(time.Now().Add(s.Wait))}}})
		}
	case s.Via == viaChild:
		if !t.begun[first] {
			child := simPlan{Instance: t.plan.Instance, Input: input, Steps: []simStep{{Name: s.Name}}}
			if s.Depth > 0 {
				child.Steps[0].Via, child.Steps[0].Depth = viaChild, s.Depth-1
			}
			t.act(first, &protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_CreateChildWorkflow{
				CreateChildWorkflow: &protos.CreateChildWorkflowAction{Name: planName, Input: encodeText(child)}}})
		}
	default:
		t.activity(s, first, input)
	}
}

// activity schedules the activity of a step, unless the activity is running. It schedules a failed activity again, up
// to planRetries times.
func (t *simTurn) activity(s *simStep, first int32, input []string) {
	for try := range int32(planRetries + 1) {
		id := first + 1 + try
		if t.failed[id] {
			continue
		}
		if !t.begun[id] {
			t.act(id, &protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_ScheduleTask{
				ScheduleTask: &protos.ScheduleTaskAction{Name: s.Name, Input: encodeText(simInput{t.plan.Instance,
					input, int(try)})}}})
		}
		return
	}
}

// again continues the workflow as new before step i. The new execution gets the results of the earlier steps, and the
// external events that have arrived.
func (t *simTurn) again(i int) {
	next, carried := t.plan, []*protos.HistoryEvent(nil)
	next.Results = nil
	for k := range i {
		next.Results = append(next.Results, t.results[k])
	}
	for _, s := range t.plan.Steps[i:] {
		if e := t.raised[s.Name]; e != nil {
			carried = append(carried, e)
		}
	}
	t.complete(protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW, encodeText(next), carried)
}

func (t *simTurn) complete(status protos.OrchestrationStatus, result *wrapperspb.StringValue,
	carried []*protos.HistoryEvent) {
	t.act(int32(planIDs*len(t.plan.Steps)), &protos.WorkflowAction{ //nolint:gosec // few
		WorkflowActionType: &protos.WorkflowAction_CompleteWorkflow{CompleteWorkflow: &protos.CompleteWorkflowAction{
			WorkflowStatus: status, Result: result, CarryoverEvents: carried}}})
}

func (t *simTurn) act(id int32, a *protos.WorkflowAction) {
	a.Id = id
	t.actions = append(t.actions, a)
}

// input returns the input of a step. If an earlier step that it needs has no result, ready is false.
func (t *simTurn) input(s *simStep) (list []string, ready bool) {
	list = append(list, t.plan.Input...)
	for _, k := range s.After {
		result, ok := t.results[k]
		if !ok {
			return nil, false
		}
		list = append(list, result)
	}
	return list, true
}

func encodeText(v any) *wrapperspb.StringValue {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible for the values of this test
	}
	return encodeRaw(string(b))
}

func encodeRaw(s string) *wrapperspb.StringValue { return wrapperspb.String(s) }

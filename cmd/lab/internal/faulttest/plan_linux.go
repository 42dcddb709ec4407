package faulttest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Values of planStep.Via, which determines how a step starts. Only the second-to-last step of a plan may have one of
// these values. Steps without a value start as soon as their input is available.
const (
	viaTimer = "timer" // half a second after the steps before
	viaEvent = "event" // after an external event
	viaChild = "child" // by a child workflow
)

// plan is the input of a workflow. It lists the activities that the workflow executes. The output of the workflow is
// the list of their results.
type plan struct {
	Instance string     `json:"instance"`
	Steps    []planStep `json:"steps"`
	Results  []string   `json:"results,omitempty"` // the input of the first step, in a child workflow
}

// planStep is one activity of a plan. After contains the indexes of earlier steps. The activity starts when these steps
// have results, and gets the results as its input.
type planStep struct {
	Name  string `json:"name"`
	After []int  `json:"after,omitempty"`
	Via   string `json:"via,omitempty"`
}

// activityInput is the input of an activity.
type activityInput struct {
	Instance string   `json:"instance"`
	Results  []string `json:"results"` // of earlier steps
}

// randomPlan returns the plan of an instance, and what kind of plan it is.
func randomPlan(rnd *rand.Rand, id string) (kind string, p plan) {
	p.Instance = id
	add := func(after ...int) {
		p.Steps = append(p.Steps, planStep{Name: fmt.Sprint("s", len(p.Steps)), After: after})
	}
	kind = []string{"chain", "fan", viaTimer, viaEvent, viaChild}[rnd.IntN(5)]
	if kind == "fan" {
		var all []int
		for i := range 2 + rnd.IntN(8) {
			add()
			all = append(all, i)
		}
		add(all...)
		return kind, p
	}
	add()
	for i := range 2 + rnd.IntN(4) {
		add(i)
	}
	if kind != "chain" {
		p.Steps[len(p.Steps)-2].Via = kind
	}
	return kind, p
}

// planTurn executes one turn of a workflow, and returns the actions that follow from the workflow's history. All
// workflows use this function. In step i, an activity or child workflow has the action id 2i, and a timer has the
// action id 2i+1.
func planTurn(events []*protos.HistoryEvent) (actions []*protos.WorkflowAction) {
	var p plan
	results, begun, fired, raised := map[int32]string{}, map[int32]bool{}, map[int32]bool{}, false
	done := func(id int32, encoded string) {
		var result string
		if json.Unmarshal([]byte(encoded), &result) != nil {
			var list []string // of a child workflow with one step
			if json.Unmarshal([]byte(encoded), &list) == nil && len(list) == 1 {
				result = list[0]
			}
		}
		results[id/2] = result
	}
	for _, e := range events {
		switch {
		case e.GetExecutionStarted() != nil:
			_ = json.Unmarshal([]byte(e.GetExecutionStarted().GetInput().GetValue()), &p) // the plan of a client
		case e.GetTaskScheduled() != nil, e.GetTimerCreated() != nil, e.GetChildWorkflowInstanceCreated() != nil:
			begun[e.GetEventId()] = true
		case e.GetTaskCompleted() != nil:
			done(e.GetTaskCompleted().GetTaskScheduledId(), e.GetTaskCompleted().GetResult().GetValue())
		case e.GetChildWorkflowInstanceCompleted() != nil:
			c := e.GetChildWorkflowInstanceCompleted()
			done(c.GetTaskScheduledId(), c.GetResult().GetValue())
		case e.GetTimerFired() != nil:
			fired[e.GetTimerFired().GetTimerId()/2] = true
		case e.GetEventRaised() != nil:
			raised = true
		}
	}
	var output []string
	for i := range p.Steps {
		s, id := &p.Steps[i], int32(i) //nolint:gosec // few
		if result, ok := results[id]; ok {
			output = append(output, result)
			continue
		}
		input, ready := s.input(p.Results, results)
		switch {
		case !ready || begun[2*id] || s.Via == viaEvent && !raised:
		case s.Via == viaTimer && !fired[id]:
			if !begun[2*id+1] {
				actions = append(actions, &protos.WorkflowAction{Id: 2*id + 1,
					WorkflowActionType: &protos.WorkflowAction_CreateTimer{CreateTimer: &protos.CreateTimerAction{
						FireAt: timestamppb.New(time.Now().Add(500 * time.Millisecond))}}})
			}
		case s.Via == viaChild:
			child := plan{Instance: p.Instance, Steps: []planStep{{Name: s.Name}}, Results: input}
			actions = append(actions, &protos.WorkflowAction{Id: 2 * id,
				WorkflowActionType: &protos.WorkflowAction_CreateChildWorkflow{
					CreateChildWorkflow: &protos.CreateChildWorkflowAction{Name: "plan", Input: payload(text(child)),
						InstanceId: p.Instance + "-" + s.Name}}})
		default:
			actions = append(actions, &protos.WorkflowAction{Id: 2 * id,
				WorkflowActionType: &protos.WorkflowAction_ScheduleTask{ScheduleTask: &protos.ScheduleTaskAction{
					Name: s.Name, Input: payload(text(activityInput{p.Instance, input}))}}})
		}
	}
	if len(output) == len(p.Steps) {
		actions = append(actions, &protos.WorkflowAction{Id: int32(2 * len(p.Steps)), //nolint:gosec // few
			WorkflowActionType: &protos.WorkflowAction_CompleteWorkflow{
				CompleteWorkflow: &protos.CompleteWorkflowAction{Result: payload(text(output)),
					WorkflowStatus: protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED}}})
	}
	return actions
}

// input returns the input of a step: the initial texts, followed by the results of the steps in s.After. If one of
// these steps has no result yet, ready is false.
func (s *planStep) input(initial []string, results map[int32]string) (list []string, ready bool) {
	list = append(list, initial...)
	for _, i := range s.After {
		result, ok := results[int32(i)] //nolint:gosec // few
		if !ok {
			return nil, false
		}
		list = append(list, result)
	}
	return list, true
}

// payload returns a text in the form that inputs and results have in workflow messages.
func payload(s string) *wrapperspb.StringValue { return wrapperspb.String(s) }

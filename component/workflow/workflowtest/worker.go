package workflowtest

import (
	"context"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
)

// patience bounds how long a test waits for something that must happen.
const patience = 30 * time.Second

// Worker is a worker that a test drives by hand. The test takes each item of work and answers it. A Worker is not safe
// for concurrent use.
type Worker struct {
	t      testing.TB
	engine workflow.Engine
	app    string
	stream workflow.Stream
	worker workflow.Worker
	// turns and activities have the items that were taken while the test waited for other items.
	turns      []*Turn
	activities []*Activity
}

// Connect opens a stream of work. The stream is closed when the test ends.
func Connect(t testing.TB, e workflow.Engine, app string) *Worker {
	t.Helper()
	return ConnectAs(t, e, app, workflow.Worker{})
}

// ConnectAs is like Connect, for a worker with the properties in as.
func ConnectAs(t testing.TB, e workflow.Engine, app string, as workflow.Worker) *Worker {
	t.Helper()
	w := &Worker{t: t, engine: e, app: app, worker: as}
	w.Reconnect()
	t.Cleanup(func() { w.stream.Close() })
	return w
}

// Reconnect replaces the stream by a new one. The items of the old stream are given back.
func (w *Worker) Reconnect() {
	w.t.Helper()
	w.Disconnect()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := w.engine.Work(ctx, w.app, w.worker)
	if err != nil {
		w.t.Fatalf("opening a stream of work: %v", err)
	}
	w.stream = stream
}

// Disconnect closes the stream, which gives back its items.
func (w *Worker) Disconnect() {
	if w.stream != nil {
		w.stream.Close()
	}
	w.turns, w.activities = nil, nil
}

// Turn is a turn that the worker has taken.
type Turn struct {
	*protos.WorkflowRequest
	Token string
	w     *Worker
}

// Activity is an activity that the worker has taken.
type Activity struct {
	*protos.ActivityRequest
	Token string
	w     *Worker
}

// take takes one item from the stream. It returns errNoItem if no item comes within the given time.
func (w *Worker) take(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	item, err := w.stream.Next(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return errNoItem
		}
		return err
	}
	// an engine may return events as encoded unknown fields, so the item must be encoded and decoded once
	b, err := proto.Marshal(item)
	if err != nil {
		return err
	}
	got := &protos.WorkItem{}
	if err := proto.Unmarshal(b, got); err != nil {
		return err
	}
	if got.GetCompletionToken() == "" {
		w.t.Errorf("an item has no completion token: %v", got)
	}
	if r := got.GetWorkflowRequest(); r != nil {
		w.turns = append(w.turns, &Turn{r, got.GetCompletionToken(), w})
	} else {
		w.activities = append(w.activities, &Activity{got.GetActivityRequest(), got.GetCompletionToken(), w})
	}
	return nil
}

// Turn waits for the next turn of the instance with the given id, and takes it.
func (w *Worker) Turn(id string) *Turn {
	w.t.Helper()
	for {
		for i, turn := range w.turns {
			if turn.GetInstanceId() == id {
				w.turns = append(w.turns[:i:i], w.turns[i+1:]...)
				return turn
			}
		}
		if err := w.take(patience); err != nil {
			w.t.Fatalf("waiting for a turn of %s: %v", id, err)
		}
	}
}

// Activity waits for the next activity with the given name, and takes it.
func (w *Worker) Activity(name string) *Activity {
	w.t.Helper()
	for {
		for i, a := range w.activities {
			if a.GetName() == name {
				w.activities = append(w.activities[:i:i], w.activities[i+1:]...)
				return a
			}
		}
		if err := w.take(patience); err != nil {
			w.t.Fatalf("waiting for activity %s: %v", name, err)
		}
	}
}

// Idle fails the test if the worker has work that the test has not taken, or gets work within 300 ms.
func (w *Worker) Idle() {
	w.t.Helper()
	if err := w.take(300 * time.Millisecond); err == nil || len(w.turns)+len(w.activities) > 0 {
		w.t.Fatalf("unexpected work: turns %v, activities %v", w.turns, w.activities)
	}
}

// Respond completes the turn with the response r, and returns the error of the engine.
func (t *Turn) Respond(r *protos.WorkflowResponse) error {
	r.InstanceId, r.CompletionToken = t.GetInstanceId(), t.Token
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return t.w.engine.CompleteTurn(ctx, t.w.app, r)
}

// Do answers the turn with actions.
func (t *Turn) Do(actions ...*protos.WorkflowAction) {
	t.w.t.Helper()
	if err := t.Respond(&protos.WorkflowResponse{Actions: actions}); err != nil {
		t.w.t.Fatalf("answering a turn of %s: %v", t.GetInstanceId(), err)
	}
}

// Respond answers the activity.
func (a *Activity) Respond(r *protos.ActivityResponse) {
	a.w.t.Helper()
	r.InstanceId, r.TaskId, r.CompletionToken = a.GetWorkflowInstance().GetInstanceId(), a.GetTaskId(), a.Token
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := a.w.engine.CompleteActivity(ctx, a.w.app, r); err != nil {
		a.w.t.Fatalf("answering activity %s: %v", a.GetName(), err)
	}
}

// Return answers the activity with a result.
func (a *Activity) Return(result string) {
	a.w.t.Helper()
	a.Respond(&protos.ActivityResponse{Result: wrapperspb.String(result)})
}

// Fail answers the activity with a failure.
func (a *Activity) Fail(message string) {
	a.w.t.Helper()
	a.Respond(&protos.ActivityResponse{FailureDetails: &protos.TaskFailureDetails{ErrorType: "Test",
		ErrorMessage: message}})
}

// Call returns the action that schedules an activity.
func Call(id int32, name string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_ScheduleTask{
		ScheduleTask: &protos.ScheduleTaskAction{Name: name, TaskExecutionId: name}}}
}

// Sleep returns the action that creates a timer.
func Sleep(id int32, d time.Duration) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_CreateTimer{
		CreateTimer: &protos.CreateTimerAction{FireAt: timestamppb.New(time.Now().Add(d))}}}
}

// Await returns the action that creates the timer of a wait for an external event. The wait times out after d.
func Await(id int32, event string, d time.Duration) *protos.WorkflowAction {
	a := Sleep(id, d)
	a.GetCreateTimer().Origin = &protos.CreateTimerAction_ExternalEvent{
		ExternalEvent: &protos.TimerOriginExternalEvent{Name: event}}
	return a
}

// Child returns the action that starts a child workflow.
func Child(id int32, name, instance string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_CreateChildWorkflow{
		CreateChildWorkflow: &protos.CreateChildWorkflowAction{Name: name, InstanceId: instance}}}
}

// Detach returns the action that starts a workflow without a parent.
func Detach(id int32, name, instance string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_CreateDetachedWorkflow{
		CreateDetachedWorkflow: &protos.CreateDetachedWorkflowAction{Name: name, InstanceId: instance}}}
}

// Send returns the action that sends an external event to another workflow.
func Send(id int32, instance, event, data string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_SendEvent{
		SendEvent: &protos.SendEventAction{Instance: &protos.WorkflowInstance{InstanceId: instance}, Name: event,
			Data: wrapperspb.String(data)}}}
}

// Kill returns the action that terminates another workflow and its children.
func Kill(id int32, instance string) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_TerminateWorkflow{
		TerminateWorkflow: &protos.TerminateWorkflowAction{InstanceId: instance, Recurse: true}}}
}

// Complete returns the action that completes the workflow with a result.
func Complete(id int32, result string) *protos.WorkflowAction {
	return End(id, protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED, result)
}

// End returns the action that ends the workflow with a status. With the status CONTINUED_AS_NEW, the workflow starts
// again: result is its next input, and carried contains the events that it keeps.
func End(id int32, s protos.OrchestrationStatus, result string,
	carried ...*protos.HistoryEvent) *protos.WorkflowAction {
	return &protos.WorkflowAction{Id: id, WorkflowActionType: &protos.WorkflowAction_CompleteWorkflow{
		CompleteWorkflow: &protos.CompleteWorkflowAction{WorkflowStatus: s, Result: wrapperspb.String(result),
			CarryoverEvents: carried}}}
}

// In sets app as the target application of the action a, and returns this action.
func In(app string, a *protos.WorkflowAction) *protos.WorkflowAction {
	a.Router = &protos.TaskRouter{TargetAppID: proto.String(app)}
	return a
}

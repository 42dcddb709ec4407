package grpc_test

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/internal/testutil"
)

// A worker does not repeat an answer that was refused because it exceeds a limit. So a turn is handed out again, an
// activity fails, and in both cases the workflow continues.
func TestTaskHub_AnswersAboveLimitsLeaveNothingStuck(t *testing.T) {
	withHuge(t, checkLimits)
}

// A late answer of an earlier attempt that exceeds a limit does not end the current attempt of another worker.
func TestTaskHub_LateAnswerAboveLimitsEndsNoOther(t *testing.T) {
	withHuge(t, checkLateAnswer)
}

// withHuge runs a test with texts that exceed the limit of a message in different ways.
func withHuge(t *testing.T, check func(t *testing.T, huge string, options ...grpc.CallOption)) {
	t.Helper()
	noise, random := make([]byte, 8<<20), rand.New(rand.NewPCG(1, 2)) //nolint:gosec // for a test
	for n := range noise {
		noise[n] = '0' + byte(random.UintN(64))
	}
	even, packed := strings.Repeat("x", 5<<20), grpc.UseCompressor(gzip.Name)
	for name, c := range map[string]struct {
		huge    string
		options []grpc.CallOption
	}{
		"plain":                {even, nil},
		"compressed":           {even, []grpc.CallOption{packed}},
		"too large compressed": {string(noise), []grpc.CallOption{packed}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			check(t, c.huge, c.options...)
		})
	}
}

func checkLateAnswer(t *testing.T, huge string, options ...grpc.CallOption) {
	t.Helper()
	f := newFixture(t)
	hub := protos.NewTaskHubSidecarServiceClient(f.serve(t))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	work, err := hub.GetWorkItems(ctx, &protos.GetWorkItemsRequest{})
	testutil.Must(t, err)
	testutil.Must(t, f.Workflows.Start(ctx, f.App.ID, &protos.CreateInstanceRequest{InstanceId: "i", Name: "order"}))
	turn, err := work.Recv()
	testutil.Must(t, err)
	pay := &protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_ScheduleTask{
		ScheduleTask: &protos.ScheduleTaskAction{Name: "pay"}}}
	late := &protos.WorkflowResponse{InstanceId: "i", CustomStatus: wrapperspb.String(huge), CompletionToken: "late"}
	if _, err = hub.CompleteWorkflowTask(ctx, late, options...); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the late answer: %v", err)
	}
	_, err = hub.CompleteWorkflowTask(ctx, &protos.WorkflowResponse{InstanceId: "i",
		Actions: []*protos.WorkflowAction{pay}, CompletionToken: turn.GetCompletionToken()})
	testutil.Must(t, err)
	a, err := work.Recv()
	testutil.Must(t, err)
	if a.GetActivityRequest() == nil {
		t.Fatalf("the turn is handed out again: %v", a)
	}
	result := &protos.ActivityResponse{InstanceId: "i", TaskId: a.GetActivityRequest().GetTaskId(),
		Result: wrapperspb.String(huge), CompletionToken: "late"}
	if _, err = hub.CompleteActivityTask(ctx, result, options...); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the late result: %v", err)
	}
	result.Result, result.CompletionToken = nil, a.GetCompletionToken()
	_, err = hub.CompleteActivityTask(ctx, result)
	testutil.Must(t, err)
	turn, err = work.Recv()
	testutil.Must(t, err)
	for _, e := range turn.GetWorkflowRequest().GetNewEvents() {
		if e.GetTaskFailed() != nil {
			t.Errorf("the activity has failed: %v", e)
		}
	}
}

// checkLimits lets a worker send answers with the text huge, and then answers within the limits.
func checkLimits(t *testing.T, huge string, options ...grpc.CallOption) {
	t.Helper()
	f := newFixture(t)
	hub := protos.NewTaskHubSidecarServiceClient(f.serve(t))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	work, err := hub.GetWorkItems(ctx, &protos.GetWorkItemsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	start := &protos.CreateInstanceRequest{InstanceId: "i", Name: "order"}
	if err := f.Workflows.Start(ctx, f.App.ID, start); err != nil {
		t.Fatal(err)
	}
	next := func() *protos.WorkItem {
		item, err := work.Recv()
		if err != nil {
			t.Fatal(err)
		}
		return item
	}
	call := &protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_ScheduleTask{
		ScheduleTask: &protos.ScheduleTaskAction{Name: "pay", Input: wrapperspb.String(huge)}}}
	many := make([]*protos.WorkflowAction, 10_001)
	for n := range many {
		many[n] = &protos.WorkflowAction{Id: int32(n)} //nolint:gosec // few
	}
	for what, actions := range map[string][]*protos.WorkflowAction{"huge": {call}, "many": many} {
		turn := next()
		_, err = hub.CompleteWorkflowTask(ctx, &protos.WorkflowResponse{InstanceId: "i", Actions: actions,
			CompletionToken: turn.GetCompletionToken()}, options...)
		if err == nil {
			t.Errorf("%s: the answer was accepted", what)
		}
	}
	turn := next() // the third attempt
	call.GetScheduleTask().Input = nil
	if _, err = hub.CompleteWorkflowTask(ctx, &protos.WorkflowResponse{InstanceId: "i",
		Actions: []*protos.WorkflowAction{call}, CompletionToken: turn.GetCompletionToken()}); err != nil {
		t.Fatal(err)
	}
	a := next()
	_, err = hub.CompleteActivityTask(ctx, &protos.ActivityResponse{InstanceId: "i",
		TaskId: a.GetActivityRequest().GetTaskId(), Result: wrapperspb.String(huge),
		CompletionToken: a.GetCompletionToken()}, options...)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the result: %v", err)
	}
	for {
		for _, e := range next().GetWorkflowRequest().GetNewEvents() {
			if d := e.GetTaskFailed().GetFailureDetails(); d != nil {
				if d.GetErrorType() != "ResultTooLarge" || !strings.Contains(d.GetErrorMessage(), "larger than max") {
					t.Errorf("the activity has failed with %v", d)
				}
				return
			}
		}
	}
}

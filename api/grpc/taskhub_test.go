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
)

// A worker does not answer again after its answer was refused, because it exceeds a limit. The turn comes again, and
// the activity fails, so the workflow goes on.
func TestTaskHub_AnswersAboveLimitsLeaveNothingStuck(t *testing.T) {
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
			checkLimits(t, c.huge, c.options...)
		})
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
	turn := next() // the third time
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

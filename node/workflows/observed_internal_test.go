package workflows

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow"
)

// endless is an engine whose stream returns a new activity for each call of Next.
type endless struct {
	workflow.Engine
	handed int
}

func (e *endless) Work(context.Context, string, workflow.Worker) (workflow.Stream, error) {
	return e, nil
}

func (e *endless) CompleteActivity(context.Context, string, *protos.ActivityResponse) error {
	return nil
}

func (e *endless) Next(context.Context) (*protos.WorkItem, error) {
	e.handed++
	return &protos.WorkItem{CompletionToken: strconv.Itoa(e.handed), Request: &protos.WorkItem_ActivityRequest{
		ActivityRequest: &protos.ActivityRequest{Name: "pay"}}}, nil
}

func (e *endless) Close() {}

// executions counts the executed activities.
type executions int

func (*executions) WorkflowOperation(string, bool, time.Duration) {}

func (n *executions) ActivityExecuted(string, bool, time.Duration) { *n++ }

// A worker may never complete an activity under the token that it got, for example if the leader dispatches the
// activity again. Even after many such tokens, other activities are reported.
func TestObserved_ReportsAfterManyLostActivities(t *testing.T) {
	var n executions
	e := Observed(&endless{}, &n)
	stream, err := e.Work(t.Context(), "shop", workflow.Worker{})
	if err != nil {
		t.Fatal(err)
	}
	token := ""
	for range maxObserved + 1 {
		item, err := stream.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		token = item.GetCompletionToken()
	}
	if err := e.CompleteActivity(t.Context(), "shop", &protos.ActivityResponse{CompletionToken: token}); err != nil {
		t.Fatal(err)
	}
	if n != 1 {
		t.Errorf("%d activities were reported", n)
	}
	if o := e.(*observed); len(o.began) != maxObserved-1 {
		t.Errorf("%d activities are remembered", len(o.began))
	}
	stream.Close()
	if o := e.(*observed); len(o.began) != 0 {
		t.Errorf("%d activities are remembered after the end of the stream", len(o.began))
	}
}

package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/workflow"
	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// workflowsOf returns the workflows and activities of the test. They count the attempts of an activity in attempts.
func workflowsOf(t *testing.T, attempts *atomic.Int64) *workflow.Registry {
	t.Helper()
	r := workflow.NewRegistry()
	add := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	add(r.AddActivityN("double", func(ctx workflow.ActivityContext) (any, error) {
		var n int
		if err := ctx.GetInput(&n); err != nil {
			return nil, err
		}
		return 2 * n, nil
	}))
	add(r.AddActivityN("flaky", func(workflow.ActivityContext) (any, error) {
		if attempts.Add(1) < 3 {
			return nil, errors.New("not yet")
		}
		return "done", nil
	}))
	add(r.AddWorkflowN("chain", func(ctx *workflow.WorkflowContext) (any, error) {
		n := 1
		for range 5 {
			if err := ctx.CallActivity("double", workflow.WithActivityInput(n)).Await(&n); err != nil {
				return nil, err
			}
		}
		return n, nil
	}))
	add(r.AddWorkflowN("fanout", func(ctx *workflow.WorkflowContext) (any, error) {
		var tasks []workflow.Task
		for i := range 20 {
			tasks = append(tasks, ctx.CallActivity("double", workflow.WithActivityInput(i)))
		}
		sum := 0
		for _, task := range tasks {
			var n int
			if err := task.Await(&n); err != nil {
				return nil, err
			}
			sum += n
		}
		return sum, nil
	}))
	add(r.AddWorkflowN("timer", func(ctx *workflow.WorkflowContext) (any, error) {
		return "slept", ctx.CreateTimer(300 * time.Millisecond).Await(nil)
	}))
	add(r.AddWorkflowN("event", func(ctx *workflow.WorkflowContext) (any, error) {
		var text string
		err := ctx.WaitForExternalEvent("go", time.Hour).Await(&text)
		return text, err
	}))
	add(r.AddWorkflowN("parent", func(ctx *workflow.WorkflowContext) (any, error) {
		var n int
		err := ctx.CallChildWorkflow("chain").Await(&n)
		return n + 1, err
	}))
	add(r.AddWorkflowN("again", func(ctx *workflow.WorkflowContext) (any, error) {
		var n int
		if err := ctx.GetInput(&n); err != nil {
			return nil, err
		}
		if n < 5 {
			ctx.ContinueAsNew(n + 1)
			return nil, nil
		}
		return n, nil
	}))
	add(r.AddWorkflowN("retries", func(ctx *workflow.WorkflowContext) (any, error) {
		var text string
		err := ctx.CallActivity("flaky", workflow.WithActivityRetryPolicy(&workflow.RetryPolicy{MaxAttempts: 5,
			InitialRetryInterval: 10 * time.Millisecond})).Await(&text)
		return text, err
	}))
	return r
}

// playWorkflows runs the workflows with the public Go SDK. The clients call different nodes.
func playWorkflows(t *testing.T, conns ...*grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testutil.Patience)
	t.Cleanup(cancel)
	var attempts atomic.Int64
	clients := make([]*workflow.Client, len(conns))
	for i, conn := range conns {
		clients[i] = workflow.NewClient(conn)
	}
	if err := clients[0].StartWorker(ctx, workflowsOf(t, &attempts)); err != nil {
		t.Fatal(err)
	}
	other := clients[len(clients)-1]
	run := func(name, want string, o ...workflow.NewWorkflowOptions) string {
		t.Helper()
		id, err := other.ScheduleWorkflow(ctx, name, o...)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if name == "event" {
			if err := other.RaiseEvent(ctx, id, "go", workflow.WithEventPayload("now")); err != nil {
				t.Fatal(err)
			}
		}
		state, err := other.WaitForWorkflowCompletion(ctx, id, workflow.WithFetchPayloads(true))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := state.Output.GetValue(); got != want || state.RuntimeStatus != workflow.StatusCompleted {
			t.Errorf("%s: output %s, want %s; %v", name, got, want, state)
		}
		return id
	}
	id := run("chain", "32")
	run("fanout", "380")
	run("timer", `"slept"`)
	run("event", `"now"`)
	run("parent", "33")
	run("again", "5", workflow.WithInput(0))
	run("retries", `"done"`)
	if n := attempts.Load(); n != 3 {
		t.Errorf("the activity ran %d times, want 3", n)
	}
	if err := other.PurgeWorkflowState(ctx, id); err != nil {
		t.Error(err)
	}
	if _, err := other.FetchWorkflowMetadata(ctx, id); err == nil {
		t.Error("a purged instance is still there")
	}
	id, err := other.ScheduleWorkflow(ctx, "event")
	if err != nil {
		t.Fatal(err)
	}
	if err := other.SuspendWorkflow(ctx, id, "wait"); err != nil {
		t.Error(err)
	}
	if state, err := other.FetchWorkflowMetadata(ctx, id); err != nil || !strings.Contains(state.String(),
		"SUSPENDED") {
		t.Errorf("%v, %v", state, err)
	}
	if err := other.ResumeWorkflow(ctx, id, "go on"); err != nil {
		t.Error(err)
	}
	if err := other.TerminateWorkflow(ctx, id, workflow.WithOutput("stop")); err != nil {
		t.Error(err)
	}
	state, err := other.WaitForWorkflowCompletion(ctx, id, workflow.WithFetchPayloads(true))
	if err != nil || !strings.Contains(fmt.Sprint(state), "TERMINATED") || state.Output.GetValue() != `"stop"` {
		t.Errorf("%v, %v", state, err)
	}
}

func TestSDKWorkflows_RunOnOneNode(t *testing.T) {
	n := nodetest.Open(t, nodetest.Config(t))
	playWorkflows(t, connect(t, n.Addresses().GRPC[0]))
}

// The worker, the client and the data are on different nodes.
func TestSDKWorkflows_RunOnThreeNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) { c.App.ID = "shop" })
	playWorkflows(t, connect(t, nodes[0].Addresses().GRPC[0]), connect(t, nodes[2].Addresses().GRPC[0]))
}

// More callers wait for an instance than a server handles calls of one kind. The worker, which ends their wait, is
// connected to the same node. This node does not lead.
func TestWorkflows_WaitingCallersDoNotBlockTheWorker(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) { c.App.ID = "shop" })
	n := nodes[(nodetest.Leader(t, nodes)+1)%len(nodes)]
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	c := workflow.NewClient(connect(t, n.Addresses().GRPC[0]))
	const callers = 600
	var attempts atomic.Int64
	if err := c.StartWorker(ctx, workflowsOf(t, &attempts)); err != nil {
		t.Fatal(err)
	}
	id, err := c.ScheduleWorkflow(ctx, "event")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, callers)
	for range callers {
		go func() {
			_, err := c.WaitForWorkflowCompletion(ctx, id)
			ended <- err
		}()
	}
	if err := c.RaiseEvent(ctx, id, "go", workflow.WithEventPayload("now")); err != nil {
		t.Fatal(err)
	}
	for range callers {
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

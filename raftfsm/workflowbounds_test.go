package raftfsm_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/workflowtest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

// bounded is an engine with instances of a hostile application.
type bounded struct {
	*testing.T
	ctx context.Context
	e   workflow.Engine
}

func openBounded(t *testing.T) *bounded {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	t.Cleanup(cancel)
	return &bounded{t, ctx, flows(t, startCluster(t, 1, nil).running()[0])}
}

func (b *bounded) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bounded) start(id string) {
	b.Helper()
	b.must(b.e.Start(b.ctx, flowApp, &protos.CreateInstanceRequest{InstanceId: id, Name: "order"}))
}

func (b *bounded) raise(id string, size int) error {
	return b.e.Raise(b.ctx, flowApp, &protos.RaiseEventRequest{InstanceId: id, Name: "x",
		Input: wrapperspb.String(strings.Repeat("x", size))})
}

// flood raises events until the instance takes no more, and returns how many it has.
func (b *bounded) flood(id string, size int) (n int) {
	b.Helper()
	for {
		err := b.raise(id, size)
		if fault.Is(err, fault.Overloaded) {
			return n
		}
		b.must(err)
		if n++; n*size > 128<<20 {
			b.Fatalf("the instance has taken %d events of %d bytes", n, size)
		}
	}
}

func TestWorkflows_UnhandledEventsAreBounded(t *testing.T) {
	testutil.SkipUnderRace(t, testutil.ManyBytes)
	b := openBounded(t)
	for _, id := range []string{"drained", "terminated", "purged"} {
		b.start(id)
		if n := b.flood(id, 1<<20); n < 20 || n > 40 {
			t.Errorf("%s has taken %d events of 1 MiB", id, n)
		}
	}
	if err := b.raise("drained", 17<<20); !fault.Is(err, fault.TooLarge) {
		t.Errorf("an event of 17 MiB: %v", err)
	}
	// an instance that is full can be ended and removed
	for range 3 {
		b.must(b.e.Terminate(b.ctx, flowApp, &protos.TerminateRequest{InstanceId: "terminated", Recursive: true}))
	}
	_, err := b.e.Wait(b.ctx, flowApp, "terminated", workflow.Completed, false)
	b.must(err)
	_, err = b.e.Purge(b.ctx, flowApp, "purged", true, true)
	b.must(err)
	// a worker gets the events in parts, and results arrive at a full instance
	w := workflowtest.Connect(t, b.e, flowApp)
	turn := w.Turn("drained")
	events, parts := len(turn.GetNewEvents())-2, 1
	turn.Do(workflowtest.Call(0, "pay"), workflowtest.Sleep(1, 0))
	b.must(b.raise("drained", 1<<20))
	w.Activity("pay").Return("paid")
	for done := map[string]bool{}; len(done) < 2 || events < 20; parts++ {
		turn = w.Turn("drained")
		size := 0
		for _, e := range turn.GetNewEvents() {
			switch {
			case e.GetEventRaised() != nil:
				events++
				size += len(e.GetEventRaised().GetInput().GetValue())
			case e.GetTaskCompleted() != nil:
				done["task"] = true
			case e.GetTimerFired() != nil:
				done["timer"] = true
			}
		}
		if size > 17<<20 {
			t.Errorf("a turn has %d bytes of new events", size)
		}
		turn.Do()
	}
	if parts < 2 {
		t.Errorf("%d parts", parts)
	}
}

// More messages than a leader keeps in memory are all sent.
func TestWorkflows_ManyMessagesArrive(t *testing.T) {
	b := openBounded(t)
	w := workflowtest.Connect(t, b.e, flowApp)
	b.start("a")
	actions := make([]*protos.WorkflowAction, 6000)
	for n := range actions {
		bank := workflowtest.Detach(int32(n), "audit", fmt.Sprint("d", n))
		actions[n] = workflowtest.In("bank", bank)
	}
	w.Turn("a").Do(actions...)
	for last := 0; last < len(actions); {
		b.must(b.ctx.Err())
		last = 0
		for after, more := "", true; more; more = after != "" {
			page, next, err := b.e.List(b.ctx, "bank", workflow.Filter{}, after, 1000)
			b.must(err)
			last, after = last+len(page), next
		}
	}
}

// An event for an instance that takes no more events is dropped, so that other messages are sent.
func TestWorkflows_FullTargetsStopNothing(t *testing.T) {
	b := openBounded(t)
	w := workflowtest.Connect(t, b.e, flowApp)
	b.must(b.e.Start(b.ctx, flowApp, &protos.CreateInstanceRequest{InstanceId: "full", Name: "order"}))
	w.Turn("full") // the worker keeps it
	b.flood("full", 1<<20)
	b.start("a")
	w.Turn("a").Do(workflowtest.Send(0, "full", "x", "dropped"), workflowtest.Detach(1, "audit", "d"),
		workflowtest.Kill(2, "full"))
	w.Turn("d").Do(workflowtest.Complete(0, ""))
	_, err := b.e.Wait(b.ctx, flowApp, "full", workflow.Completed, false) // the termination comes after the event
	b.must(err)
}

// A history that grows without end stalls its workflow, which can still be removed by one entry.
func TestWorkflows_HistoriesAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("writes some 100 MiB")
	}
	b := openBounded(t)
	w := workflowtest.Connect(t, b.e, flowApp)
	stalls := func(id string) {
		t.Helper()
		st, err := b.e.State(b.ctx, flowApp, id, false)
		b.must(err)
		if st.GetWorkflowStatus() != protos.OrchestrationStatus_ORCHESTRATION_STATUS_STALLED {
			t.Errorf("%s is %s", id, st.GetWorkflowStatus())
		}
		if err := b.raise(id, 1); !fault.Is(err, fault.Invalid) {
			t.Errorf("an event for stalled %s: %v", id, err)
		}
		n, err := b.e.Purge(b.ctx, flowApp, id, true, true)
		if b.must(err); n != 1 {
			t.Errorf("%d removed", n)
		}
	}
	b.start("bytes")
	for n := range int32(6) {
		w.Turn("bytes").Do(workflowtest.Call(n, "pay"))
		w.Activity("pay").Return(strings.Repeat("x", 10<<20))
		if n == 4 {
			break
		}
	}
	w.Turn("bytes").Do() // has the fifth result
	stalls("bytes")
	long := strings.Repeat("l", 1000)
	b.start(long)
	for turn := range int32(5) {
		actions := make([]*protos.WorkflowAction, 9999)
		for n := range actions {
			actions[n] = workflowtest.Sleep(turn*10_000+int32(n), time.Hour)
			if n%2 == 0 {
				actions[n] = workflowtest.Call(turn*10_000+int32(n), "unserved")
				actions[n] = workflowtest.In("nobody", actions[n])
			}
		}
		actions = append(actions, workflowtest.Sleep(turn*10_000+9999, 0))
		w.Turn(long).Do(actions...)
	}
	stalls(long)
	b.start(long) // its history is shorter after each step, but its activities stay
	for turn := range 6 {
		actions := make([]*protos.WorkflowAction, 9999)
		for n := range actions {
			actions[n] = workflowtest.In("nobody", workflowtest.Call(int32(n), "unserved"))
		}
		end := protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW
		if turn == 5 {
			end = protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED
		}
		w.Turn(long).Do(append(actions, workflowtest.End(9999, end, ""))...)
	}
	n, err := b.e.Purge(b.ctx, flowApp, long, true, false)
	if b.must(err); n != 1 {
		t.Errorf("%d removed", n)
	}
}

// Turns that a worker has not answered keep their histories in the memory of the leader. So the leader hands out only
// as many turns as fit into its bound.
func TestWorkflows_HistoriesOfOpenTurnsAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("writes some 100 MiB")
	}
	b := openBounded(t)
	w := workflowtest.Connect(t, b.e, flowApp)
	ids := []string{"a", "b", "c", "d"}
	for _, id := range ids {
		b.start(id)
		for n := range int32(3) {
			w.Turn(id).Do(workflowtest.Call(n, "pay"))
			w.Activity("pay").Return(strings.Repeat("x", 10<<20))
		}
		w.Turn(id).Do()
	}
	for _, id := range ids {
		b.must(b.raise(id, 1))
	}
	first, second := w.Turn("a"), w.Turn("b")
	w.Idle()
	first.Do(workflowtest.Complete(9, ""))
	third := w.Turn("c")
	w.Idle()
	second.Do(workflowtest.Complete(9, ""))
	w.Turn("d").Do(workflowtest.Complete(9, ""))
	third.Do(workflowtest.Complete(9, ""))
	for _, id := range ids {
		_, err := b.e.Wait(b.ctx, flowApp, id, workflow.Completed, false)
		b.must(err)
	}
}

// Instances that end while no worker is connected have the retention of the newest worker.
func TestWorkflows_RetentionWithoutAWorker(t *testing.T) {
	b := openBounded(t)
	w := workflowtest.ConnectAs(t, b.e, flowApp, workflow.Worker{Retention: workflow.Retention{Terminated: 1}})
	b.start("a")
	w.Turn("a").Do()
	w.Disconnect()
	b.must(b.e.Terminate(b.ctx, flowApp, &protos.TerminateRequest{InstanceId: "a"}))
	for {
		_, err := b.e.State(b.ctx, flowApp, "a", false)
		if fault.Is(err, fault.NotFound) {
			return
		}
		b.must(err)
	}
}

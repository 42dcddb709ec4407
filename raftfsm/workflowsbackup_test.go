package raftfsm_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// leaveUnfinished starts instances of which one has ended, one waits for an event, one for a timer, and one for a
// worker.
func leaveUnfinished(t *testing.T, h *raftfsm.Host) {
	t.Helper()
	e := h.Workflows(workflows.BrokerOptions{})
	ctx := within(t, time.Minute)
	working, stop := context.WithCancel(ctx)
	var workers sync.WaitGroup
	workers.Go(func() { newWorker(t, e).work(working) })
	startFlow(t, ctx, e, "ended", "chain:2")
	startFlow(t, ctx, e, "event", "event:go")
	startFlow(t, ctx, e, "timer", "timer:300")
	output(t, ctx, e, "ended")
	for _, id := range []string{"event", "timer"} {
		if _, err := e.Wait(ctx, flowApp, id, workflow.Started, false); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	workers.Wait()
	startFlow(t, ctx, e, "worker", "child:2")
	must(t, e.Close())
}

// finishAll runs the instances of leaveUnfinished to their ends.
func finishAll(t *testing.T, h *raftfsm.Host) {
	t.Helper()
	e := flows(t, h)
	ctx, stop := context.WithCancel(within(t, time.Minute))
	w := newWorker(t, e)
	var workers sync.WaitGroup
	workers.Go(func() { w.work(ctx) })
	must(t, e.Raise(ctx, flowApp, &protos.RaiseEventRequest{InstanceId: "event", Name: "go"}))
	for id, want := range map[string]string{"ended": "3", "event": "raised", "timer": "fired", "worker": "6"} {
		if got := output(t, ctx, e, id); got != want {
			t.Errorf("instance %s: %q, want %q", id, got, want)
		}
	}
	stop()
	workers.Wait()
	if n := w.runs.Load(); n != 4 { // of the children of "worker"; those of "ended" ran before
		t.Errorf("%d activities ran, want 4", n)
	}
}

func TestRestore_KeepsWorkflows(t *testing.T) {
	t.Parallel()
	partitions := func(o *raftfsm.Options) { o.Partitions = 2 }
	from := startCluster(t, 1, partitions).running()[0]
	leaveUnfinished(t, from)
	to := startCluster(t, 3, partitions)
	restore(t, to.leader(), save(t, from))
	finishAll(t, to.leader())
	sameState(t, to.running()...)
}

func TestRescue_KeepsWorkflows(t *testing.T) {
	t.Parallel()
	dirs := map[string]string{}
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2; dirs[o.NodeID] = o.Dir })
	lead := c.leader()
	leaveUnfinished(t, lead)
	finishAll(t, rescueOther(t, c, lead, dirs))
}

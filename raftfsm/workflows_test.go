package raftfsm_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/workflowtest"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// flowApp is the application of the workflows of these tests.
const flowApp = "shop"

// worker runs the workflows of these tests: a workflow with the name chain:n runs n activities one after another,
// fan:n runs n at a time, timer:ms waits, event:name waits for an event, child:n runs n children chain:2, and again:n
// continues as new n times. The output is the sum of the results, and an activity returns its input plus one.
type worker struct {
	t       testing.TB
	engine  workflow.Engine
	slow    time.Duration
	mu      *sync.Mutex
	running map[string][]*atomic.Bool // executions of an activity at the moment, and whether their stream lives
	double  *atomic.Int64             // executions that began while another one ran
	runs    *atomic.Int64
}

func newWorker(t testing.TB, e workflow.Engine) *worker {
	return &worker{t: t, engine: e, mu: &sync.Mutex{}, running: map[string][]*atomic.Bool{}, double: &atomic.Int64{},
		runs: &atomic.Int64{}}
}

// work serves a stream until ctx ends. It opens another one if the engine ends it.
func (w *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		s, err := w.engine.Work(ctx, flowApp, workflow.Worker{})
		if err != nil {
			continue
		}
		w.serve(ctx, s)
		s.Close()
	}
}

func (w *worker) serve(ctx context.Context, s workflow.Stream) {
	var running sync.WaitGroup
	defer running.Wait()
	lives := &atomic.Bool{}
	lives.Store(true)
	defer lives.Store(false)
	for {
		i, err := s.Next(ctx)
		if err != nil {
			return
		}
		raw, err := proto.Marshal(i)
		if err != nil {
			w.t.Error(err)
			return
		}
		one := &protos.WorkItem{}
		if err := proto.Unmarshal(raw, one); err != nil {
			w.t.Error(err)
			return
		}
		running.Go(func() { w.item(ctx, one, lives) })
	}
}

func (w *worker) item(ctx context.Context, i *protos.WorkItem, lives *atomic.Bool) {
	if a := i.GetActivityRequest(); a != nil {
		key := a.GetWorkflowInstance().GetInstanceId() + "/" + a.GetTaskExecutionId()
		w.mu.Lock()
		for _, other := range w.running[key] {
			if other.Load() {
				w.double.Add(1)
			}
		}
		w.running[key] = append(w.running[key], lives)
		w.mu.Unlock()
		w.runs.Add(1)
		if w.slow > 0 {
			<-time.After(w.slow)
		}
		w.mu.Lock()
		w.running[key] = slices.DeleteFunc(w.running[key], func(o *atomic.Bool) bool { return o == lives })
		w.mu.Unlock()
		n, _ := strconv.Atoi(a.GetInput().GetValue())
		_ = w.engine.CompleteActivity(ctx, flowApp, &protos.ActivityResponse{InstanceId: a.GetWorkflowInstance().
			GetInstanceId(), TaskId: a.GetTaskId(), Result: wrapperspb.String(strconv.Itoa(n + 1)),
			CompletionToken: i.GetCompletionToken()})
		return
	}
	r := i.GetWorkflowRequest()
	err := w.engine.CompleteTurn(ctx, flowApp, &protos.WorkflowResponse{InstanceId: r.GetInstanceId(),
		CompletionToken: i.GetCompletionToken(), Actions: decide(r)})
	if err != nil && ctx.Err() == nil && !fault.Is(err, fault.Unavailable) {
		w.t.Errorf("turn of %s: %v", r.GetInstanceId(), err)
	}
}

// decide is the code of the workflows.
func decide(r *protos.WorkflowRequest) (actions []*protos.WorkflowAction) {
	var name, input string
	scheduled, done, sum := 0, 0, 0
	fired, ended := false, false
	events := map[string]int{}
	for _, e := range append(r.GetPastEvents(), r.GetNewEvents()...) {
		switch {
		case e.GetExecutionStarted() != nil:
			name, input = e.GetExecutionStarted().GetName(), e.GetExecutionStarted().GetInput().GetValue()
		case e.GetTaskScheduled() != nil, e.GetTimerCreated() != nil, e.GetChildWorkflowInstanceCreated() != nil:
			scheduled++
		case e.GetTaskCompleted() != nil:
			n, _ := strconv.Atoi(e.GetTaskCompleted().GetResult().GetValue())
			done, sum = done+1, sum+n
		case e.GetChildWorkflowInstanceCompleted() != nil:
			n, _ := strconv.Atoi(e.GetChildWorkflowInstanceCompleted().GetResult().GetValue())
			done, sum = done+1, sum+n
		case e.GetTimerFired() != nil:
			fired = true
		case e.GetEventRaised() != nil:
			events[e.GetEventRaised().GetName()]++
		case e.GetExecutionTerminated() != nil:
			ended = true
		}
	}
	if ended {
		return nil
	}
	kind, arg, _ := strings.Cut(name, ":")
	n, _ := strconv.Atoi(arg)
	finish := func(output string) {
		actions = append(actions, &protos.WorkflowAction{Id: int32(scheduled), WorkflowActionType: //nolint:gosec // few
		&protos.WorkflowAction_CompleteWorkflow{CompleteWorkflow: &protos.CompleteWorkflowAction{
			WorkflowStatus: protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED,
			Result:         wrapperspb.String(output)}}})
	}
	task := func() {
		actions = append(actions, &protos.WorkflowAction{Id: int32(scheduled), WorkflowActionType: //nolint:gosec // few
		&protos.WorkflowAction_ScheduleTask{ScheduleTask: &protos.ScheduleTaskAction{Name: "add",
			TaskExecutionId: fmt.Sprint(r.GetExecutionId().GetValue(), "-", scheduled),
			Input:           wrapperspb.String(strconv.Itoa(scheduled))}}})
		scheduled++
	}
	switch {
	case kind == "chain" && done == n, kind == "fan" && done == n, kind == "child" && done == n:
		finish(strconv.Itoa(sum))
	case kind == "chain" && scheduled == done:
		task()
	case kind == "fan" && scheduled == 0:
		for range n {
			task()
		}
	case kind == "timer" && fired:
		finish("fired")
	case kind == "timer" && scheduled == 0:
		actions = append(actions, &protos.WorkflowAction{WorkflowActionType: &protos.WorkflowAction_CreateTimer{
			CreateTimer: &protos.CreateTimerAction{
				FireAt: timestamppb.New(time.Now().Add(time.Duration(n) * time.Millisecond))}}})
	case kind == "event" && events[arg] > 0:
		finish("raised")
	case kind == "child" && scheduled == 0:
		for range n {
			actions = append(actions, &protos.WorkflowAction{Id: int32(scheduled), //nolint:gosec // few
				WorkflowActionType: &protos.WorkflowAction_CreateChildWorkflow{
					CreateChildWorkflow: &protos.CreateChildWorkflowAction{
						Name: "chain:2"}}})
			scheduled++
		}
	case kind == "again":
		if left, _ := strconv.Atoi(input); input == "" || left > 0 {
			if input == "" {
				left = n
			}
			actions = append(actions, &protos.WorkflowAction{
				WorkflowActionType: &protos.WorkflowAction_CompleteWorkflow{
					CompleteWorkflow: &protos.CompleteWorkflowAction{
						WorkflowStatus: protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW,
						Result:         wrapperspb.String(strconv.Itoa(left - 1))}}})
			return actions
		}
		finish("over")
	}
	return actions
}

func flows(t testing.TB, h *raftfsm.Host) *workflows.Broker {
	b := h.Workflows(workflows.BrokerOptions{})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func startFlow(t testing.TB, ctx context.Context, e workflow.Engine, id, name string) {
	t.Helper()
	if err := e.Start(ctx, flowApp, &protos.CreateInstanceRequest{InstanceId: id, Name: name}); err != nil {
		t.Fatalf("starting %s: %v", id, err)
	}
}

func output(t testing.TB, ctx context.Context, e workflow.Engine, id string) string {
	t.Helper()
	s, err := e.Wait(ctx, flowApp, id, workflow.Completed, true)
	if err != nil {
		t.Fatalf("waiting for %s: %v", id, err)
	}
	if s.GetWorkflowStatus() != protos.OrchestrationStatus_ORCHESTRATION_STATUS_COMPLETED {
		t.Fatalf("%s ended with %v", id, s)
	}
	return s.GetOutput().GetValue()
}

func TestWorkflows_RunOnOneServer(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	e := flows(t, c.running()[0])
	ctx, cancel := context.WithCancel(within(t, time.Minute))
	w := newWorker(t, e)
	var working sync.WaitGroup
	working.Go(func() { w.work(ctx) })
	defer working.Wait()
	defer cancel()
	for name, want := range map[string]string{"chain:5": "15", "fan:10": "55", "timer:50": "fired", "child:3": "9",
		"again:4": "over", "event:go": "raised"} {
		startFlow(t, ctx, e, "id-"+name, name)
		if name == "event:go" {
			must(t, e.Raise(ctx, flowApp, &protos.RaiseEventRequest{InstanceId: "id-" + name, Name: "go"}))
		}
		if got := output(t, ctx, e, "id-"+name); got != want {
			t.Errorf("%s returned %q, want %q", name, got, want)
		}
	}
	page, next, err := e.List(ctx, flowApp, workflow.Filter{}, "", 100)
	must(t, err)
	if len(page) != 9 || next != "" { // with three children
		t.Errorf("the list has %d instances and continues with %q", len(page), next)
	}
	removed, err := e.Purge(ctx, flowApp, "id-child:3", true, false)
	must(t, err)
	if removed != 4 {
		t.Errorf("%d instances were removed", removed)
	}
	if _, err := e.State(ctx, flowApp, "id-child:3", false); !fault.Is(err, fault.NotFound) {
		t.Errorf("the state of a removed instance: %v", err)
	}
}

// Workflows of every kind run while the leader changes, with workers on two nodes. Every acknowledged start completes
// with the exact result, and no activity runs twice at a time.
func TestWorkflows_SurviveChangesOfLeader(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *raftfsm.Options) { o.Partitions = 2 })
	side, _ := c.sidecar("side")
	ctx, cancel := context.WithCancel(within(t, 3*time.Minute))
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	nodes := append(c.running(), side)
	engines := make([]*workflows.Broker, len(nodes))
	first := newWorker(t, nil)
	for i, h := range nodes {
		engines[i] = flows(t, h)
		if i%2 == 1 {
			w := *first
			w.engine, w.slow = engines[i], 20*time.Millisecond
			working.Go(func() { w.work(ctx) })
		}
	}
	kinds := map[string]string{"chain:4": "10", "fan:6": "21", "timer:300": "fired", "child:2": "6", "again:3": "over",
		"event:go": "raised"}
	var starting sync.WaitGroup
	for name, want := range kinds {
		for n := range 6 {
			starting.Go(func() {
				e := engines[n%len(engines)]
				id := fmt.Sprintf("%s-%d", name, n)
				startFlow(t, ctx, e, id, name)
				if name == "event:go" {
					must(t, engines[(n+1)%len(engines)].Raise(ctx, flowApp, &protos.RaiseEventRequest{
						InstanceId: id, Name: "go"}))
				}
				if got := output(t, ctx, engines[(n+2)%len(engines)], id); got != want {
					t.Errorf("%s returned %q, want %q", id, got, want)
				}
			})
		}
	}
	for round := range 4 {
		<-time.After(300 * time.Millisecond)
		c.changeLeader(ctx, round%2 == 1)
	}
	starting.Wait()
	if n := first.double.Load(); n > 0 {
		t.Errorf("%d activities ran twice at a time", n)
	}
}

// BenchmarkWorkflows_Chain measures workflows of five activities, one after another, with different numbers of them
// at a time. The worker is in the same process.
func BenchmarkWorkflows_Chain(b *testing.B) {
	for _, parallel := range []int{1, 30, 350} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			c := startCluster(b, 1, nil)
			h := c.running()[0]
			e := flows(b, h)
			ctx, cancel := context.WithCancel(context.Background())
			w := newWorker(b, e)
			var working sync.WaitGroup
			working.Go(func() { w.work(ctx) })
			b.Cleanup(func() { cancel(); working.Wait() })
			var next atomic.Int64
			startFlow(b, ctx, e, "first", "chain:1")
			output(b, ctx, e, "first")
			before, used := h.Groups()[0].Status().AppliedIndex, processorTime()
			b.ResetTimer()
			var running sync.WaitGroup
			for range parallel {
				running.Go(func() {
					for {
						n := next.Add(1)
						if n > int64(b.N) {
							return
						}
						id := fmt.Sprint("w", n)
						startFlow(b, ctx, e, id, "chain:5")
						if got := output(b, ctx, e, id); got != "15" {
							b.Errorf("%s returned %s", id, got)
						}
					}
				})
			}
			running.Wait()
			b.StopTimer()
			b.ReportMetric(float64(h.Groups()[0].Status().AppliedIndex-before)/float64(b.N), "entries/op")
			b.ReportMetric(float64((processorTime()-used).Microseconds())/float64(b.N), "cpu-µs/op")
		})
	}
}

// processorTime returns the processor time of this process.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A client that terminates an instance with its children and purges it at once does not have to know when the children
// have ended.
func TestWorkflows_PurgeWaitsForTerminatedChildren(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	e := flows(t, c.running()[0])
	ctx := within(t, time.Minute)
	w := workflowtest.Connect(t, e, flowApp)
	startFlow(t, ctx, e, "root", "root")
	w.Turn("root").Do(workflowtest.Child(0, "leaf", "leaf"))
	w.Turn("leaf").Do()
	must(t, e.Terminate(ctx, flowApp, &protos.TerminateRequest{InstanceId: "root", Recursive: true}))
	w.Turn("root").Do()
	leaf := w.Turn("leaf") // so the termination has arrived, and the child has not ended
	var purging sync.WaitGroup
	purging.Go(func() {
		if removed, err := e.Purge(ctx, flowApp, "root", true, false); err != nil || removed != 2 {
			t.Errorf("the purge has removed %d instances: %v", removed, err)
		}
	})
	leaf.Do()
	purging.Wait()
}

package raftfsm_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/workflowtest"
	"github.com/quorate/quorate/raftfsm/workflows"
)

// recorder records spans. It is a workflow.Spans.
type recorder struct {
	mu    sync.Mutex
	begun int
	spans []*recorded
}

type recorded struct {
	workflow.SpanStart
	r     *recorder
	id    string
	ended bool
	err   error
}

func (r *recorder) Exports() bool { return true }

func (r *recorder) StartSpan(s workflow.SpanStart) workflow.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun++
	one := &recorded{SpanStart: s, r: r, id: s.ID}
	if one.id == "" {
		one.id = fmt.Sprintf("%016x", r.begun)
	}
	r.spans = append(r.spans, one)
	return one
}

func (s *recorded) Context() *protos.TraceContext {
	trace := strings.Repeat("1", 32)
	if s.Parent != nil {
		trace = s.Parent.GetTraceParent()[3:35]
	}
	return &protos.TraceContext{TraceParent: "00-" + trace + "-" + s.id + "-01"}
}

func (s *recorded) End(err error) {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.ended, s.err = true, err
}

// tree returns the path of each span in byte order: the names from the outermost parent to the span. Spans that have
// failed or still run are marked.
func (r *recorder) tree() (list []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.spans {
		path := s.Name
		if s.err != nil {
			path += " failed"
		}
		if !s.ended {
			path += " runs"
		}
		for at := s; at.Parent != nil; {
			up := slices.IndexFunc(r.spans, func(o *recorded) bool {
				return o.id == at.Parent.GetTraceParent()[36:52]
			})
			if up < 0 {
				path = "? > " + path
				break
			}
			at = r.spans[up]
			path = at.Name + " > " + path
		}
		list = append(list, path)
	}
	slices.Sort(list)
	return list
}

// Every start, instance, activity and timer has one span with the name that Dapr gives it. An activity that is handed
// out twice has two.
func TestWorkflows_MakeSpans(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	spans := &recorder{}
	e := c.running()[0].Workflows(workflows.BrokerOptions{Spans: spans})
	defer func() { must(t, e.Close()) }()
	ctx := context.Background()
	w := workflowtest.Connect(t, e, flowApp)
	must(t, e.Start(ctx, flowApp, &protos.CreateInstanceRequest{InstanceId: "i", Name: "order"}))
	w.Turn("i").Do(workflowtest.Call(0, "pay"), workflowtest.Sleep(1, time.Millisecond),
		workflowtest.Child(2, "ship", "c"))
	w.Turn("c").Do(workflowtest.Complete(0, "sent"))
	first := w.Activity("pay")
	w.Reconnect()
	again := w.Activity("pay")
	if a, b := first.GetParentTraceContext().GetTraceParent(), again.GetParentTraceContext().GetTraceParent(); a == b {
		t.Errorf("both attempts have the context %s", a)
	}
	again.Fail("no money")
	for open := 3; open > 0; {
		n := w.Turn("i")
		for _, event := range n.GetNewEvents() {
			if event.GetTimerFired() != nil || event.GetTaskFailed() != nil ||
				event.GetChildWorkflowInstanceCompleted() != nil {
				open--
			}
		}
		if open > 0 {
			n.Do()
			continue
		}
		failed := workflowtest.End(3, protos.OrchestrationStatus_ORCHESTRATION_STATUS_FAILED, "")
		failed.GetCompleteWorkflow().FailureDetails = &protos.TaskFailureDetails{ErrorMessage: "over"}
		n.Do(failed)
	}
	must(t, e.Start(ctx, flowApp, &protos.CreateInstanceRequest{InstanceId: "again", Name: "loop"}))
	w.Turn("again").Do(workflowtest.End(0, protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW, ""))
	w.Turn("again").Do(workflowtest.Complete(0, ""))
	const order = "create_orchestration||order > orchestration||order"
	want := []string{"create_orchestration||loop", "create_orchestration||loop > orchestration||loop",
		"create_orchestration||order", order + " failed", order + " > activity||pay failed",
		order + " > activity||pay failed", order + " > orchestration||ship", order + " > timer",
		"? > orchestration||loop"}
	slices.Sort(want)
	if got := spans.tree(); !slices.Equal(got, want) {
		t.Errorf("spans:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

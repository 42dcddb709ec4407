package turn_test

import (
	"strings"
	"testing"

	"github.com/dapr/durabletask-go/api/protos"

	"github.com/quorate/quorate/component/workflow/turn"
)

const traceOfCaller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// outcomeOf returns the start event of an instance with a trace context, and the outcome of the first turn. If span is
// true, the instance has a span. list has the actions of the turn.
func outcomeOf(t *testing.T, context *protos.TraceContext, span bool, list ...*protos.WorkflowAction) (
	*protos.ExecutionStartedEvent, *turn.Outcome) {
	t.Helper()
	first := started()
	first.GetExecutionStarted().ParentTraceContext = context
	if span {
		turn.Traced(first.GetExecutionStarted())
	}
	h := turn.Read(nil)
	s := &turn.State{ID: "i", App: "shop", History: h, New: turn.Begin(h, events{first}, now())}
	o, err := turn.Apply(s, &protos.WorkflowResponse{Actions: list}, now())
	if err != nil {
		t.Fatal(err)
	}
	return first.GetExecutionStarted(), o
}

// The span of the instance is the parent of the spans of activities, children and detached workflows. A child and a
// detached workflow have other span ids.
func TestApply_PassesTraceContextOn(t *testing.T) {
	caller := &protos.TraceContext{TraceParent: traceOfCaller}
	start, o := outcomeOf(t, caller, true, calls(0), begets(1, "c"), detaches(2, "d"))
	span := start.GetWorkflowSpanID().GetValue()
	want := strings.Replace(traceOfCaller, "00f067aa0ba902b7", span, 1)
	if got := o.Tasks[0].Event.GetTaskScheduled().GetParentTraceContext().GetTraceParent(); got != want {
		t.Errorf("the activity has the context %q, want %q", got, want)
	}
	for _, m := range o.Messages {
		e := m.Event.GetExecutionStarted()
		if e.GetParentTraceContext().GetTraceParent() != want || len(e.GetWorkflowSpanID().GetValue()) != 16 ||
			e.GetWorkflowSpanID().GetValue() == span {
			t.Errorf("%s begins with %v", m.Instance, e)
		}
	}
	_, o = outcomeOf(t, caller, true, ends(continued, "next"))
	next := o.Inbox[0].GetExecutionStarted()
	if trace := next.GetParentTraceContext().GetTraceParent(); trace[3:35] == traceOfCaller[3:35] ||
		next.GetWorkflowSpanID().GetValue() == span || next.GetWorkflowSpanID() == nil {
		t.Errorf("the next generation begins with %v", next)
	}
}

// The trace of the next generation is sampled if and only if the trace of the caller is.
func TestApply_NextGenerationIsSampledLikeThePrevious(t *testing.T) {
	for _, flags := range []string{"-00", "-01"} {
		parent := traceOfCaller[:len(traceOfCaller)-3] + flags
		_, o := outcomeOf(t, &protos.TraceContext{TraceParent: parent}, true, ends(continued, "next"))
		got := o.Inbox[0].GetExecutionStarted().GetParentTraceContext().GetTraceParent()
		if len(got) != len(parent) || got[52:] != flags {
			t.Errorf("after %s the next generation begins with %s", parent, got)
		}
	}
}

// If the instance has no span, activities and children get the unchanged trace context of the caller.
func TestApply_PassesCallersTraceContextOnWithoutSpans(t *testing.T) {
	for _, parent := range []string{traceOfCaller, "not-a-trace"} {
		start, o := outcomeOf(t, &protos.TraceContext{TraceParent: parent}, false, calls(0), begets(1, "c"))
		child := o.Messages[0].Event.GetExecutionStarted()
		if o.Tasks[0].Event.GetTaskScheduled().GetParentTraceContext().GetTraceParent() != parent ||
			child.GetParentTraceContext().GetTraceParent() != parent || start.GetWorkflowSpanID() != nil ||
			child.GetWorkflowSpanID() != nil {
			t.Errorf("%s: %v", parent, o)
		}
	}
	if _, o := outcomeOf(t, nil, true, calls(0)); o.Tasks[0].Event.GetTaskScheduled().GetParentTraceContext() != nil {
		t.Errorf("an activity of an instance that is not traced has a context: %v", o)
	}
	long := detaches(2, "d")
	long.GetCreateDetachedWorkflow().ParentTraceContext = &protos.TraceContext{TraceParent: strings.Repeat("x", 2000)}
	_, o := outcomeOf(t, nil, false, long)
	if o.Messages[0].Event.GetExecutionStarted().GetParentTraceContext() != nil {
		t.Error("a trace context of 2,000 bytes is passed on")
	}
}

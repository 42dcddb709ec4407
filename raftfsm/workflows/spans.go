package workflows

import (
	"strings"
	"time"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"

	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/component/workflow/turn"
	"github.com/quorate/quorate/internal/fault"
)

// The spans of an instance are made by the node that starts the instance, and by the nodes whose workers run it. The
// spans have the names, kinds and attributes of Dapr. The events of an instance carry the trace contexts, so all spans
// of an instance form one tree. The first event of an instance has the id of the instance's span. A node makes this
// span when the answer of its worker has ended the instance.

// traces reports whether this node makes spans.
func (b *Broker) traces() bool { return b.opts.Spans != nil && b.opts.Spans.Exports() }

// startSpan begins the span for the start of an instance, and makes it the parent of the instance's own span. It
// returns nil if this node makes no spans.
func (b *Broker) startSpan(r *protos.CreateInstanceRequest) workflow.Span {
	if !b.traces() {
		return nil
	}
	span := b.opts.Spans.StartSpan(named("create_orchestration", r.GetName(), r.GetVersion().GetValue(),
		workflow.SpanStart{Kind: workflow.SpanClient, Parent: r.GetParentTraceContext(),
			Attributes: attributes("orchestration", r.GetInstanceId())}))
	r.ParentTraceContext = span.Context()
	return span
}

func attributes(kind, instance string) []string {
	return []string{"durabletask.type", kind, "durabletask.task.instance_id", instance}
}

// named returns s with the name of a span, and with attributes for the name and the version of a workflow or an
// activity.
func named(kind, name, version string, s workflow.SpanStart) workflow.SpanStart {
	s.Name = kind + "||" + name
	s.Attributes = append(s.Attributes, "durabletask.task.name", name)
	if version != "" {
		s.Name += "||" + version
		s.Attributes = append(s.Attributes, "durabletask.task.version", version)
	}
	return s
}

// activitySpan begins the span of an activity that is handed to a worker. It makes this span the parent of what the
// worker does.
func (b *Broker) activitySpan(d *delivery, r *protos.ActivityRequest) {
	if !b.traces() || r.GetParentTraceContext() == nil {
		return
	}
	id := d.task
	span := b.opts.Spans.StartSpan(named("activity", r.GetName(), r.GetVersion().GetValue(), workflow.SpanStart{
		Kind: workflow.SpanServer, Parent: r.GetParentTraceContext(), Task: &id,
		Attributes: attributes("activity", d.ref.ID)}))
	r.ParentTraceContext = span.Context()
	b.mu.Lock()
	kept := b.items[d.token] == d
	if kept {
		d.span = span
	}
	b.mu.Unlock()
	if !kept {
		span.End(errGivenBack())
	}
}

func errGivenBack() error {
	return fault.New(fault.Unavailable, opWork, "the stream of the worker has ended before the activity")
}

// answerSpans makes and ends the spans of a delivery after the leader has processed the worker's answer m. out is what
// the leader has returned.
func (b *Broker) answerSpans(d *delivery, m proto.Message, out []byte) {
	if d.kind == itemTask {
		b.mu.Lock()
		span := d.span
		d.span = nil
		b.mu.Unlock()
		if span != nil {
			r, _ := m.(*protos.ActivityResponse)
			span.End(failure(r.GetFailureDetails()))
		}
		return
	}
	if status, ok := readStored(out); ok && b.traces() {
		answer, _ := m.(*protos.WorkflowResponse)
		b.turnSpans(d, answer, status)
	}
}

// failure returns the error with which a span ends, or nil if d is nil.
func failure(d *protos.TaskFailureDetails) error {
	if d == nil {
		return nil
	}
	return fault.New(fault.Internal, opWork, fault.Shorten(d.GetErrorMessage(), maxName))
}

// turnSpans makes the spans of a turn whose outcome is stored. These are the spans of timers that have fired, and the
// span of the instance if the instance has ended or has continued as new.
func (b *Broker) turnSpans(d *delivery, answer *protos.WorkflowResponse, status protos.OrchestrationStatus) {
	start, begun := beginning(d.item)
	parent := turn.Context(start)
	if parent == nil {
		return
	}
	for _, raw := range d.fresh {
		e, err := decodeEvent(raw)
		f := e.GetTimerFired()
		if err != nil || f == nil {
			continue
		}
		id := f.GetTimerId()
		b.opts.Spans.StartSpan(workflow.SpanStart{Name: "timer", Kind: workflow.SpanInternal, Parent: parent, Task: &id,
			Begun: e.GetTimestamp().AsTime(), Attributes: append(attributes("timer", d.ref.ID), "durabletask.fire_at",
				f.GetFireAt().AsTime().Format(time.RFC3339))}).End(nil)
	}
	again := status == protos.OrchestrationStatus_ORCHESTRATION_STATUS_CONTINUED_AS_NEW
	if start.GetWorkflowSpanID() == nil || !again && !workflow.Terminal(status) {
		return
	}
	var wrong error
	for _, a := range answer.GetActions() {
		if c := a.GetCompleteWorkflow(); c != nil {
			wrong = failure(c.GetFailureDetails())
			break
		}
	}
	b.opts.Spans.StartSpan(named("orchestration", start.GetName(), start.GetVersion().GetValue(), workflow.SpanStart{
		Kind: workflow.SpanServer, Parent: start.GetParentTraceContext(), ID: start.GetWorkflowSpanID().GetValue(),
		Begun: begun, Attributes: append(attributes("orchestration", d.ref.ID), "durabletask.runtime_status",
			strings.TrimPrefix(status.String(), "ORCHESTRATION_STATUS_"))})).End(wrong)
}

// beginning returns the event ExecutionStarted from the events of a turn, and the time of the first event. start is
// nil if there is no such event.
func beginning(i *item) (start *protos.ExecutionStartedEvent, begun time.Time) {
	for _, list := range [...][][]byte{i.past, i.fresh} {
		for _, raw := range list {
			e, err := decodeEvent(raw)
			if err != nil {
				return nil, begun
			}
			if begun.IsZero() {
				begun = e.GetTimestamp().AsTime()
			}
			if start = e.GetExecutionStarted(); start != nil {
				return start, begun
			}
		}
	}
	return nil, begun
}

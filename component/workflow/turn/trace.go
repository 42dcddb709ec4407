package turn

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// MaxTrace bounds a trace context, in bytes, because every activity and every child of an instance carries it.
const MaxTrace = 1024

// Traced gives an instance its own trace span, whose parent is the trace context in start. The children and the later
// generations of the instance then also have spans. If start has no trace context, Traced does nothing.
func Traced(start *protos.ExecutionStartedEvent) {
	if start.GetParentTraceContext() != nil {
		start.WorkflowSpanID = wrapperspb.String(spanID(start.GetWorkflowInstance().GetExecutionId().GetValue()))
	}
}

// spanID returns the id of the span of an execution. Every server computes the same id, because it depends only on the
// execution.
func spanID(execution string) string {
	sum := sha256.Sum256([]byte("quorate:span:" + execution))
	return hex.EncodeToString(sum[:8])
}

// Context returns the trace context for the spans of the activities, timers and children of an instance. The span of
// the instance becomes the parent of these spans. If the instance has no span, Context returns the trace context in
// start, which may be nil.
func Context(start *protos.ExecutionStartedEvent) *protos.TraceContext {
	parent, span := start.GetParentTraceContext(), start.GetWorkflowSpanID().GetValue()
	parts := strings.Split(parent.GetTraceParent(), "-")
	if parent == nil || span == "" || len(parts) != 4 {
		return parent
	}
	parts[2] = span
	//lint:ignore SA1019 older workers read SpanID
	return &protos.TraceContext{TraceParent: strings.Join(parts, "-"), SpanID: span, TraceState: parent.GetTraceState()}
}

// Bounded returns the trace context c, or nil if c is larger than MaxTrace.
func Bounded(c *protos.TraceContext) *protos.TraceContext {
	if proto.Size(c) > MaxTrace {
		return nil
	}
	return c
}

// inherit gives a new instance a trace span if the instance that creates it has one. It changes start and returns it.
func (a *applier) inherit(start *protos.ExecutionStartedEvent) *protos.ExecutionStartedEvent {
	if a.start.GetWorkflowSpanID() != nil {
		Traced(start)
	}
	return start
}

// rootTrace returns the context of a new trace for an execution. The new trace is not sampled if the previous
// generation's trace is not sampled.
func rootTrace(execution string, previous *protos.TraceContext) *protos.TraceContext {
	sum := sha256.Sum256([]byte("quorate:trace:" + execution))
	span, flags := hex.EncodeToString(sum[16:24]), "-01"
	if strings.HasSuffix(previous.GetTraceParent(), "-00") {
		flags = "-00"
	}
	//lint:ignore SA1019 older workers read it
	return &protos.TraceContext{SpanID: span,
		TraceParent: "00-" + hex.EncodeToString(sum[:16]) + "-" + span + flags}
}

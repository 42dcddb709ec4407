package workflow

import (
	"time"

	"github.com/dapr/durabletask-go/api/protos"
)

// Spans makes the trace spans of workflows. Implementations are safe for concurrent use.
type Spans interface {
	// Exports reports whether spans are sent anywhere.
	Exports() bool
	// StartSpan begins a span.
	StartSpan(s SpanStart) Span
}

// SpanKind is the kind of a span.
type SpanKind uint8

// The kinds.
const (
	SpanClient SpanKind = iota
	SpanServer
	SpanInternal
)

// SpanStart describes a span.
type SpanStart struct {
	Name       string
	Kind       SpanKind
	Parent     *protos.TraceContext // nil = the span begins a trace
	ID         string               // 16 hexadecimal digits; "" = a random one
	Begun      time.Time            // zero = now
	Attributes []string             // names and values in turn
	Task       *int32               // the attribute durabletask.task.task_id; nil = none
}

// Span is a span that has begun.
type Span interface {
	// Context returns the trace context for spans that have this span as their parent.
	Context() *protos.TraceContext
	// End ends the span. If err is not nil, the span has failed.
	End(err error)
}

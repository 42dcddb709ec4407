package invoke

import (
	"context"
	"net/http"
)

// Tracer records a span for each hop of a call. Implementations are safe for concurrent use.
type Tracer interface {
	// Start starts a span as a child of the traceparent in h. Without a traceparent it starts a new trace.
	Start(ctx context.Context, h http.Header, side SpanSide, name string) Span
}

// SpanSide is the side of a hop that a span describes.
type SpanSide uint8

// The sides.
const (
	SpanCaller SpanSide = iota
	SpanCallee
)

// Span is one hop of a call.
type Span interface {
	Context() context.Context
	TraceID() string           // 32 hexadecimal digits
	Inject(h http.Header)      // adds the traceparent, so that the receiver's span is a child of this one
	End(*http.Response, error) // one of the arguments is nil
}

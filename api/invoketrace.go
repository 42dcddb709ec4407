package api

import (
	"context"
	"net/http"
)

// Tracer follows calls through the hops. Implementations are safe for concurrent use.
type Tracer interface {
	// Start begins a span as a child of the traceparent in h, or a trace of its own.
	Start(ctx context.Context, h http.Header, side SpanSide, name string) Span
}

// SpanSide says which side of a hop a span is about.
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
	Inject(h http.Header)      // makes what receives h a child of this span
	End(*http.Response, error) // one of them is nil
}

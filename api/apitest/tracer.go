package apitest

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api/invoke"
)

// Untraced is an invoke.Tracer that records nothing.
type Untraced struct{}

// Start returns a span without a trace.
func (Untraced) Start(ctx context.Context, _ http.Header, _ invoke.SpanSide, _ string) invoke.Span {
	return span{ctx}
}

type span struct{ ctx context.Context }

func (s span) Context() context.Context { return s.ctx }
func (span) TraceID() string            { return "" }
func (span) Inject(http.Header)         {}
func (span) End(*http.Response, error)  {}

package calls

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/tracing"
)

// Tracer makes the spans of calls.
type Tracer struct{ *tracing.Tracer }

// Start implements api.Tracer.
func (t Tracer) Start(ctx context.Context, h http.Header, side invoke.SpanSide, name string) invoke.Span {
	kind := tracing.Client
	if side == invoke.SpanCallee {
		kind = tracing.Server
	}
	return span{t.Tracer.Start(ctx, h, kind, name)}
}

type span struct{ *tracing.Span }

// End ends the span with the outcome of the call.
func (s span) End(r *http.Response, err error) {
	status := 0
	if r != nil {
		status = r.StatusCode
	}
	s.Span.End(status, err)
}

// StartBinding implements api.BindingTracer.
func (t Tracer) StartBinding(ctx context.Context, h http.Header, name string) api.BindingSpan {
	return bindingSpan{t.Tracer.Start(ctx, h, tracing.Client, name)}
}

// StartRequest implements api.RequestTracer.
func (t Tracer) StartRequest(ctx context.Context, h http.Header, name string) api.RequestSpan {
	if !t.Exports() {
		return nil
	}
	return t.Tracer.Start(ctx, h, tracing.Client, name)
}

type bindingSpan struct{ *tracing.Span }

// EndBinding ends the span with the outcome of the operation.
func (s bindingSpan) EndBinding(err error) { s.End(0, err) }

package node

import (
	"context"
	"net/http"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/tracing"
)

// tracer makes the spans of calls.
type tracer struct{ *tracing.Tracer }

// Start begins a span.
func (t tracer) Start(ctx context.Context, h http.Header, side api.SpanSide, name string) api.Span {
	kind := tracing.Client
	if side == api.SpanCallee {
		kind = tracing.Server
	}
	return span{t.Tracer.Start(ctx, h, kind, name)}
}

type span struct{ *tracing.Span }

// End notes the outcome of the call.
func (s span) End(r *http.Response, err error) {
	status := 0
	if r != nil {
		status = r.StatusCode
	}
	s.Span.End(status, err)
}

// buildTracer begins to follow calls, and to export what is seen where the environment
// asks for it.
func (n *Node) buildTracer(ctx context.Context) error {
	t, err := tracing.Open(ctx, tracing.Options{Service: n.config.App.ID, Namespace: n.config.Namespace, Version: n.config.Version, Env: n.deps.Env})
	if err != nil {
		return err
	}
	n.calls.parts.Tracer = tracer{t}
	return n.closers.Push("traces", t.Close)
}

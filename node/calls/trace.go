package calls

import (
	"cmp"
	"context"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/dapr/durabletask-go/api/protos"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component/workflow"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/tracing"
)

// Tracer makes the spans of calls.
type Tracer struct{ *tracing.Tracer }

// Start implements invoke.Tracer.
func (t Tracer) Start(ctx context.Context, h http.Header, side invoke.SpanSide, name string) invoke.Span {
	kind := tracing.Client
	if side == invoke.SpanCallee {
		kind = tracing.Server
	}
	return span{t.Tracer.Start(ctx, h, kind, name)}
}

type span struct{ *tracing.Span }

// End ends the span with the outcome of the call. If the response has a gRPC code in its header or in its trailer, End
// records this code too.
func (s span) End(r *http.Response, err error) {
	status := 0
	if r != nil {
		status = r.StatusCode
		text := cmp.Or(r.Header.Get("Grpc-Status"), r.Trailer.Get("Grpc-Status"))
		if code, wrong := strconv.ParseUint(text, 10, 32); wrong == nil {
			s.SetInt("rpc.grpc.status_code", int64(code)) //nolint:gosec // 32 bits
			if err == nil && code != uint64(codes.OK) {
				err = fault.New(fault.Internal, "calls.End", "gRPC "+codes.Code(code).String())
			}
		}
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

// StartSpan implements workflow.Spans.
func (t Tracer) StartSpan(w workflow.SpanStart) workflow.Span {
	o := tracing.Origin{Begun: w.Begun, Kind: [...]tracing.Kind{workflow.SpanClient: tracing.Client,
		workflow.SpanServer: tracing.Server, workflow.SpanInternal: tracing.Internal}[w.Kind]}
	if id, err := hex.DecodeString(w.ID); err == nil && len(id) == len(o.ID) {
		o.ID = [8]byte(id)
	}
	h := http.Header{}
	if w.Parent != nil {
		h[headerParent] = []string{w.Parent.GetTraceParent()}
		if state := w.Parent.GetTraceState().GetValue(); state != "" {
			h["Tracestate"] = []string{state}
		}
	}
	s := workflowSpan{t.StartFrom(context.Background(), h, w.Name, o), w.Parent.GetTraceState()}
	s.Set(w.Attributes...)
	if w.Task != nil {
		s.SetInt("durabletask.task.task_id", int64(*w.Task))
	}
	return s
}

const headerParent = "Traceparent"

type workflowSpan struct {
	*tracing.Span
	state *wrapperspb.StringValue
}

// Context implements workflow.Span.
func (s workflowSpan) Context() *protos.TraceContext {
	h := http.Header{}
	s.Inject(h)
	parent := h[headerParent][0]
	//lint:ignore SA1019 older workers read SpanID
	return &protos.TraceContext{TraceParent: parent, SpanID: strings.Split(parent, "-")[2], TraceState: s.state}
}

// End implements workflow.Span.
func (s workflowSpan) End(err error) { s.Span.End(0, err) }

type bindingSpan struct{ *tracing.Span }

// EndBinding ends the span with the outcome of the operation.
func (s bindingSpan) EndBinding(err error) { s.End(0, err) }

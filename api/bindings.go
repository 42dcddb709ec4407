package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component/bindings"
	"github.com/quorate/quorate/internal/fault"
)

// BindingSource returns the opened bindings. The set of bindings changes while components are being loaded.
// Implementations are safe for concurrent use.
type BindingSource interface {
	// Binding returns the binding with the given component name.
	Binding(name string) (*bindings.Instance, bool)
	// Loaded reports whether all components have been opened.
	Loaded() bool
}

// BindingTracer starts a trace span for each operation of an output binding. Implementations are safe for concurrent
// use.
type BindingTracer interface {
	// StartBinding starts a span as a child of the traceparent in h. Without a traceparent it starts a new trace.
	StartBinding(ctx context.Context, h http.Header, name string) BindingSpan
}

// BindingSpan is the span of one operation.
type BindingSpan interface {
	Context() context.Context
	Inject(h http.Header) // adds the traceparent of the span
	EndBinding(err error)
}

// Bindings serves one application's output bindings. It is immutable and safe for concurrent use. All errors are
// *Error.
type Bindings struct {
	app    App
	source BindingSource
	policy func(binding string) *resiliency.Policy
	tracer BindingTracer // nil = no spans
	seen   observed
}

// NewBindings returns the binding service of app. policy returns the Resiliency policy of a binding, or nil for a
// binding without timeout and retries. If policy itself is nil, no binding has a timeout or retries.
func NewBindings(app App, source BindingSource, policy func(binding string) *resiliency.Policy) *Bindings {
	if policy == nil {
		policy = func(string) *resiliency.Policy { return nil }
	}
	return &Bindings{app: app, source: source, policy: policy}
}

// Trace returns a copy of b that starts a span for each operation, and sends the trace context to the external
// system.
func (b *Bindings) Trace(t BindingTracer) *Bindings {
	traced := *b
	traced.tracer = t
	return &traced
}

// span starts a span for an operation, and puts the traceparent of the span into r.Metadata.
func (b *Bindings) span(ctx context.Context, name string, r *bindings.Request) BindingSpan {
	const parent, state = "traceparent", "tracestate"
	h := http.Header{}
	for _, key := range []string{parent, state} {
		if v := r.Metadata[key]; v != "" {
			h.Set(key, v)
		}
	}
	s := b.tracer.StartBinding(ctx, h, "binding "+name+" "+r.Operation)
	s.Inject(h)
	r.Metadata = maps.Clone(r.Metadata)
	if r.Metadata == nil {
		r.Metadata = map[string]string{}
	}
	r.Metadata[parent] = h.Get(parent)
	return s
}

// Invoke executes one operation of an output binding. The response is nil if the external system sent none. If the
// external system answered with an error, Invoke returns both the error and the response.
func (b *Bindings) Invoke(ctx context.Context, name string, r bindings.Request) (*bindings.Response, error) {
	inst, ok := b.source.Binding(name)
	if !ok {
		inst = nil
	}
	if r.Operation == "" {
		return nil, bindingFailed(name, fault.New(fault.Invalid, "api.Invoke",
			`"operation" is missing from the request`))
	}
	if inst == nil || !inst.Sends() || !inst.VisibleTo(b.app.ID) {
		return nil, bindingFailed(name, b.unknown(name, inst))
	}
	if known := inst.Output.Operations(); !slices.ContainsFunc(known, func(o string) bool {
		return strings.EqualFold(o, r.Operation)
	}) {
		return nil, bindingFailed(name, fault.New(fault.Invalid, "api.Invoke",
			"binding "+name+" does not support the operation "+strconv.Quote(Shorten(r.Operation))+
				"; supported operations: "+strings.Join(known, ", ")))
	}
	var response *bindings.Response
	var span BindingSpan
	if b.tracer != nil {
		span = b.span(ctx, inst.Name, &r)
		ctx = span.Context()
	}
	start := b.seen.begin()
	err := b.policy(name).RepeatWrite(ctx, func(ctx context.Context) (err error) {
		response, err = inst.Output.Invoke(ctx, r)
		return err
	})
	if span != nil {
		span.EndBinding(err)
	}
	b.seen.binding(inst.Name, strings.ToLower(r.Operation), start, err)
	if err != nil {
		return response, bindingFailed(name, err)
	}
	return response, nil
}

func (b *Bindings) unknown(name string, inst *bindings.Instance) error {
	switch {
	case !b.source.Loaded():
		return fault.New(fault.Unavailable, "api.Invoke",
			"components are being loaded (wait for /v1.0/healthz/outbound)")
	case inst != nil && inst.VisibleTo(b.app.ID):
		return fault.New(fault.NotFound, "api.Invoke",
			"couldn't find output binding "+Shorten(name)+": the component only receives")
	}
	return fault.New(fault.NotFound, "api.Invoke", "couldn't find output binding "+Shorten(name))
}

// bindingFailed returns the public error for a failed operation of a binding. As in Dapr, all failures have the same
// status and code.
func bindingFailed(name string, err error) *Error {
	text := "it failed; the node's log has the details" // errors that are not faults may contain a secret
	if _, ok := fault.As(err); ok {
		text = fault.Text(err)
	} else if errors.Is(err, context.DeadlineExceeded) {
		text = "it did not answer before the request's time was over"
	}
	return &Error{
		Kind: Failed, Code: CodeInvokeOutputBinding,
		Message: "error invoking output binding " + Shorten(name) + ": " + text,
		Details: Details{Reason: string(fault.CodeOf(err)), Metadata: Attributes("binding", Shorten(name))},
		Cause:   err,
	}
}

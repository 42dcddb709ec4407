// Package tracing follows requests from process to process by W3C trace context, and
// exports what it saw over OTLP where the standard OTEL_ variables ask for that.
//
// It owns the header traceparent of what goes out, and the exporter. It must never know
// what a request means. Without an exporter a span is two random numbers; with one it is a
// span of the OpenTelemetry SDK, whose goroutines Close ends.
package tracing

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorate/quorate/internal/fault"
)

// Options say whose spans these are. Env is required.
type Options struct {
	Service   string // service.name, unless OTEL_SERVICE_NAME says another
	Namespace string
	Version   string
	Env       func(name string) (string, bool)
}

// Tracer makes spans. Safe for concurrent use.
type Tracer struct {
	provider *sdktrace.TracerProvider // nil = nothing is exported
	tracer   trace.Tracer
}

// Wanted reports whether the environment asks for an export.
func Wanted(env func(string) (string, bool)) bool {
	get := func(name string) string { v, _ := env(name); return v }
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") || get("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return get("OTEL_TRACES_EXPORTER") == "otlp" || get("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// Open makes a Tracer; it connects to nobody yet. The error is invalid for a protocol that
// is not spoken.
func Open(ctx context.Context, o Options) (*Tracer, error) {
	if !Wanted(o.Env) {
		return &Tracer{}, nil
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if p, _ := o.Env(name); p != "" && p != "http/protobuf" {
			return nil, &fault.Error{Code: fault.Invalid, Op: "tracing.Open", Msg: name + "=" + p + " is not spoken", Hint: "use http/protobuf, usually on port 4318"}
		}
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fault.Wrap(err, "tracing.Open", "the exporter of traces")
	}
	res, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", o.Service), attribute.String("service.namespace", o.Namespace), attribute.String("service.version", o.Version),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fault.Wrap(err, "tracing.Open", "OTEL_RESOURCE_ATTRIBUTES")
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	return &Tracer{provider: p, tracer: p.Tracer("github.com/quorate/quorate")}, nil
}

// Close exports what is left, as long as ctx allows.
func (t *Tracer) Close(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	return fault.Wrap(t.provider.Shutdown(ctx), "tracing.Close", "the last traces were not exported")
}

// Kind is what a span is about.
type Kind uint8

// The kinds.
const (
	Client Kind = iota // a request that goes out
	Server             // one that came in
)

// Span is one hop of a request.
type Span struct {
	ctx   context.Context
	trace [16]byte
	id    [8]byte
	flags byte
	full  trace.Span // nil without an exporter
}

const headerParent = "Traceparent"

// Start begins a span as a child of what h names, or a trace of its own.
func (t *Tracer) Start(ctx context.Context, h http.Header, kind Kind, name string) *Span {
	s := &Span{ctx: ctx}
	parent := parse(first(h, headerParent))
	if t.provider != nil {
		t.begin(s, parent, h, kind, name)
		return s
	}
	s.trace, s.flags = parent.trace, parent.flags
	if !parent.valid {
		binary.BigEndian.PutUint64(s.trace[:8], rand.Uint64()|1) // a trace id is not zero
		binary.BigEndian.PutUint64(s.trace[8:], rand.Uint64())
	}
	binary.BigEndian.PutUint64(s.id[:], rand.Uint64()|1)
	return s
}

func (t *Tracer) begin(s *Span, parent traceparent, h http.Header, kind Kind, name string) {
	if parent.valid {
		state, _ := trace.ParseTraceState(strings.Join(h["Tracestate"], ",")) // a broken one is left out
		s.ctx = trace.ContextWithRemoteSpanContext(s.ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: parent.trace, SpanID: parent.id, TraceFlags: trace.TraceFlags(parent.flags), TraceState: state, Remote: true,
		}))
	}
	k := trace.SpanKindClient
	if kind == Server {
		k = trace.SpanKindServer
	}
	s.ctx, s.full = t.tracer.Start(s.ctx, name, trace.WithSpanKind(k))
	c := s.full.SpanContext()
	s.trace, s.id, s.flags = c.TraceID(), c.SpanID(), byte(c.TraceFlags())
}

// Context is what the work of the span is done under.
func (s *Span) Context() context.Context { return s.ctx }

// TraceID is the id of the trace, 32 hexadecimal digits.
func (s *Span) TraceID() string { return hex.EncodeToString(s.trace[:]) }

// Inject makes whoever receives h a child of this span.
func (s *Span) Inject(h http.Header) {
	var b [55]byte
	copy(b[:], "00-")
	hex.Encode(b[3:35], s.trace[:])
	b[35] = '-'
	hex.Encode(b[36:52], s.id[:])
	b[52] = '-'
	hex.Encode(b[53:55], []byte{s.flags})
	h[headerParent] = []string{string(b[:])}
}

// End notes the outcome: the status of an answer, or the error in its place.
func (s *Span) End(status int, err error) {
	if s.full == nil {
		return
	}
	switch {
	case err != nil:
		s.full.SetStatus(codes.Error, fault.Text(err))
	default:
		s.full.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= 500 {
			s.full.SetStatus(codes.Error, strconv.Itoa(status))
		}
	}
	s.full.End()
}

// traceparent is a header of that name, decoded.
type traceparent struct {
	trace [16]byte
	id    [8]byte
	flags byte
	valid bool
}

// parse reads version 00 and the same fields of later ones.
func parse(text string) (p traceparent) {
	if len(text) < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-' || text[:2] == "ff" || len(text) > 55 && (text[:2] == "00" || text[55] != '-') || strings.ToLower(text) != text {
		return traceparent{}
	}
	var version, flags [1]byte
	for _, field := range []struct {
		to   []byte
		from string
	}{{version[:], text[:2]}, {p.trace[:], text[3:35]}, {p.id[:], text[36:52]}, {flags[:], text[53:55]}} {
		if _, err := hex.Decode(field.to, []byte(field.from)); err != nil {
			return traceparent{}
		}
	}
	p.flags = flags[0]
	p.valid = p.trace != [16]byte{} && p.id != [8]byte{}
	return p
}

func first(h http.Header, name string) string {
	if v := h[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

// Package tracing propagates W3C trace context between processes, and exports spans. It exports over OTLP if the
// standard OTEL_ variables or the Configuration resource enable OTLP. It also exports to a Zipkin collector if the
// Configuration resource names one.
//
// The package owns the header traceparent of outgoing requests, and the exporters. Without an exporter, a span has only
// ids, and the package has no goroutines. With an exporter, the OpenTelemetry SDK creates the spans, and starts
// goroutines that run until Close.
package tracing

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorate/quorate/internal/fault"
)

// Options configure a Tracer. Env is required.
type Options struct {
	Service   string // service.name, unless OTEL_SERVICE_NAME is set
	Namespace string
	Version   string
	Env       func(name string) (string, bool)
	Logger    *slog.Logger // reports a Zipkin collector that does not answer; nil = nothing
	Declared  *Declared    // from a Configuration; environment variables have precedence; nil = none
}

// Tracer makes spans. It is safe for concurrent use.
type Tracer struct{ now atomic.Pointer[export] }

// export is where spans go.
type export struct {
	provider *sdktrace.TracerProvider // nil = nowhere
	tracer   trace.Tracer
	sampled  func() bool // whether a new trace is sampled; used without a provider
}

// Wanted reports whether the environment enables the export of spans over OTLP.
func Wanted(env func(string) (string, bool)) bool {
	get := func(name string) string { v, _ := env(name); return v }
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") || get("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return get("OTEL_TRACES_EXPORTER") == "otlp" || get("OTEL_EXPORTER_OTLP_ENDPOINT") != "" ||
		get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// Open returns a Tracer, without connecting to a collector. It returns fault.Invalid if the configured OTLP protocol is
// not supported, or if a configured file with certificates or a key cannot be used.
func Open(ctx context.Context, o Options) (*Tracer, error) {
	t := &Tracer{}
	e, err := newExport(ctx, o)
	if err != nil {
		return nil, err
	}
	t.now.Store(e)
	return t, nil
}

// Change replaces the collectors of t with those of next. The caller must not use next afterwards. Change sends the
// spans that have ended to the previous collectors. It returns an error if the sending fails or takes longer than ctx
// allows. Spans that have begun but not ended are lost.
func (t *Tracer) Change(ctx context.Context, next *Tracer) error {
	return t.now.Swap(next.now.Load()).close(ctx)
}

func newExport(ctx context.Context, o Options) (*export, error) {
	otlp, url := Wanted(o.Env) || o.Declared.exports(o.Env), o.Declared.zipkinURL(o.Env)
	if !otlp && url == "" {
		return &export{sampled: o.Declared.sampled}, nil
	}
	res, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", o.Service), attribute.String("service.namespace",
			o.Namespace), attribute.String("service.version", o.Version),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fault.Wrap(err, "tracing.Open", "OTEL_RESOURCE_ATTRIBUTES")
	}
	exporters, err := o.exporters(ctx, otlp, url)
	if err != nil {
		return nil, err
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(res), sdktrace.WithIDGenerator(ids{})}
	for _, e := range exporters {
		options = append(options, sdktrace.WithBatcher(e)) // starts a goroutine, so no later step may fail
	}
	if sampler := o.Declared.sampler(o.Env); sampler != nil {
		options = append(options, sdktrace.WithSampler(sampler))
	}
	p := sdktrace.NewTracerProvider(options...)
	return &export{provider: p, tracer: p.Tracer("github.com/quorate/quorate")}, nil
}

// exporters returns an exporter for the OTLP collector if otlp is true, and one for the Zipkin collector if url is not
// empty. It opens the OTLP exporter last, because this exporter may start goroutines, which would remain if a later
// step failed.
func (o Options) exporters(ctx context.Context, otlp bool, url string) (out []sdktrace.SpanExporter, err error) {
	if url != "" {
		client, err := o.Declared.collectorClient(o.Env)
		if err != nil {
			return nil, err
		}
		out = append(out, &zipkin{client: client, url: url, logger: o.Logger})
	}
	if otlp {
		exporter, err := newExporter(ctx, o)
		if err != nil {
			return nil, err
		}
		out = append(out, exporter)
	}
	return out, nil
}

// Close exports the remaining spans, within the time of ctx.
func (t *Tracer) Close(ctx context.Context) error { return t.now.Load().close(ctx) }

func (e *export) close(ctx context.Context) error {
	if e.provider == nil {
		return nil
	}
	return fault.Wrap(e.provider.Shutdown(ctx), "tracing.Close", "the last traces were not exported")
}

// Kind is the direction of a span's request.
type Kind uint8

// The kinds.
const (
	Client   Kind = iota // outgoing
	Server               // incoming
	Internal             // no request
)

// Origin says how a span begins. The zero value is a client's span that begins at once.
type Origin struct {
	Kind  Kind
	ID    [8]byte   // id of the span; zero = a random one
	Begun time.Time // zero = the span begins now
}

// Span is one hop of a request.
type Span struct {
	ctx   context.Context
	trace [16]byte
	id    [8]byte
	flags byte
	full  trace.Span // nil without an exporter
}

const headerParent = "Traceparent"

// Start begins a span: a child of the span in h, or the first span of a new trace.
func (t *Tracer) Start(ctx context.Context, h http.Header, kind Kind, name string) *Span {
	return t.StartFrom(ctx, h, name, Origin{Kind: kind})
}

// StartFrom is like Start for a span whose kind, id and beginning are given in o.
func (t *Tracer) StartFrom(ctx context.Context, h http.Header, name string, o Origin) *Span {
	s := &Span{ctx: ctx}
	parent := parse(first(h, headerParent))
	e := t.now.Load()
	if e.provider != nil {
		e.begin(s, parent, h, name, o)
		return s
	}
	s.trace, s.id, s.flags = parent.trace, o.ID, parent.flags
	if !parent.valid {
		s.trace = newTraceID()
		if e.sampled != nil && e.sampled() {
			s.flags = 1
		}
	}
	s.identify(parent)
	return s
}

// identify sets the id of a span that is not exported, unless the id is already set. The span gets the id of its
// parent, so that its children refer to a span that a collector may know. A span without a parent gets a new id.
func (s *Span) identify(parent traceparent) {
	switch {
	case s.id != [8]byte{}:
	case parent.valid:
		s.id = parent.id
	default:
		s.id = newSpanID()
	}
}

func (e *export) begin(s *Span, parent traceparent, h http.Header, name string, o Origin) {
	if parent.valid {
		state, _ := trace.ParseTraceState(strings.Join(h["Tracestate"], ",")) // an invalid one is ignored
		s.ctx = trace.ContextWithRemoteSpanContext(s.ctx, trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: parent.trace, SpanID: parent.id, TraceFlags: trace.TraceFlags(parent.flags), TraceState: state,
			Remote: true,
		}))
	}
	kind := [...]trace.SpanKind{Client: trace.SpanKindClient, Server: trace.SpanKindServer,
		Internal: trace.SpanKindInternal}[o.Kind]
	options := []trace.SpanStartOption{trace.WithSpanKind(kind)}
	if !o.Begun.IsZero() {
		options = append(options, trace.WithTimestamp(o.Begun))
	}
	if o.ID != [8]byte{} {
		s.ctx = context.WithValue(s.ctx, spanID{}, trace.SpanID(o.ID))
	}
	s.ctx, s.full = e.tracer.Start(s.ctx, clean(name), options...)
	c := s.full.SpanContext()
	s.trace, s.id, s.flags = c.TraceID(), c.SpanID(), byte(c.TraceFlags())
	if !s.full.IsRecording() {
		s.id = o.ID
		s.identify(parent)
	}
}

// spanID is the context key for the id that a new span gets.
type spanID struct{}

// ids generates random ids, except for spans whose id is given.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator.
func (g ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	t := newTraceID()
	return t, g.NewSpanID(ctx, t)
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if given, ok := ctx.Value(spanID{}).(trace.SpanID); ok {
		return given
	}
	return newSpanID()
}

// newTraceID returns a random id of a trace, which is never zero.
func newTraceID() (id [16]byte) {
	binary.BigEndian.PutUint64(id[:8], rand.Uint64()|1)
	binary.BigEndian.PutUint64(id[8:], rand.Uint64())
	return id
}

// newSpanID returns a random id of a span, which is never zero.
func newSpanID() (id [8]byte) {
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	return id
}

// Exports reports whether spans are sent to a collector.
func (t *Tracer) Exports() bool { return t.now.Load().provider != nil }

// maxAttribute bounds a value of an attribute, in bytes.
const maxAttribute = 512

// Set adds attributes to the span. Its arguments are pairs of a name and a value. It shortens long values.
func (s *Span) Set(attributes ...string) {
	if s.full == nil || !s.full.IsRecording() {
		return
	}
	for i := 0; i+1 < len(attributes); i += 2 {
		s.full.SetAttributes(attribute.String(attributes[i], clean(attributes[i+1])))
	}
}

// SetInt adds an attribute with a number.
func (s *Span) SetInt(name string, n int64) {
	if s.full != nil && s.full.IsRecording() {
		s.full.SetAttributes(attribute.Int64(name, n))
	}
}

// clean converts text to valid UTF-8 with at most maxAttribute bytes. If a span contained invalid UTF-8, the export of
// all spans would fail.
func clean(text string) string {
	return fault.Shorten(strings.ToValidUTF8(text, "\uFFFD"), maxAttribute)
}

// Context returns the context for the work of the span.
func (s *Span) Context() context.Context { return s.ctx }

// TraceID returns the id of the trace, 32 hexadecimal digits.
func (s *Span) TraceID() string { return hex.EncodeToString(s.trace[:]) }

// Inject sets the header traceparent in h. The span of the receiver then becomes a child of this span.
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

// End ends the span. status is the HTTP status of the answer, or 0 if there is no answer. If err is not nil, the span
// has failed, and its status has the text of err. As in Dapr, the span has also failed if status is 400 or more.
func (s *Span) End(status int, err error) {
	if s.full == nil {
		return
	}
	if status != 0 {
		s.full.SetAttributes(attribute.Int("http.response.status_code", status))
	}
	switch {
	case err != nil:
		s.full.SetStatus(codes.Error, clean(fault.Text(err)))
	case status >= http.StatusBadRequest:
		text := http.StatusText(status)
		if text == "" {
			text = "Unknown"
		}
		s.full.SetStatus(codes.Error, "Code("+strconv.Itoa(status)+"): "+text)
	}
	s.full.End()
}

// traceparent is a decoded traceparent header.
type traceparent struct {
	trace [16]byte
	id    [8]byte
	flags byte
	valid bool
}

// parse decodes a traceparent header. From a header of a version later than 00, it decodes only the fields of version
// 00. If the header is malformed, p.valid is false.
func parse(text string) (p traceparent) {
	if len(text) < 55 || text[2] != '-' || text[35] != '-' || text[52] != '-' || text[:2] == "ff" || len(text) > 55 &&
		(text[:2] == "00" || text[55] != '-') || strings.ToLower(text) != text {
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

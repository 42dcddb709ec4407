package tracing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/quorate/quorate/internal/fault"
)

// maxZipkinAnswer is the maximum number of bytes that are read from a collector's answer. Only the status matters. The
// body is read only so that the connection can be used again.
const maxZipkinAnswer = 64 << 10

// zipkin sends spans to a Zipkin collector (https://zipkin.io/zipkin-api). It replaces the exporter of
// OpenTelemetry, which is deprecated and would make the program 15 MiB larger.
type zipkin struct {
	client *http.Client
	url    string
	logger *slog.Logger
	failed atomic.Bool // the last export failed
}

// zipkinSpan is a span in version 2 of Zipkin's JSON format.
type zipkinSpan struct {
	TraceID   string            `json:"traceId"`
	ID        string            `json:"id"`
	Parent    string            `json:"parentId,omitempty"`
	Name      string            `json:"name"`
	Kind      string            `json:"kind,omitempty"` // SERVER or CLIENT
	Timestamp int64             `json:"timestamp"`      // microseconds since 1970
	Duration  int64             `json:"duration"`       // microseconds, at least 1
	Local     map[string]string `json:"localEndpoint"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// ExportSpans implements sdktrace.SpanExporter. It always returns nil, because OpenTelemetry would print every error.
// If several exports in a row fail, it logs only the first failure.
func (z *zipkin) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := z.send(ctx, spans)
	if earlier := z.failed.Swap(err != nil); err != nil && !earlier && z.logger != nil {
		z.logger.Warn("spans do not reach the Zipkin collector and are lost", "error", err, "hint",
			"start Zipkin, or remove spec.tracing.zipkin from the Configuration")
	}
	return nil
}

func (z *zipkin) send(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	out := make([]zipkinSpan, len(spans))
	for i, s := range spans {
		out[i] = zipkinSpanOf(s)
	}
	body, err := json.Marshal(out)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, z.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := z.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, maxZipkinAnswer)) // so that the connection is used again
	if answer.StatusCode/100 != 2 {
		return fault.New(fault.Unavailable, "tracing.Export", fmt.Sprintf("the Zipkin collector answered %d",
			answer.StatusCode))
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (z *zipkin) Shutdown(context.Context) error {
	z.client.CloseIdleConnections()
	return nil
}

func zipkinSpanOf(s sdktrace.ReadOnlySpan) zipkinSpan {
	out := zipkinSpan{TraceID: s.SpanContext().TraceID().String(), ID: s.SpanContext().SpanID().String(),
		Name: s.Name(), Timestamp: s.StartTime().UnixMicro(),
		Duration: max(1, s.EndTime().Sub(s.StartTime()).Microseconds()),
		Local:    map[string]string{}, Tags: map[string]string{}}
	if s.Parent().SpanID().IsValid() {
		out.Parent = s.Parent().SpanID().String()
	}
	switch s.SpanKind() {
	case trace.SpanKindServer:
		out.Kind = "SERVER"
	case trace.SpanKindClient:
		out.Kind = "CLIENT"
	}
	for _, a := range s.Resource().Attributes() {
		if a.Key == "service.name" {
			out.Local["serviceName"] = a.Value.String()
		}
	}
	for _, a := range s.Attributes() {
		out.Tags[string(a.Key)] = a.Value.String()
	}
	if s.Status().Code == codes.Error {
		out.Tags["error"] = s.Status().Description
	}
	return out
}

package tracing

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"

	"github.com/quorate/quorate/internal/fault"
)

// Declared is the tracing section of a Configuration resource. A nil *Declared means that there is none.
type Declared struct {
	SamplingRate float64 // from 0 to 1
	Endpoint     string  // host:port or URL of an OTLP collector; empty = none
	Protocol     string  // grpc or http
	Insecure     bool    // without TLS
	Headers      map[string]string
	Timeout      time.Duration // timeout of one export; 0 = the default
	Zipkin       string        // URL of a Zipkin collector, such as http://localhost:9411/api/v2/spans; empty = none
}

// exports reports whether spans are sent to the declared OTLP collector.
func (d *Declared) exports(env func(string) (string, bool)) bool {
	return d.enabled(env) && d.Endpoint != ""
}

// zipkinURL returns the URL of the declared Zipkin collector, or "" if no spans are sent to it.
func (d *Declared) zipkinURL(env func(string) (string, bool)) string {
	if !d.enabled(env) {
		return ""
	}
	return d.Zipkin
}

// enabled reports whether the section tracing and the environment permit exports.
func (d *Declared) enabled(env func(string) (string, bool)) bool {
	if v, _ := env("OTEL_SDK_DISABLED"); strings.EqualFold(v, "true") {
		return false
	}
	if v, _ := env("OTEL_TRACES_EXPORTER"); v == "none" {
		return false
	}
	return d != nil && d.SamplingRate > 0
}

// sampled decides at random whether a new trace is sampled.
func (d *Declared) sampled() bool { return d != nil && rand.Float64() < d.SamplingRate }

// sampler returns the sampler of the tracing section. It returns nil if there is no such section or if
// OTEL_TRACES_SAMPLER is set. The SDK then uses the sampler of the environment, or its default.
func (d *Declared) sampler(env func(string) (string, bool)) sdktrace.Sampler {
	if v, _ := env("OTEL_TRACES_SAMPLER"); d == nil || v != "" {
		return nil
	}
	return sdktrace.ParentBased(sdktrace.TraceIDRatioBased(d.SamplingRate))
}

// newExporter returns an exporter to an OTLP collector. It uses the collector of the environment variables if they
// enable an exporter, and the collector of o.Declared otherwise.
func newExporter(ctx context.Context, o Options) (sdktrace.SpanExporter, error) {
	protocol := ""
	for _, name := range []string{"OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
		if v, _ := o.Env(name); v != "" {
			protocol = v
		}
	}
	d := o.Declared
	if !d.exports(o.Env) || Wanted(o.Env) {
		d = &Declared{Protocol: "http/protobuf"}
	}
	if protocol == "" {
		protocol = d.Protocol
	}
	var exporter sdktrace.SpanExporter
	var err error
	switch protocol {
	case "grpc":
		exporter, err = otlptracegrpc.New(ctx, d.grpcOptions()...)
	case "http", "http/protobuf":
		var client *http.Client
		if client, err = d.collectorClient(o.Env); err != nil {
			return nil, err
		}
		exporter, err = otlptracehttp.New(ctx, append(d.httpOptions(), otlptracehttp.WithHTTPClient(client))...)
		exporter = ending{exporter, client}
	default:
		return nil, &fault.Error{Code: fault.Invalid, Op: "tracing.Open",
			Msg:  "the OTLP protocol " + protocol + " is not supported",
			Hint: "set OTEL_EXPORTER_OTLP_PROTOCOL to grpc or http/protobuf"}
	}
	if err != nil {
		return nil, fault.Wrap(err, "tracing.Open", "the exporter of traces")
	}
	return exporter, nil
}

func (d *Declared) grpcOptions() (out []otlptracegrpc.Option) {
	out = append(out, otlptracegrpc.WithDialOption(grpc.WithMaxHeaderListSize(maxHeader)))
	switch {
	case strings.Contains(d.Endpoint, "://"):
		out = append(out, otlptracegrpc.WithEndpointURL(d.Endpoint))
	case d.Endpoint != "":
		out = append(out, otlptracegrpc.WithEndpoint(d.Endpoint))
	}
	if d.Insecure {
		out = append(out, otlptracegrpc.WithInsecure())
	}
	if len(d.Headers) > 0 {
		out = append(out, otlptracegrpc.WithHeaders(d.Headers))
	}
	if d.Timeout > 0 {
		out = append(out, otlptracegrpc.WithTimeout(d.Timeout))
	}
	return out
}

func (d *Declared) httpOptions() (out []otlptracehttp.Option) {
	switch {
	case strings.Contains(d.Endpoint, "://"):
		out = append(out, otlptracehttp.WithEndpointURL(d.Endpoint))
	case d.Endpoint != "":
		out = append(out, otlptracehttp.WithEndpoint(d.Endpoint))
	}
	if d.Insecure {
		out = append(out, otlptracehttp.WithInsecure())
	}
	if len(d.Headers) > 0 {
		out = append(out, otlptracehttp.WithHeaders(d.Headers))
	}
	return out
}

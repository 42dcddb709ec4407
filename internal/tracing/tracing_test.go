package tracing_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/internal/tracing"
)

func env(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := pairs[name]; return v, ok }
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

// TestStart_PassesOnOnlyIDsThatAreExported checks which id a span passes on. A child of a span that no collector has
// would be lost in its trace. So a span that is not exported passes on the id of its parent.
func TestStart_PassesOnOnlyIDsThatAreExported(t *testing.T) {
	collector := httptest.NewServer(http.NotFoundHandler())
	defer collector.Close()
	exporting := func(rate float64) tracing.Options {
		return tracing.Options{Env: env(nil), Declared: &tracing.Declared{SamplingRate: rate, Zipkin: collector.URL}}
	}
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off") // the SDK itself reads this variable
	off := exporting(1)
	off.Env = env(map[string]string{"OTEL_TRACES_SAMPLER": "always_off"})
	unsampled := parent[:53] + "00"
	for name, c := range map[string]struct {
		options      tracing.Options
		parent, want string // want is empty for a new id in the trace of the parent
	}{
		"no exporter":                  {tracing.Options{Env: env(nil)}, parent, parent},
		"no exporter, not sampled":     {tracing.Options{Env: env(nil)}, unsampled, unsampled},
		"exporter":                     {exporting(1), parent, ""},
		"exporter, parent not sampled": {exporting(1), unsampled, unsampled},
		"exporter, dropped":            {off, parent, unsampled},
	} {
		tracer, err := tracing.Open(context.Background(), c.options)
		if err != nil {
			t.Fatal(err)
		}
		s := tracer.Start(context.Background(), http.Header{"Traceparent": {c.parent}}, tracing.Client, "x")
		h := http.Header{}
		s.Inject(h)
		switch got := h.Get("traceparent"); {
		case c.want != "" && got != c.want:
			t.Errorf("%s: passes on %s, want %s", name, got, c.want)
		case c.want == "" && (got[:36] != parent[:36] || got[36:52] == parent[36:52] || got[52:] != "-01"):
			t.Errorf("%s: passes on %s, want a new id in %s", name, got, parent)
		}
		if s.TraceID() != parent[3:35] {
			t.Errorf("%s: trace id %s", name, s.TraceID())
		}
		root := tracer.Start(context.Background(), http.Header{}, tracing.Client, "x")
		root.Inject(h)
		if id := h.Get("traceparent")[36:52]; strings.Trim(id, "0") == "" {
			t.Errorf("%s: a span without a parent has the id %s", name, id)
		}
		_ = tracer.Close(context.Background())
	}
}

func TestStart_InvalidParentBeginsNewTrace(t *testing.T) {
	tracer, err := tracing.Open(context.Background(), tracing.Options{Env: env(nil)})
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "x", parent[:54], strings.ToUpper(parent), parent + "-x", "ff" + parent[2:],
		"00-" + strings.Repeat("0", 32) + parent[35:]} {
		s := tracer.Start(context.Background(), http.Header{"Traceparent": {bad}}, tracing.Server, "x")
		h := http.Header{}
		s.Inject(h)
		if got := h.Get("traceparent"); len(got) != 55 || got[3:35] == parent[3:35] ||
			strings.Trim(got[3:35], "0") == "" {
			t.Errorf("%q gave %q", bad, got)
		}
	}
}

func TestOpen_ExportsSpansIfConfigured(t *testing.T) {
	bodies := make(chan string, 1)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		bodies <- r.URL.Path + " " + string(b)
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL) // the SDK itself reads this variable
	t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
	tracer, err := tracing.Open(context.Background(),
		tracing.Options{Service: "orders", Env: env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": collector.URL})})
	if err != nil {
		t.Fatal(err)
	}
	s := tracer.Start(context.Background(), http.Header{"Traceparent": {parent}}, tracing.Client, "invoke billing")
	s.End(http.StatusOK, nil)
	if err := tracer.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	got := <-bodies
	if !strings.HasPrefix(got, "/v1/traces ") || !strings.Contains(got, "invoke billing") ||
		!strings.Contains(got, "orders") {
		t.Errorf("got %q", got)
	}
}

// TestStartFrom_UsesGivenIDAndTime checks that a span that several processes know has the same id everywhere. Such a
// span may begin before the process that exports it.
func TestStartFrom_UsesGivenIDAndTime(t *testing.T) {
	collector, spans := testutil.Bodies(t)
	for _, declared := range []*tracing.Declared{nil, {SamplingRate: 1, Zipkin: collector}} {
		tracer, err := tracing.Open(context.Background(), tracing.Options{Env: env(nil), Declared: declared})
		if err != nil {
			t.Fatal(err)
		}
		s := tracer.StartFrom(context.Background(), http.Header{"Traceparent": {parent}}, "orchestration||order",
			tracing.Origin{Kind: tracing.Internal, ID: [8]byte{1, 2, 3, 4, 5, 6, 7, 8},
				Begun: time.UnixMicro(1_700_000)})
		s.SetInt("task", 7)
		h := http.Header{}
		s.Inject(h)
		if got := h.Get("traceparent"); got != parent[:36]+"0102030405060708-01" {
			t.Errorf("the context of the span is %s", got)
		}
		s.End(0, nil)
		if err := tracer.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if declared == nil {
			continue
		}
		got := <-spans
		for _, want := range []string{`"id":"0102030405060708"`, `"parentId":"` + parent[36:52] + `"`,
			`"timestamp":1700000`, `"task":"7"`} {
			if !strings.Contains(got, want) {
				t.Errorf("%s is not in %s", want, got)
			}
		}
	}
}

func TestEnd_RefusedAnswersHaveTheError(t *testing.T) {
	collector, spans := testutil.Bodies(t)
	for _, c := range []struct {
		status int
		err    error
		want   string // the tag error; empty = none
	}{
		{http.StatusOK, nil, ""},
		{0, nil, ""},
		{http.StatusForbidden, nil, "Code(403): Forbidden"},
		{http.StatusInternalServerError, nil, "Code(500): Internal Server Error"},
		{599, nil, "Code(599): Unknown"},
		{0, fault.New(fault.Timeout, "x", "no answer \xff"), "no answer \uFFFD"},
		{http.StatusOK, fault.New(fault.Internal, "x", "gRPC NotFound"), "gRPC NotFound"},
	} {
		tracer, err := tracing.Open(context.Background(), tracing.Options{Env: env(nil),
			Declared: &tracing.Declared{SamplingRate: 1, Zipkin: collector}})
		if err != nil {
			t.Fatal(err)
		}
		tracer.Start(context.Background(), http.Header{}, tracing.Client, "x").End(c.status, c.err)
		if err := tracer.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		var got []struct{ Tags map[string]string }
		if text := <-spans; json.Unmarshal([]byte(text), &got) != nil || len(got) != 1 {
			t.Fatal(text)
		}
		status := ""
		if c.status != 0 {
			status = strconv.Itoa(c.status)
		}
		if tags := got[0].Tags; tags["error"] != c.want || tags["http.response.status_code"] != status {
			t.Errorf("%d, %v: the span has %q", c.status, c.err, tags)
		}
	}
}

// TestCollectorClient_BoundsHeadersAndReadsVariables checks that the client limits the headers of an answer, because a
// collector may be hostile. The client must also apply the variables for certificates and for the timeout.
func TestCollectorClient_BoundsHeadersAndReadsVariables(t *testing.T) {
	fields := 0
	collector := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for n := range fields {
			w.Header().Set("X"+strconv.Itoa(n), "")
		}
	}))
	defer collector.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: collector.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := tracing.CollectorClient(env(map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": file,
		"OTEL_EXPORTER_OTLP_TIMEOUT": "4000", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "5000"}))
	if err != nil || client.Timeout != 5*time.Second {
		t.Fatal(client, err)
	}
	defer client.CloseIdleConnections()
	for _, c := range []struct {
		fields int
		well   bool
	}{{10, true}, {20_000, false}} {
		fields = c.fields
		answer, err := client.Get(collector.URL)
		if err == nil {
			_ = answer.Body.Close()
		}
		if (err == nil) != c.well {
			t.Errorf("%d fields: %v", c.fields, err)
		}
	}
	_, err = tracing.CollectorClient(env(map[string]string{"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": "/no/such/file"}))
	if !fault.Is(err, fault.Invalid) {
		t.Error(err)
	}
}

func TestOpen_LeavesNoGoroutineIfItFails(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing.pem")
	for name, c := range map[string]struct{ attributes, certificate string }{
		"malformed attributes": {"malformed", ""},
		"missing certificate":  {"", missing},
	} {
		for _, protocol := range []string{"grpc", "http"} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				t.Setenv("OTEL_RESOURCE_ATTRIBUTES", c.attributes) // the SDK itself reads this variable
				running := goleak.IgnoreCurrent()
				_, err := tracing.Open(t.Context(), tracing.Options{
					Env: env(map[string]string{"OTEL_EXPORTER_OTLP_CERTIFICATE": c.certificate}),
					Declared: &tracing.Declared{SamplingRate: 1, Endpoint: "127.0.0.1:1", Protocol: protocol,
						Insecure: true, Zipkin: "http://127.0.0.1:1"},
				})
				if err == nil {
					t.Error("the tracer was opened")
				}
				goleak.VerifyNone(t, running)
			})
		}
	}
}

func TestOpen_RefusesUnsupportedProtocol(t *testing.T) {
	_, err := tracing.Open(context.Background(),
		tracing.Options{Env: env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})})
	if err == nil || !strings.Contains(err.Error(), "http/protobuf") {
		t.Errorf("%v", err)
	}
}

package tracing_test

import (
	"context"
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

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/tracing"
)

func env(pairs map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := pairs[name]; return v, ok }
}

const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func TestStart_ContinuesTraceWithNewSpanID(t *testing.T) {
	tracer, err := tracing.Open(context.Background(), tracing.Options{Env: env(nil)})
	if err != nil {
		t.Fatal(err)
	}
	s := tracer.Start(context.Background(), http.Header{"Traceparent": {parent}}, tracing.Client, "x")
	h := http.Header{}
	s.Inject(h)
	got := h.Get("traceparent")
	if len(got) != 55 || got[:36] != parent[:36] || got[36:52] == parent[36:52] || got[52:] != "-01" {
		t.Errorf("got %s", got)
	}
	if s.TraceID() != parent[3:35] {
		t.Errorf("trace id %s", s.TraceID())
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
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL) // the SDK reads it itself
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

// The collector may be hostile, and the variables of its certificates and timeout must work.
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

func TestOpen_RefusesUnsupportedProtocol(t *testing.T) {
	_, err := tracing.Open(context.Background(),
		tracing.Options{Env: env(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x",
			"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"})})
	if err == nil || !strings.Contains(err.Error(), "http/protobuf") {
		t.Errorf("%v", err)
	}
}

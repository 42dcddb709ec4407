package component_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quorate/quorate/component"
)

func TestParseConfiguration_Sections(t *testing.T) {
	c, err := component.ParseConfiguration(document(t, "Configuration", `
  tracing:
    samplingRate: "0.5"
    otel: {endpointAddress: "collector:4317", isSecure: false, protocol: grpc, timeout: 3s,
      headers: ["a=b=c", {name: d, value: e}]}
    zipkin: {endpointAddress: "http://zipkin:9411/api/v2/spans"}
  metrics: {enabled: true, daprNames: true, latencyDistributionBuckets: [5, 50.5]}
  logging: {apiLogging: {enabled: true, obfuscateURLs: true, omitHealthChecks: true}}
  features: [{name: HotReload, enabled: false}]
  api:
    allowed: [{name: state, version: v1.0, protocol: HTTP}]
    denied: [{name: secrets, version: v1, protocol: grpc}]
  httpPipeline: {handlers: [{name: jwt, type: middleware.http.bearer, version: v1}]}
  appHttpPipeline: {handlers: [{name: alias, type: middleware.http.routeralias}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := component.Configuration{
		Tracing: &component.TracingConfig{SamplingRate: 0.5, OTLP: &component.OTLPConfig{Endpoint: "collector:4317",
			Protocol: "grpc", Insecure: true, Timeout: 3 * time.Second,
			Headers: map[string]string{"a": "b=c", "d": "e"}}},
		Metrics: &component.MetricsConfig{Enabled: true, DaprNames: true, Buckets: []float64{5, 50.5}},
		APILog:  &component.APILogConfig{Enabled: true, ObfuscateURLs: true, OmitHealth: true},
		API: &component.APIRules{Allowed: []component.APIRule{{Name: "state", Version: "v1.0", Protocol: "http"}},
			Denied: []component.APIRule{{Name: "secrets", Version: "v1", Protocol: "grpc"}}},
		Pipeline:    []component.PipelineHandler{{Name: "jwt", Type: "middleware.http.bearer"}},
		AppPipeline: []component.PipelineHandler{{Name: "alias", Type: "middleware.http.routeralias"}},
		NoReload:    true,
		Features:    []string{},
	}
	if diff := cmp.Diff(want, component.Join([]component.Configuration{c}), cmpopts.IgnoreTypes(component.Pos{}),
		cmpopts.IgnoreFields(component.Configuration{}, "Unused")); diff != "" {
		t.Error(diff)
	}
	if len(c.Unused) != 1 || !strings.Contains(c.Unused[0].String(), "spec.tracing.otel") {
		t.Errorf("%v", c.Unused)
	}
}

func TestParseConfiguration_RefusesWrongSections(t *testing.T) {
	for spec, want := range map[string]string{
		"  tracing: {samplingRate: \"2\"}\n":                                `samplingRate is "2"`,
		"  tracing: {otel: {endpointAddress: \"c:1\", protocol: thrift}}\n": "use grpc or http",
		"  tracing: {otel: {endpointAddress: \"c:1\", timeout: soon}}\n":    "use a duration",
		"  metrics: {latencyDistributionBuckets: [5, 5]}\n":                 "growing numbers",
		"  metrics: {daprNmaes: true}\n":                                    "did you mean daprNames?",
		"  api: {denied: [{name: state, version: v1.0, protocol: ftp}]}\n":  "use http or grpc",
		"  httpPipeline: {handlers: [{name: a}]}\n":                         "needs name and type",
		"  httpPipeline: {handlers: [{name: a, type: b, selector: {fields: [{field: a, " +
			"value: b}]}}]}\n": "selector is not supported",
	} {
		_, err := component.ParseConfiguration(document(t, "Configuration", spec))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "c.yaml:") {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func TestParseHTTPEndpoint(t *testing.T) {
	e, err := component.ParseHTTPEndpoint(document(t, "HTTPEndpoint", `
  version: v1alpha1
  baseUrl: https://partner.example/v1
  headers: [{name: X-Key, value: k}, {name: X-Env, envRef: PARTNER}]
  clientTLS: {renegotiation: RenegotiateNever, rootCA: {secretKeyRef: {name: "", key: ""}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	env := func(name string) (string, bool) { return "from env", name == "PARTNER" }
	s, err := e.Resolve(t.Context(), component.Sources{Env: env})
	if err != nil || s.Header.Get("X-Key") != "k" || s.Header.Get("X-Env") != "from env" ||
		e.BaseURL.String() != "https://partner.example/v1" {
		t.Errorf("%v %v %v", e, s, err)
	}
	for spec, want := range map[string]string{
		"  {}\n":                            "spec.baseUrl is missing",
		"  baseUrl: partner.example\n":      "not a base address",
		"  baseUrl: http://u:p@partner.x\n": "not a base address",
		"  baseUrl: http://p\n  headers: [{name: \"a b\", value: c}]\n":       "not the name of a header",
		"  baseUrl: http://p\n  clientTls: {}\n":                              "did you mean clientTLS?",
		"  baseUrl: http://p\n  clientTLS: {renegotiation: Often}\n":          "use Never",
		"  baseUrl: http://p\n  clientTLS: {rootCA: {value: a, envRef: b}}\n": "needs value, secretKeyRef or envRef",
	} {
		if _, err := component.ParseHTTPEndpoint(document(t, "HTTPEndpoint", spec)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

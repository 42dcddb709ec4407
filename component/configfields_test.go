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
			Headers: map[string]string{"a": "b=c", "d": "e"}}, Zipkin: "http://zipkin:9411/api/v2/spans"},
		Metrics: &component.MetricsConfig{Enabled: true, DaprNames: true, Buckets: []float64{5, 50.5}},
		APILog:  &component.APILogConfig{Enabled: true, ObfuscateURLs: true, OmitHealth: true},
		API: &component.APIRules{Allowed: []component.APIRule{{Name: "state", Version: "v1.0", Protocol: "http"}},
			Denied: []component.APIRule{{Name: "secrets", Version: "v1", Protocol: "grpc"}}},
		Pipeline:    []component.PipelineHandler{{Name: "jwt", Type: "middleware.http.bearer"}},
		AppPipeline: []component.PipelineHandler{{Name: "alias", Type: "middleware.http.routeralias"}},
		NoReload:    true,
		Features:    []string{},
	}
	if diff := cmp.Diff(want, c, cmpopts.IgnoreTypes(component.Pos{}),
		cmpopts.IgnoreFields(component.Configuration{}, "Name", "Sections",
			"Unused")); diff != "" {
		t.Error(diff)
	}
	if len(c.Unused) != 0 {
		t.Errorf("%v", c.Unused)
	}
}

// As in Dapr, a field replaces that field of earlier documents, and a list replaces the whole list.
func TestParseConfigurations_MergesFields(t *testing.T) {
	type conf = component.Configuration
	const policies = "  accessControl: {policies: [{appId: a, namespace: default, trustDomain: public, " +
		"defaultAction: deny}]}\n"
	deny := []component.AccessPolicy{{AppID: "a", Namespace: "default", TrustDomain: "public", DefaultAction: "deny"}}
	for name, c := range map[string]struct {
		specs []string
		want  conf
	}{
		"access control stays when only the trust domain is set": {[]string{
			policies,
			"  accessControl: {trustDomain: shop}\n"},
			conf{AccessControl: &component.AccessControl{DefaultAction: "deny", TrustDomain: "shop", Policies: deny}}},
		"policies without a default action deny the rest": {[]string{
			"  accessControl: {trustDomain: shop}\n",
			policies},
			conf{AccessControl: &component.AccessControl{DefaultAction: "deny", TrustDomain: "shop", Policies: deny}}},
		"an earlier default action stays": {[]string{
			"  accessControl: {defaultAction: allow}\n",
			policies},
			conf{AccessControl: &component.AccessControl{DefaultAction: "allow", TrustDomain: "public",
				Policies: deny}}},
		"tracing": {[]string{
			"  tracing: {samplingRate: \"1\", otel: {protocol: http, headers: [a=b]}}\n",
			"  tracing: {otel: {endpointAddress: \"c:1\", headers: [d=e]}}\n",
			"  tracing: {otel: {isSecure: false}}\n"},
			conf{Tracing: &component.TracingConfig{SamplingRate: 1, OTLP: &component.OTLPConfig{Endpoint: "c:1",
				Protocol: "http", Insecure: true, Headers: map[string]string{"d": "e"}}}}},
		"metrics": {[]string{
			"  metrics: {daprNames: true, http: {excludeVerbs: true, pathMatching: [/a]}}\n",
			"  metric: {http: {increasedCardinality: false, pathMatching: [/b, /c]}}\n"},
			conf{Metrics: &component.MetricsConfig{Enabled: true, DaprNames: true, NoPaths: true, ExcludeVerbs: true,
				Paths: []string{"/b", "/c"}}}},
		"a setting of metrics before their names": {[]string{
			"  metrics: {recordErrorCodes: true}\n", "  metrics: {daprNames: true}\n"},
			conf{Metrics: &component.MetricsConfig{Enabled: true, DaprNames: true, ErrorCodes: true}}},
		"logging": {[]string{
			"  logging: {apiLogging: {enabled: true, obfuscateURLs: true}}\n",
			"  logging: {apiLogging: {omitHealthChecks: true, obfuscateURLs: false}}\n"},
			conf{APILog: &component.APILogConfig{Enabled: true, OmitHealth: true}}},
		"handlers and API rules add up": {[]string{
			"  httpPipeline: {handlers: [{name: a, type: middleware.http.bearer}]}\n" +
				"  api: {denied: [{name: state, version: v1.0, protocol: http}]}\n",
			"  httpPipeline: {handlers: [{name: b, type: middleware.http.bearer}]}\n" +
				"  api: {denied: [{name: secrets, version: v1.0, protocol: http}]}\n"},
			conf{Pipeline: []component.PipelineHandler{{Name: "a", Type: "middleware.http.bearer"},
				{Name: "b", Type: "middleware.http.bearer"}},
				API: &component.APIRules{Denied: []component.APIRule{{Name: "state", Version: "v1.0", Protocol: "http"},
					{Name: "secrets", Version: "v1.0", Protocol: "http"}}}}},
	} {
		var docs []component.Document
		for _, spec := range c.specs {
			docs = append(docs, document(t, "Configuration", spec))
		}
		got, err := component.ParseConfigurations(docs, component.Configuration{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got, cmpopts.IgnoreTypes(component.Pos{})); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestParseConfiguration_RefusesWrongSections(t *testing.T) {
	for spec, want := range map[string]string{
		"  tracing: {samplingRate: \"2\"}\n":                                `samplingRate is "2"`,
		"  tracing: {otel: {endpointAddress: \"c:1\", protocol: thrift}}\n": "use grpc or http",
		"  tracing: {otel: {endpointAddress: \"c:1\", timeout: soon}}\n":    "use a duration",
		"  metrics: {latencyDistributionBuckets: [5, 5]}\n":                 "growing numbers",
		"  tracing: {zipkin: {endpointAddress: \"localhost:9411\"}}\n":      "as http://localhost:9411/api/v2/spans",
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

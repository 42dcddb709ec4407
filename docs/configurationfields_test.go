package docs_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/component"
)

// configurationField is a field of Dapr's Configuration resource, and an example of its use below spec.
type configurationField struct {
	name    string
	without string // the same document without the field; empty = no spec
	with    string
}

// configurationFields returns all fields of the resource as of Dapr 1.18, and those that Quorate adds.
func configurationFields() []configurationField {
	policy := func(fields string) string { return "accessControl: {policies: [{" + fields + "}]}" }
	policies := func(rest string) string { return policy("appId: a, namespace: default, trustDomain: public" + rest) }
	operations := func(rest string) string { return policies(", operations: [{name: /x" + rest + "}]") }
	scopes := func(rest string) string { return "secrets: {scopes: [{storeName: s" + rest + "}]}" }
	handlers := func(name, rest string) string { return name + ": {handlers: [{name: a, type: b" + rest + "}]}" }
	rules := func(list, protocol string) string {
		return "api: {" + list + ": [{name: state, version: v1, protocol: " + protocol + "}]}"
	}
	kept := func(status string) string { return "workflow: {stateRetentionPolicy: {" + status + ": 1h}}" }
	return []configurationField{
		{"accessControl.defaultAction", "accessControl: {}", "accessControl: {defaultAction: deny}"},
		{"accessControl.trustDomain", "accessControl: {}", "accessControl: {trustDomain: t}"},
		{"accessControl.policies[].appId", "accessControl: {}", policies("")},
		{"accessControl.policies[].defaultAction", policies(""), policies(", defaultAction: allow")},
		{"accessControl.policies[].trustDomain", policies(""), policy("appId: a, namespace: default, trustDomain: t")},
		{"accessControl.policies[].namespace", policies(""), policy("appId: a, namespace: n, trustDomain: public")},
		{"accessControl.policies[].operations[].name", policies(""), operations(", action: allow")},
		{"accessControl.policies[].operations[].httpVerb", operations(", action: allow"),
			operations(", action: allow, httpVerb: [GET]")},
		{"accessControl.policies[].operations[].action", operations(", action: deny"), operations(", action: allow")},
		{"secrets.scopes[].storeName", "", scopes("")},
		{"secrets.scopes[].defaultAccess", scopes(""), scopes(", defaultAccess: deny")},
		{"secrets.scopes[].allowedSecrets", scopes(""), scopes(", allowedSecrets: [a]")},
		{"secrets.scopes[].deniedSecrets", scopes(""), scopes(", deniedSecrets: [a]")},
		{"api.allowed", "", rules("allowed", "http")},
		{"api.denied", "", rules("denied", "http")},
		{"api.allowed[].protocol", rules("allowed", "http"), rules("allowed", "grpc")},
		{"httpPipeline.handlers[].name", "", handlers("httpPipeline", "")},
		{"httpPipeline.handlers[].version", handlers("httpPipeline", ""), handlers("httpPipeline", ", version: v1")},
		{"httpPipeline.handlers[].selector", handlers("httpPipeline", ""),
			handlers("httpPipeline", ", selector: {fields: [{field: a, value: b}]}")},
		{"appHttpPipeline.handlers[].name", "", handlers("appHttpPipeline", "")},
		{"tracing.samplingRate", "tracing: {}", `tracing: {samplingRate: "1"}`},
		{"tracing.otel.endpointAddress", "tracing: {}", `tracing: {otel: {endpointAddress: "c:1"}}`},
		{"tracing.otel.protocol", `tracing: {otel: {endpointAddress: "c:1"}}`,
			`tracing: {otel: {endpointAddress: "c:1", protocol: http}}`},
		{"tracing.otel.isSecure", `tracing: {otel: {endpointAddress: "c:1"}}`,
			`tracing: {otel: {endpointAddress: "c:1", isSecure: false}}`},
		{"tracing.otel.headers", `tracing: {otel: {endpointAddress: "c:1"}}`,
			`tracing: {otel: {endpointAddress: "c:1", headers: ["a=b"]}}`},
		{"tracing.otel.timeout", `tracing: {otel: {endpointAddress: "c:1"}}`,
			`tracing: {otel: {endpointAddress: "c:1", timeout: 3s}}`},
		{"tracing.stdout", "tracing: {}", "tracing: {stdout: true}"},
		{"tracing.zipkin.endpointAddress", "tracing: {}", `tracing: {zipkin: {endpointAddress: "http://z:1"}}`},
		{"metrics.enabled", "metrics: {}", "metrics: {enabled: false}"},
		{"metrics.daprNames", "metrics: {}", "metrics: {daprNames: true}"},
		{"metrics.latencyDistributionBuckets", "metrics: {daprNames: true}",
			"metrics: {daprNames: true, latencyDistributionBuckets: [5, 50]}"},
		{"metrics.http.increasedCardinality", "metrics: {daprNames: true}",
			"metrics: {daprNames: true, http: {increasedCardinality: false}}"},
		{"metrics.http.excludeVerbs", "metrics: {daprNames: true}",
			"metrics: {daprNames: true, http: {excludeVerbs: true}}"},
		{"metrics.http.pathMatching", "metrics: {daprNames: true}",
			"metrics: {daprNames: true, http: {pathMatching: [/a]}}"},
		{"metrics.rules", "metrics: {}", "metrics: {rules: [{name: a, labels: [{name: b, regex: {c: d}}]}]}"},
		{"metrics.recordErrorCodes", "metrics: {daprNames: true}",
			"metrics: {daprNames: true, recordErrorCodes: true}"},
		{"logging.apiLogging.enabled", "logging: {apiLogging: {}}", "logging: {apiLogging: {enabled: true}}"},
		{"logging.apiLogging.obfuscateURLs", "logging: {apiLogging: {}}",
			"logging: {apiLogging: {obfuscateURLs: true}}"},
		{"logging.apiLogging.omitHealthChecks", "logging: {apiLogging: {}}",
			"logging: {apiLogging: {omitHealthChecks: true}}"},
		{"features[].name", "features: []", "features: [{name: HotReload, enabled: false}]"},
		{"mtls.enabled", "mtls: {enabled: false}", "mtls: {enabled: true}"},
		{"mtls.workloadCertTTL", "mtls: {enabled: false}", "mtls: {enabled: false, workloadCertTTL: 24h}"},
		{"mtls.allowedClockSkew", "mtls: {enabled: false}", "mtls: {enabled: false, allowedClockSkew: 15m}"},
		{"mtls.sentryAddress", "mtls: {enabled: false}", `mtls: {enabled: false, sentryAddress: "s:1"}`},
		{"mtls.controlPlaneTrustDomain", "mtls: {enabled: false}",
			"mtls: {enabled: false, controlPlaneTrustDomain: t}"},
		{"mtls.tokenValidators", "mtls: {enabled: false}", "mtls: {enabled: false, tokenValidators: [{name: v}]}"},
		{"components.deny", "components: {}", "components: {deny: [bindings.http]}"},
		{"nameResolution", "", "nameResolution: {component: mdns, version: v1, configuration: {}}"},
		{"wasm.strictSandbox", "", "wasm: {strictSandbox: true}"},
		{"workflow.maxConcurrentWorkflowInvocations", "workflow: {}",
			"workflow: {maxConcurrentWorkflowInvocations: 5}"},
		{"workflow.maxConcurrentActivityInvocations", "workflow: {}",
			"workflow: {maxConcurrentActivityInvocations: 5}"},
		{"workflow.stateRetentionPolicy.anyTerminal", "workflow: {}", kept("anyTerminal")},
		{"workflow.stateRetentionPolicy.completed", "workflow: {}", kept("completed")},
		{"workflow.stateRetentionPolicy.failed", "workflow: {}", kept("failed")},
		{"workflow.stateRetentionPolicy.terminated", "workflow: {}", kept("terminated")},
		{"workflow.globalMaxConcurrentWorkflowInvocations", "workflow: {}",
			"workflow: {globalMaxConcurrentWorkflowInvocations: 5}"},
		{"workflow.globalMaxConcurrentActivityInvocations", "workflow: {}",
			"workflow: {globalMaxConcurrentActivityInvocations: 5}"},
		{"workflow.workflowConcurrencyLimits", "workflow: {}",
			"workflow: {workflowConcurrencyLimits: [{name: a, maxConcurrent: 1}]}"},
		{"workflow.activityConcurrencyLimits", "workflow: {}",
			"workflow: {activityConcurrencyLimits: [{name: a, maxConcurrent: 1}]}"},
	}
}

// TestCompatibility_ConfigurationFields checks each row of the table: a field that works changes what is read, an
// ignored one changes nothing, and a refused one is an error.
func TestCompatibility_ConfigurationFields(t *testing.T) {
	page := source(t, "dapr-compatibility.md")
	_, page, _ = strings.Cut(page, "## Fields of a Configuration\n")
	table, _, _ := strings.Cut(page, "\n## ")
	var listed []string
	for _, line := range strings.Split(table, "\n") {
		if name, ok := strings.CutPrefix(line, "| `spec."); ok {
			name, _, _ = strings.Cut(name, "`")
			listed = append(listed, name)
		}
	}
	for _, f := range configurationFields() {
		t.Run(f.name, func(t *testing.T) {
			at := slices.Index(listed, f.name)
			if at < 0 {
				t.Fatal("is not listed")
			}
			listed = slices.Delete(listed, at, at+1)
			_, row, _ := strings.Cut(table, "| `spec."+f.name+"` | ")
			want, _, _ := strings.Cut(row, " |")
			before, err := configurationOf(t, f.without)
			if err != nil {
				t.Fatal(err)
			}
			after, err := configurationOf(t, f.with)
			got := "works"
			switch {
			case err != nil:
				got = "refused"
			case before == after:
				got = "ignored"
			}
			if want != got && !(want == "differs" && got == "works") {
				t.Errorf("is listed as %s, and is %s (%v)\n%s\n%s", want, got, err, before, after)
			}
		})
	}
	if len(listed) > 0 {
		t.Errorf("rows without a test: %q", listed)
	}
}

// configurationOf returns what takes effect of a Configuration document, as text that can be compared.
func configurationOf(t *testing.T, spec string) (string, error) {
	t.Helper()
	f, err := component.Parse("c.yaml", strings.NewReader(
		"apiVersion: dapr.io/v1alpha1\nkind: Configuration\nmetadata: {name: c}\nspec:\n  "+spec+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := component.ParseConfiguration(f.Documents[0])
	if err != nil {
		return "", err
	}
	scopes, problems := f.Documents[0].SecretScopes()
	if err := problems.Err("docs"); err != nil {
		return "", err
	}
	c.Sections, c.Unused = nil, nil
	text, err := json.Marshal([]any{c, scopes})
	if err != nil {
		t.Fatal(err)
	}
	return string(text), nil
}

package component_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quorate/quorate/component"
)

func document(t *testing.T, kind, spec string) component.Document {
	t.Helper()
	text := "apiVersion: x.io/v1alpha1\nkind: " + kind + "\nmetadata:\n  name: c\nspec:\n" + spec
	f, err := component.Parse("c.yaml", strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return f.Documents[0]
}

func TestParse_StatusIsIgnored(t *testing.T) {
	for _, test := range []struct {
		kind, spec string
		parse      func(component.Document) error
	}{
		{"Configuration", "{}", func(d component.Document) error {
			_, err := component.ParseConfiguration(d)
			return err
		}},
		{"HTTPEndpoint", "{baseUrl: https://a.example}", func(d component.Document) error {
			_, err := component.ParseHTTPEndpoint(d)
			return err
		}},
		{"Resiliency", "{policies: {}}", func(d component.Document) error {
			_, err := component.ParseResiliency(d)
			return err
		}},
		{"Subscription", "{pubsubname: m, topic: o}", func(d component.Document) error {
			_, err := component.ParseSubscription(d)
			return err
		}},
	} {
		doc := parse(t, "apiVersion: dapr.io/v1alpha1\nkind: "+test.kind+"\nmetadata: {name: x}\nspec: "+test.spec+
			"\nstatus: {conditions: []}\n").Documents[0]
		if err := test.parse(doc); err != nil {
			t.Errorf("%s: %v", test.kind, err)
		}
	}
}

func TestParseConfiguration_AccessControl(t *testing.T) {
	c, err := component.ParseConfiguration(document(t, "Configuration", `
  nameResolution: {component: mdns}
  accessControl:
    defaultAction: deny
    trustDomain: shop
    policies:
    - appId: web
      namespace: default
      trustDomain: public
      defaultAction: allow
      operations:
      - name: /admin/**
        action: deny
      - {name: orders, httpVerb: [POST, PUT], action: allow}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := &component.AccessControl{DefaultAction: component.Deny, TrustDomain: "shop",
		Policies: []component.AccessPolicy{{
			AppID: "web", Namespace: "default", TrustDomain: "public", DefaultAction: component.Allow,
			Operations: []component.AccessOperation{
				{Name: "/admin/**", Verbs: []string{"*"}, Action: component.Deny}, {Name: "orders",
					Verbs: []string{"POST", "PUT"}, Action: component.Allow},
			},
		}}}
	if diff := cmp.Diff(want, c.AccessControl, cmpopts.IgnoreTypes(component.Pos{})); diff != "" {
		t.Error(diff)
	}
	if !c.AccessControl.NeedsIdentity() || c.Sections["accessControl"] == nil || len(c.Unused) != 1 ||
		!strings.Contains(c.Unused[0].String(), "spec.nameResolution has no effect") {
		t.Errorf("%+v", c)
	}
}

func TestParseConfiguration_RefusesUnenforcedSections(t *testing.T) {
	const policies = "  accessControl:\n    policies:\n    - "
	for spec, want := range map[string]string{
		"  acessControl: {}\n": "did you mean accessControl?",

		policies + "{appId: a, namespace: n}\n":                                           "has no trustDomain",
		policies + "{appId: a, namespace: n, trustDomain: t, operation: []}\n":            "did you mean operations?",
		"  accessControl:\n    defaultAction: block\n":                                    "use allow or deny",
		policies + "{appId: a, namespace: n, trustDomain: t, operations: [{name: /a}]}\n": "has no action",
		"  accessControl:\n    policies:\n    - {appId: a, namespace: n, trustDomain: t, operations: [{name: " +
			"/a/**/b, action: deny}]}\n": "must be the last part",
		"  accessControl:\n    policies:\n    - {appId: a, namespace: n, trustDomain: t, operations: [{name: /a, " +
			"httpVerb: [get], action: deny}]}\n": "write GET",
		"  accessControl:\n    policies:\n    - {appId: a, namespace: n, trustDomain: t}\n    - {appId: a, " +
			"namespace: n, trustDomain: t}\n": "is already in line",
		"  api: {allowed: [{name: state}]}\n":          "needs name, version and protocol",
		"  components: {deny: [bindings]}\n":           "spec.components would have no effect",
		"  appHttpPipeline: {handlers: [{name: o}]}\n": "spec.appHttpPipeline.handlers needs name and type",
		"  mtls: {enabled: true}\n":                    "--cluster-token-file",
	} {
		_, err := component.ParseConfiguration(document(t, "Configuration", spec))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "c.yaml:") {
			t.Errorf("%s: %v", spec, err)
		}
	}
	for _, spec := range []string{"", "  mtls: {enabled: false}\n", "  api: {}\n",
		"  accessControl: {defaultAction: deny}\n"} {
		if c, err := component.ParseConfiguration(document(t, "Configuration", spec)); err != nil ||
			c.AccessControl.NeedsIdentity() {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func TestParseResiliency_Applications(t *testing.T) {
	r, err := component.ParseResiliency(document(t, "Resiliency", `
  policies:
    timeouts: {fast: 500ms}
    retries:
      often: {policy: exponential, maxInterval: 2s, maxRetries: 4, matching: {httpStatusCodes: "429, 500-599"}}
      calls: {matching: {httpStatusCodes: "", gRPCStatusCodes: "1,4-6"}}
      odd: {matching: {httpStatusCodes: "100-199,301"}}
      plain: {policy: constant}
    circuitBreakers:
      cb: {maxRequests: 2, interval: 8s, timeout: 45s, trip: consecutiveFailures >= 3 || requests > 10 && totalFailures / requests >= 0.5}
  targets:
    apps:
      web: {timeout: fast, retry: often, circuitBreaker: cb}
    components:
      store: {outbound: {timeout: fast}}
`))
	if err != nil {
		t.Fatal(err)
	}
	want := component.RetryPolicy{Exponential: true, Duration: 500 * time.Millisecond, MaxInterval: 2 * time.Second,
		MaxRetries: 4, Statuses: [][2]int{{429, 429}, {500, 599}}}
	if diff := cmp.Diff(want, r.Retries["often"]); diff != "" {
		t.Error(diff)
	}
	if p := r.Retries["calls"]; len(p.Statuses) != 0 || !cmp.Equal(p.Codes, [][2]int{{1, 1}, {4, 6}}) {
		t.Errorf("%+v", p)
	}
	if p := r.Retries["odd"]; !cmp.Equal(p.Statuses, [][2]int{{100, 199}, {301, 301}}) {
		t.Errorf("%+v", p)
	}
	if p := r.Retries["plain"]; p.Duration != 5*time.Second || p.MaxRetries != -1 {
		t.Errorf("%+v", p)
	}
	if r.Timeouts["fast"] != 500*time.Millisecond || r.Apps["web"].CircuitBreaker != "cb" ||
		r.Components["store"].Outbound.Timeout != "fast" || len(r.Unused) != 0 {
		t.Errorf("%+v", r)
	}
	trip := r.Breakers["cb"].Trip
	for c, want := range map[component.TripCounts]bool{{ConsecutiveFailures: 3}: true, {ConsecutiveFailures: 2}: false,
		{Requests: 20, TotalFailures: 10}: true, {Requests: 20, TotalFailures: 9}: false} {
		if trip.IsTrue(c) != want {
			t.Errorf("%+v: %v", c, !want)
		}
	}
}

// In Dapr, the evaluation of a condition with a division by zero fails. The circuit breaker then stays closed.
func TestTripCondition_DivisionByZeroIsFalse(t *testing.T) {
	counts := component.TripCounts{Requests: 1, TotalFailures: 1, ConsecutiveFailures: 1}
	for text, want := range map[string]bool{
		"totalFailures / (requests - 1) > 0.5":            false,
		"totalFailures / (requests - 1) != 2":             false,
		"0 / (requests - 1) == 0":                         false,
		"1 + totalFailures / (requests - 1) >= 0":         false,
		"1 / (requests - 1) < 0 || requests == 1":         true,
		"requests == 1 && totalFailures / requests > 0.5": true,
		"requests != 2": true,
	} {
		trip, err := component.ParseTripCondition(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := trip.IsTrue(counts); got != want {
			t.Errorf("%s is %v, want %v", text, got, want)
		}
	}
}

func TestParseResiliency_RefusesInvalidDocuments(t *testing.T) {
	for spec, want := range map[string]string{
		"  policies: {timeouts: {a: soon}}\n":                           "use a duration",
		"  policies: {retries: {a: {policy: linear}}}\n":                "use constant or exponential",
		"  policies: {retries: {a: {retry: 1}}}\n":                      "unknown field",
		"  policies: {retries: {a: {matching: {httpStatusCodes: 6}}}}":  "429,500-599",
		"  policies: {retries: {a: {matching: {gRPCStatusCodes: 17}}}}": "from 0 to 16",
		"  policies: {circuitBreakers: {a: {trip: failures > 1}}}":      `"failures" is not understood`,
		"  policies: {circuitBreakers: {a: {trip: requests}}}":          "not a condition",
		"  targets: {apps: {web: {retry: missing}}}\n":                  `names the retry "missing"`,
	} {
		_, err := component.ParseResiliency(document(t, "Resiliency", spec))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

func FuzzParseTrip(f *testing.F) {
	for _, s := range []string{"consecutiveFailures > 5", "(requests+1)*2 >= 3 && totalFailures != 0",
		"1 < 2 || 3 == 3", "((((", "a && b", "1 2"} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		if trip, err := component.ParseTripCondition(text); err == nil {
			trip.IsTrue(component.TripCounts{Requests: 1})
		}
	})
}

package invoke_test

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/discovery"
)

// oneNode is a cluster in which all applications run on the node of the caller.
type oneNode struct{ *cluster }

func (oneNode) Pick(app api.App, _ []discovery.Instance) (*discovery.Lease, error) {
	return discovery.NewLease(discovery.Instance{App: app, Local: true}, func(discovery.Outcome) {}), nil
}

// RoundTrip implements invoke.Channel. The application answers 200.
func (oneNode) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")),
		Request: r}, nil
}

// callLocally calls the application web from the application shop of the same node.
func callLocally(t *testing.T, rules *component.AccessControl) error {
	t.Helper()
	metrics, err := invoke.NewMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	sessions, routes, node := api.NewSessions(nil), &invoke.Routes{}, oneNode{&cluster{}}
	here := invoke.NewCallee(sessions, metrics, apitest.Untraced{})
	web := api.App{ID: "web"}
	here.Serve(map[api.App]invoke.Channel{web: node}, map[api.App]*invoke.Access{web: invoke.NewAccess(rules, false)})
	routes.Open(node, node)
	return call(t.Context(), invoke.New(api.App{ID: "shop"}, invoke.Parts{Routes: routes, Here: here,
		Sessions: sessions, Policies: resiliency.NewPolicies(), Tracer: apitest.Untraced{}, Metrics: metrics,
		Logger: slog.New(slog.DiscardHandler)}))
}

func TestAccess_LocalCallerIsInTheTrustDomainOfTheNode(t *testing.T) {
	for name, c := range map[string]struct {
		node, policy string // trust domains
		denied       bool
	}{
		"same domain":      {"corp", "corp", true},
		"other domain":     {"corp", "public", false},
		"default domain":   {"", "public", true},
		"policy elsewhere": {"", "corp", false},
	} {
		err := callLocally(t, &component.AccessControl{DefaultAction: component.Allow, TrustDomain: c.node,
			Policies: []component.AccessPolicy{{AppID: "shop", Namespace: "default", TrustDomain: c.policy,
				DefaultAction: component.Deny}}})
		if (err != nil) != c.denied || c.denied && api.AsError(err).Kind != api.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
}

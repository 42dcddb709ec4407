package api_test

import (
	"net/http"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

func rules() *component.AccessControl {
	return &component.AccessControl{DefaultAction: component.Deny, Policies: []component.AccessPolicy{
		{AppID: "web", Namespace: "default", TrustDomain: "public", DefaultAction: component.Deny, Operations: []component.AccessOperation{
			{Name: "/orders", Verbs: []string{"GET", "POST"}, Action: component.Allow},
			{Name: "/orders/*", Verbs: []string{"*"}, Action: component.Allow},
			{Name: "/files/**", Verbs: []string{"*"}, Action: component.Allow},
			{Name: "/v*/x", Verbs: []string{"*"}, Action: component.Allow},
		}},
		{AppID: "ops", Namespace: "prod", TrustDomain: "public", DefaultAction: component.Allow, Operations: []component.AccessOperation{
			{Name: "admin/**", Verbs: []string{"*"}, Action: component.Deny},
		}},
	}}
}

func TestAccessControlDecidesByCallerVerbAndDecodedPath(t *testing.T) {
	access := api.NewAccess(rules(), false)
	web, ops := api.App{ID: "web"}, api.App{ID: "ops", Namespace: "prod"}
	for _, c := range []struct {
		caller     api.App
		verb, path string
		allowed    bool
	}{
		{web, "GET", "/orders", true},
		{web, "POST", "/Orders/", true},
		{web, "DELETE", "/orders", false},
		{web, "DELETE", "/orders/7", true},
		{web, "GET", "/orders/7/lines", false},
		{web, "GET", "/files/a/b/c", true},
		{web, "GET", "/files", false},
		{web, "GET", "/v12/x", true},
		{web, "GET", "/w12/x", false},
		{web, "GET", "/", false},
		{ops, "GET", "/orders", true},
		{ops, "GET", "/admin/users", false},
		{ops, "GET", "//admin/./users", false},
		{ops, "GET", "/ADMIN", false},
		{api.App{ID: "ops"}, "GET", "/orders", false},
		{api.App{ID: "other"}, "GET", "/orders", false},
		{api.App{ID: "billing"}, "GET", "/anything", true}, // calls itself
	} {
		in := &api.Inbound{Target: api.App{ID: "billing"}, Caller: api.Caller{App: c.caller, Proven: true}, Decoded: c.path, Request: &http.Request{Method: c.verb}}
		err := access.Allow(in)
		if (err == nil) != c.allowed || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s %s %s: %v", c.caller, c.verb, c.path, err)
		}
	}
}

func TestACallerThatIsNotProvenMatchesNoPolicy(t *testing.T) {
	in := &api.Inbound{Target: api.App{ID: "billing"}, Caller: api.Caller{App: api.App{ID: "web"}}, Decoded: "/orders", Request: &http.Request{Method: "GET"}}
	if api.NewAccess(rules(), false).Allow(in) == nil {
		t.Error("a claim was believed")
	}
	if err := api.NewAccess(rules(), true).Allow(in); err != nil {
		t.Error(err)
	}
	in.Caller = api.Caller{App: in.Target}
	if api.NewAccess(rules(), false).Allow(in) == nil {
		t.Error("a claim to be the application itself was believed")
	}
	in.Caller = api.Caller{App: api.App{ID: "web"}, Proven: true, TrustDomain: "other"}
	if api.NewAccess(rules(), false).Allow(in) == nil {
		t.Error("another trust domain matched")
	}
	if api.NewAccess(nil, false).Allow(in) != nil {
		t.Error("no rules refuse somebody")
	}
}

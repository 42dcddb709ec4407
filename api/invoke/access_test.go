package invoke_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
)

func rules() *component.AccessControl {
	return &component.AccessControl{DefaultAction: component.Deny, Policies: []component.AccessPolicy{
		{AppID: "web", Namespace: "default", TrustDomain: "public", DefaultAction: component.Deny,
			Operations: []component.AccessOperation{
				{Name: "/orders", Verbs: []string{"GET", "POST"}, Action: component.Allow},
				{Name: "/orders/*", Verbs: []string{"*"}, Action: component.Allow},
				{Name: "/files/**", Verbs: []string{"*"}, Action: component.Allow},
				{Name: "/v*/x", Verbs: []string{"*"}, Action: component.Allow},
			}},
		{AppID: "ops", Namespace: "prod", TrustDomain: "public", DefaultAction: component.Allow,
			Operations: []component.AccessOperation{
				{Name: "admin/**", Verbs: []string{"*"}, Action: component.Deny},
				{Name: "/report", Verbs: []string{"GET"}, Action: component.Deny},
				{Name: "/cache", Verbs: []string{"PURGE"}, Action: component.Allow},
			}},
	}}
}

func TestAccess_DecidesByCallerVerbAndDecodedPath(t *testing.T) {
	access := invoke.NewAccess(rules(), false)
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
		{ops, "GET", "/public/../admin/users", false},
		{ops, "GET", "/admin;x/users", false},
		{ops, "GET", "/admin%3bx/users", false},
		{ops, "GET", `/admin\users`, false},
		{ops, "GET", "/admin%5cusers", false},
		{ops, "GET", "/x%2f..x/users", true},
		{ops, "GET", "/admin%2fusers", false},
		{ops, "GET", "//host/admin/users", false},
		{ops, "GET", `/\host/admin/users`, false},
		{ops, "get", "/orders", false},
		{ops, "BREW", "/orders", false},
		{ops, "*", "/orders", false},
		{ops, "PURGE", "/cache", true},
		{ops, "HEAD", "/report", false},
		{ops, "POST", "/report", true},
		{web, "HEAD", "/orders", false},
		{web, "get", "/orders", false},
		{web, "DELETE", "/orders/7;v=1", true},
		{web, "DELETE", "/orders/;v=1", false}, // without parameters it is /orders
		{web, "DELETE", "/orders/7%2flines", false},
		{web, "DELETE", "/orders%2f7", false},
		{web, "DELETE", `/orders/7\lines`, false},
		{web, "DELETE", "/orders//7", false},
		{web, "GET", "/v1;/x", true},
		{web, "GET", "/secret;/v1/x", false},
		{web, "GET", "/files/a%2fb//c;d", true},
		{web, "GET", "/files/" + strings.Repeat(";%2f", 100), false},       // too many readings
		{web, "GET", "/files/" + strings.Repeat("a/", 100) + "b;c", false}, // too many parts to judge
		{web, "GET", "/files/" + strings.Repeat("a%20b/", 100) + "b", true},
		{ops, "GET", "/ADMIN", false},
		{api.App{ID: "ops"}, "GET", "/orders", false},
		{api.App{ID: "other"}, "GET", "/orders", false},
		{api.App{ID: "billing"}, "GET", "/anything", true}, // calls itself
	} {
		method, err := invoke.ParseMethod(c.path)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		in := &invoke.Inbound{Target: api.App{ID: "billing"}, Caller: invoke.Caller{App: c.caller, Proven: true},
			Method: method, Request: &http.Request{Method: c.verb}}
		err = access.Allow(in)
		if (err == nil) != c.allowed || err != nil && !fault.Is(err, fault.Denied) {
			t.Errorf("%s %s %s: %v", c.caller, c.verb, c.path, err)
		}
	}
}

func TestAccess_UnverifiedCallerMatchesNoPolicy(t *testing.T) {
	in := &invoke.Inbound{Target: api.App{ID: "billing"}, Caller: invoke.Caller{App: api.App{ID: "web"}},
		Method: invoke.MethodPath{Path: "/orders", Decoded: "/orders"}, Request: &http.Request{Method: "GET"}}
	if invoke.NewAccess(rules(), false).Allow(in) == nil {
		t.Error("a claim was believed")
	}
	if err := invoke.NewAccess(rules(), true).Allow(in); err != nil {
		t.Error(err)
	}
	in.Caller = invoke.Caller{App: in.Target}
	if invoke.NewAccess(rules(), false).Allow(in) == nil {
		t.Error("a claim to be the application itself was believed")
	}
	in.Caller = invoke.Caller{App: api.App{ID: "web"}, Proven: true, TrustDomain: "other"}
	if invoke.NewAccess(rules(), false).Allow(in) == nil {
		t.Error("another trust domain matched")
	}
	if invoke.NewAccess(nil, false).Allow(in) != nil {
		t.Error("no rules refuse somebody")
	}
}

func TestParseMethod(t *testing.T) {
	for escaped, want := range map[string]string{
		"/a/b": "/a/b", "/a/../b": "/b", "/../a": "/a", "/a/./b": "/a/b", "/a/b/..": "/a/", "/a/.": "/a/",
		"/a//../b": "/a/b", "/a/..//b": "//b",
		"/a%2Fb/../c;d/": "/c;d/", "/...": "/...", "/": "/", "//": "//", "/.a/..b/c.": "/.a/..b/c.",
	} {
		if m, err := invoke.ParseMethod(escaped); err != nil || m.Path != want {
			t.Errorf("%s: %+v, %v", escaped, m, err)
		}
	}
	for _, escaped := range []string{
		"", "a", "/a#b", "/a?b", "/a b", "/a HTTP/1.1", "/#", "/..", "/.", "/a/..", "/%2e%2e/b", "/%2e/b", "/.%2E/b",
		"/a%2F..%2Fb",
		"/a%2f./b", `/a\..\b`, `/a\.\b`, "/a/..;x/b", "/a/.;x/b", "/a/..%3bx", "/a%5c..",
		"/a%00b", "/a%0ab", "/a%7F", "/%zz", "/%2",
	} {
		if m, err := invoke.ParseMethod(escaped); api.AsError(err).Kind != api.Malformed {
			t.Errorf("%s: %+v, %v", escaped, m, err)
		}
	}
}

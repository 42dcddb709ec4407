package http_test

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/api/apitest"
)

func TestDuplicateSlashes_InTheFixedPartOfACall(t *testing.T) {
	f := newFixture(t)
	app := withApp(t, f)
	c := &targets{t: t, base: serve(t, newFace(t, f))}
	for target, want := range map[string]string{
		"//v1.0//invoke//orders/method//foo":               "/foo",
		"/v1.0/invoke/orders/method/foo//bar//":            "/foo//bar//",
		"/v1.0/invoke/orders//method///foo//?a//b":         "/foo//?a//b",
		"/v1.0//invoke/orders/method/a%2Fb//c":             "/a%2Fb//c",
		"/v1.0/invoke/orders/method//a/../b":               "/b",
		"http://localhost//v1.0//invoke/orders/method/foo": "/foo",
	} {
		c.status("POST", target, "")
		if got := strings.Join(app.take(), "|"); got != "POST "+want {
			t.Errorf("%s: the application got %q, want %q", target, got, want)
		}
	}
	for target, want := range map[string]int{"/v1.0/invoke/orders/method//": 400, "//v1.0//invoke//orders//": 400,
		"//v1.0//invoke//orders//method": 400, "//livez": 404, "/v1.0//healthz": 404, "//v1.0//metadata/": 200} {
		if got := c.status("GET", target, ""); got != want || len(app.take()) > 0 {
			t.Errorf("%s: status %d, want %d without a call", target, got, want)
		}
	}
	// If a header names the application, the whole path is the method, unless the path is an endpoint.
	c.status("GET", "//foo//bar", "dapr-app-id: orders\r\n")
	if got := strings.Join(app.take(), "|"); got != "GET //foo//bar" {
		t.Errorf("by the header the application got %q", got)
	}
}

func TestDuplicateSlashes_NeedTheSameToken(t *testing.T) {
	f := newFixture(t)
	f.Tokens = apitest.Tokens("right")
	f.refit()
	app := withApp(t, f)
	c := &targets{t: t, base: serve(t, newFace(t, f))}
	for _, target := range []string{"//v1.0//metadata", "/v1.0//state//orders/k", "//v1.0//invoke//orders//method//x",
		"/v1.0//healthz", "//livez", "//readyz/placed"} {
		if got := c.status("GET", target, ""); got != 401 || len(app.take()) > 0 {
			t.Errorf("%s without a token: %d", target, got)
		}
	}
}

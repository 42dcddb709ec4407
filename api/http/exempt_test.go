package http_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/api/resiliency"
	"github.com/quorate/quorate/discovery"
)

// callable is an application on this node that records its requests.
type callable struct {
	mu   sync.Mutex // guards seen
	seen []string
}

func (c *callable) Pick(app api.App, _ []discovery.Instance) (*discovery.Lease, error) {
	return discovery.NewLease(discovery.Instance{App: app, Local: true}, func(discovery.Outcome) {}), nil
}

func (c *callable) Settling(api.App) bool { return false }

func (c *callable) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, r.Method+" "+r.URL.RequestURI())
	return &http.Response{StatusCode: http.StatusTeapot, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

func (c *callable) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen
	c.seen = nil
	return seen
}

// withApp lets the face of a fixture call an application named orders.
func withApp(t *testing.T, f *fixture) *callable {
	t.Helper()
	app, sessions := &callable{}, api.NewSessions(nil)
	metrics, err := invoke.NewMetrics(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}
	here := invoke.NewCallee(sessions, metrics, apitest.Untraced{})
	here.Serve(map[api.App]invoke.Channel{{ID: "orders"}: app}, nil)
	routes := &invoke.Routes{}
	routes.Open(app, nil) // there are no other nodes
	f.config.Invoke = invoke.New(f.App, invoke.Parts{Routes: routes, Here: here, Sessions: sessions,
		Policies: resiliency.NewPolicies(), Tracer: apitest.Untraced{}, Metrics: metrics, Logger: f.config.Logger})
	return app
}

// targets sends requests on one connection, with request targets exactly as given.
type targets struct {
	t    *testing.T
	base string
	r    *bufio.Reader
	send func(text string) error
}

func (c *targets) status(verb, target, headers string) int {
	c.t.Helper()
	for range 2 { // the server may have closed the connection after the last answer
		if c.r == nil {
			conn := servertest.Dial(c.t, c.base)
			c.r = bufio.NewReader(conn)
			c.send = func(text string) error {
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				_, err := conn.Write([]byte(text))
				return err
			}
		}
		if err := c.send(fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", verb, target,
			headers)); err == nil {
			if answer, err := http.ReadResponse(c.r, &http.Request{Method: verb}); err == nil {
				_, _ = io.Copy(io.Discard, answer.Body) // the next answer follows
				_ = answer.Body.Close()
				if answer.Close {
					c.r = nil
				}
				return answer.StatusCode
			}
		}
		c.r = nil
	}
	c.t.Errorf("%s %s is not answered", verb, target)
	return 0
}

// Some paths need no token. Without a token, no other spelling of such a path may reach an endpoint or an application.
func TestToken_ExemptPathsInEverySpelling(t *testing.T) {
	f := newFixture(t)
	f.Tokens = apitest.Tokens("right")
	f.refit()
	app := withApp(t, f)
	c := &targets{t: t, base: serve(t, newFace(t, f))}
	const token = "dapr-api-token: right\r\n"
	// The basic credentials are dapr-app-id:orders.
	forms := []string{"", "dapr-app-id: orders\r\n", "Authorization: Basic ZGFwci1hcHAtaWQ6b3JkZXJz\r\n"}
	exempt := []string{"/livez", "/readyz", "/readyz/placed", "/v1.0/healthz", "/v1.0/healthz/outbound"}
	for _, path := range exempt {
		for _, form := range forms {
			for _, exact := range []string{path, path + "/", path + "?x=1", "http://localhost" + path} {
				for _, verb := range []string{"GET", "HEAD"} {
					if got := c.status(verb, exact, form); got == http.StatusUnauthorized || got == http.StatusTeapot {
						t.Errorf("%s %s with %q: %d", verb, exact, form, got)
					}
				}
				if got := c.status("POST", exact, form); got != http.StatusUnauthorized {
					t.Errorf("POST %s with %q: %d", exact, form, got)
				}
				if got := c.status("POST", exact, token+form); got != http.StatusMethodNotAllowed {
					t.Errorf("POST %s with a token and %q: %d", exact, form, got)
				}
			}
			for _, target := range apitest.Spellings(path) {
				if slices.Contains(exempt, strings.TrimSuffix(target, "/")) {
					t.Fatalf("%s is no other spelling", target)
				}
				for _, verb := range []string{"GET", "HEAD", "POST"} {
					if got := c.status(verb, target, form); got != http.StatusUnauthorized &&
						got != http.StatusBadRequest {
						t.Errorf("%s %s with %q: %d", verb, target, form, got)
					}
				}
			}
		}
	}
	if seen := app.take(); len(seen) != 0 {
		t.Errorf("the application received %q", seen)
	}
	for target, want := range map[string]int{"/%6Civez": 404, "//livez": 404, "/v1.0//healthz": 404, "/LIVEZ": 404,
		"/x/../livez": 404, "/livez/orders": 418, "/v1.0/healthy": 418} {
		if got := c.status("GET", target, token+forms[1]); got != want {
			t.Errorf("GET %s of an application with a token: %d, want %d", target, got, want)
		}
	}
	// These paths take the fast path, which skips the mux.
	for _, target := range []string{"/v1.0/state/orders/a", "/v1.0/state/orders/a/../../../livez",
		"/v1.0/state/livez/livez", "/v1.0/state/orders/%2e%2e%2flivez"} {
		if got := c.status("GET", target, forms[1]); got != http.StatusUnauthorized {
			t.Errorf("GET %s: %d", target, got)
		}
	}
}

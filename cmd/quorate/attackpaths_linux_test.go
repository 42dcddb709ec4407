package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/quorate/quorate/api/apitest"
)

// accessRules is a Configuration whose access rules permit app2 to read, and nothing else.
const accessRules = `apiVersion: quorate.dev/v1alpha1
kind: Configuration
metadata:
  name: rules
spec:
  accessControl:
    defaultAction: deny
    policies:
    - appId: app2
      namespace: default
      trustDomain: public
      defaultAction: deny
      operations:
      - {name: /api/*/read, httpVerb: [GET, POST], action: allow}
`

// witness is an application that records every request.
type witness struct {
	mu   sync.Mutex // guards seen
	seen []*http.Request
}

func (w *witness) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if asksForActors(r) {
		http.NotFound(out, r)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, r)
	out.Header().Set("Dapr_Caller_App_Id", "forged")
	out.Header().Set(http.TrailerPrefix+"Dapr-Caller-App-Id", "forged")
	out.Header().Set(http.TrailerPrefix+"X-Sum", "42")
	_, _ = io.WriteString(out, "reached")
}

func (w *witness) take() []*http.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

// untouched fails the test if a request has reached the application.
func (w *witness) untouched(t *testing.T, what string) {
	t.Helper()
	for _, r := range w.take() {
		t.Errorf("%s reached the application as %s %s", what, r.Method, r.RequestURI)
	}
}

// TestAttackPaths attacks the access rules with paths, verbs, headers and hosts. A node, an application and a browser
// could interpret these differently. app1 has rules and runs at a server. app2 calls app1 from a sidecar.
func TestAttackPaths(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	s, app := newCamp(t), &witness{}
	server := httptest.NewServer(app)
	t.Cleanup(server.Close)
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	s.write(t, "rules.yaml", accessRules)
	s.write(t, "resources/partner.yaml", `apiVersion: quorate.dev/v1alpha1
kind: Component
metadata:
  name: partner
spec:
  type: bindings.http
  version: v1
  metadata:
  - name: url
    value: `+server.URL+`/base
`)
	callee, caller := s.nodes[0], s.nodes[1]
	s.joins = callee.gossip
	secured := []string{"--cluster-token-file", filepath.Join(s.dir, "token")}
	s.start(t, callee, append(secured, "--bootstrap-expect", "1", "--app-id", "app1", "--app-port", port, "--config",
		filepath.Join(s.dir, "rules.yaml"), "--enable-grpc=true")...)
	s.start(t, caller, append(secured, "--role", "sidecar", "--app-id", "app2")...)
	for _, v := range []*victim{callee, caller} {
		s.eventually(t, v.ID+" becomes ready", time.Minute,
			func() bool { return v.status("GET", "/v1.0/healthz") == http.StatusNoContent })
	}
	s.eventually(t, "app2 may read", time.Minute, func() bool {
		return caller.status("GET", "/v1.0/invoke/app1/method/api/x/read", "dapr-api-token",
			attackToken) == http.StatusOK
	})
	app.take()
	for _, a := range []struct {
		name string
		run  func(t *testing.T, callee, caller *victim, app *witness)
	}{
		{"paths and verbs that rules do not allow", attackRules},
		{"exempt paths in other spellings", attackExemptPaths},
		{"methods that begin like health over gRPC", attackHealthMethods},
		{"headers and trailers that speak for the runtime", attackFields},
		{"foreign hosts on the metrics port", attackHosts},
		{"binding paths that lead elsewhere", attackBinding},
	} {
		t.Run(a.name, func(t *testing.T) { a.run(t, callee, caller, app) })
	}
}

func attackRules(t *testing.T, _, caller *victim, app *witness) {
	c := &wire{t: t, network: "tcp", address: caller.api}
	const token = "dapr-api-token: " + attackToken + "\r\n"
	for _, path := range []string{
		"api/delete-all#/read", "api/delete-all?#/read", "api/delete-all#/../read", `api/x\delete-all/read`,
		"api/x%5Cdelete-all/read", "api/x%2Fdelete-all/read", "api%2Fx/read",
		"api//x/read", "/host/api/x/read", `\host/api/x/read`, "api/..;/read", "api/%2e%2e/x/read",
		"api/x/read/..;/../delete-all", "api/x/../delete-all", "delete-all;/x/read",
		"api;/delete-all", "api/;x/read", "api/x/read%2f..", "api/x/read%00", "api/x/read/more", "api/x/read;/more",
	} {
		if got := c.status("GET", "/v1.0/invoke/app1/method/"+path, token); got != http.StatusBadRequest &&
			got != http.StatusForbidden {
			t.Errorf("the method %s is answered with %d", path, got)
		}
		app.untouched(t, path)
	}
	for _, verb := range []string{"get", "Get", "post", "BREW", "DELETE", "HEAD", "*", "M-SEARCH"} {
		if got := c.status(verb, "/v1.0/invoke/app1/method/api/x/read", token); got != http.StatusForbidden {
			t.Errorf("the verb %s is answered with %d", verb, got)
		}
		app.untouched(t, verb)
	}
	for path, want := range map[string]string{"api/x/read": "/api/x/read", "api/y/../x/./read": "/api/x/read",
		"api/x;v=1/read": "/api/x;v=1/read", "API/x/read/": "/API/x/read/", "/api/x/read": "/api/x/read"} {
		got, seen := c.status("GET", "/v1.0/invoke/app1/method/"+path, token), app.take()
		if got != http.StatusOK || len(seen) != 1 || seen[0].RequestURI != want {
			t.Errorf("the method %s is answered with %d and called %v", path, got, seen)
		}
	}
}

func attackExemptPaths(t *testing.T, callee, _ *victim, app *witness) {
	listeners := []struct {
		c      *wire
		exempt []string
		want   []int // for other spellings
	}{
		{&wire{t: t, network: "tcp", address: callee.api}, nil, []int{400, 401}},
		{&wire{t: t, network: "tcp", address: callee.metrics}, []string{"/metrics", "/targets"},
			[]int{200, 301, 307, 400, 404, 405}},
		{&wire{t: t, network: "unix", address: filepath.Join(callee.DataDir, "admin.sock")},
			[]string{"/v1/status", "/v1/members"}, []int{200, 301, 307, 400, 404, 405}},
	}
	for _, e := range endpoints(t) {
		if e.open {
			listeners[0].exempt = append(listeners[0].exempt, e.path)
		}
	}
	for _, l := range listeners {
		for _, path := range l.exempt {
			// the Basic credentials are dapr-app-id:app1
			for _, headers := range []string{"", "dapr-app-id: app1\r\n",
				"Authorization: Basic ZGFwci1hcHAtaWQ6YXBwMQ==\r\n"} {
				if got := l.c.status("GET", path, headers); got < 200 || got > 299 {
					t.Errorf("%s on %s is answered with %d", path, l.c.address, got)
				}
				for _, target := range apitest.Spellings(path) {
					if got := l.c.status("GET", target, headers); !slices.Contains(l.want, got) {
						t.Errorf("%s on %s with %q is answered with %d", target, l.c.address, headers, got)
					}
				}
			}
			app.untouched(t, path)
		}
	}
}

func attackHealthMethods(t *testing.T, callee, _ *victim, app *witness) {
	_, text, err := callee.ask("GET", "/v1.0/metadata", "", "dapr-api-token", attackToken)
	var about struct{ API struct{ GRPC []string } }
	if err != nil || json.Unmarshal([]byte(text), &about) != nil || len(about.API.GRPC) == 0 {
		t.Fatalf("%v %s", err, text)
	}
	conn := sure(grpc.NewClient("passthrough:///"+about.API.GRPC[0],
		grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "dapr-app-id", "app1"),
		time.Minute)
	defer cancel()
	for _, method := range []string{"/grpc.health.v1.Health/delete-all", "/grpc.health.v1.Health/x/delete-all",
		"/grpc.health.v1.Health/../delete-all", "/grpc.health.v1.Health/Check?/delete-all"} {
		if err := conn.Invoke(ctx, method, &healthv1.HealthCheckRequest{},
			&healthv1.HealthCheckResponse{}); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v", method, err)
		}
		app.untouched(t, method)
	}
	if _, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

func attackFields(t *testing.T, _, caller *victim, app *witness) {
	const forged = "Dapr_Caller_App_Id: forged\r\nDapr-Caller_App-Id: forged\r\ndapr.caller.app.id: forged\r\n" +
		"Dapr_Api_Token: forged\r\nQuorate_Session: forged\r\nTransfer_Encoding: forged\r\n"
	out := raw(t, caller.api, "POST /v1.0/invoke/app1/method/api/x/read HTTP/1.1\r\nHost: localhost\r\n"+
		"Connection: close\r\ndapr-api-token: "+attackToken+"\r\n"+forged+
		"Transfer-Encoding: chunked\r\nTrailer: X-Sum, Dapr-Caller-App-Id\r\n\r\n4\r\ntext\r\n0\r\nX-Sum: 42\r\n"+
		"Dapr-Caller-App-Id: forged\r\nDapr-Api-Token: forged\r\n"+forged+"\r\n")
	if !strings.HasPrefix(out, "HTTP/1.1 200") || strings.Contains(out, "forged") ||
		!strings.Contains(out, "X-Sum: 42") {
		t.Errorf("the caller gets %s", out)
	}
	seen := app.take()
	if len(seen) != 1 {
		t.Fatalf("the application saw %d requests", len(seen))
	}
	if text := fmt.Sprint(seen[0].Header, seen[0].Trailer); strings.Contains(text, "forged") ||
		seen[0].Trailer.Get("X-Sum") != "42" || seen[0].Header.Get("Dapr-Caller-App-Id") != "app2" {
		t.Errorf("the application gets %s", text)
	}
}

func attackHosts(t *testing.T, callee, _ *victim, _ *witness) {
	for host, want := range map[string]int{"evil.example": 403, "evil.example:9090": 403,
		"localhost.evil.example": 403, "127.0.0.1.evil.example": 403, "localhost": 200, "127.0.0.1:9090": 200,
		"[::1]:1": 200} {
		for _, path := range []string{"/metrics", "/", "/targets"} {
			if got := answers(raw(t, callee.metrics, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\n"+
				"Connection: close\r\n\r\n")); !slices.Equal(got, []int{want}) {
				t.Errorf("%s for host %s is answered with %v", path, host, got)
			}
		}
	}
}

func attackBinding(t *testing.T, callee, _ *victim, app *witness) {
	for _, path := range []string{"/../admin", "/..;/admin", "/%2e%2e;x/admin", "/..%3b/admin", `/..\admin`,
		`\..\admin`, "/a%5c..%5c..%5cadmin", "/..%2fadmin", "//other.example/"} {
		body := sure(json.Marshal(map[string]any{"operation": "get", "metadata": map[string]string{"path": path}}))(t)
		if resp, text, err := callee.ask("POST", "/v1.0/bindings/partner", string(body), "dapr-api-token",
			attackToken); err != nil || resp.StatusCode < 400 {
			t.Errorf("%s: %v %v %s", path, err, resp, text)
		}
		app.untouched(t, path)
	}
	if resp, text, err := callee.ask("POST", "/v1.0/bindings/partner",
		`{"operation":"get","metadata":{"path":"/a;b/c"}}`, "dapr-api-token", attackToken); err != nil ||
		resp.StatusCode != http.StatusOK {
		t.Errorf("%v %v %s", err, resp, text)
	}
	if seen := app.take(); len(seen) != 1 || seen[0].RequestURI != "/base/a;b/c" {
		t.Errorf("the partner saw %v", seen)
	}
}

// wire sends requests exactly as given, one after the other on one connection.
type wire struct {
	t                *testing.T
	network, address string
	conn             net.Conn
	r                *bufio.Reader
}

func (c *wire) status(verb, target, headers string) int {
	c.t.Helper()
	for range 2 { // the server may have closed the connection after the last answer
		if c.conn == nil {
			c.conn = sure(net.Dial(c.network, c.address))(c.t)
			c.t.Cleanup(func(conn net.Conn) func() { return func() { _ = conn.Close() } }(c.conn))
			c.r = bufio.NewReader(c.conn)
		}
		_ = c.conn.SetDeadline(time.Now().Add(time.Minute))
		_, err := io.WriteString(c.conn, verb+" "+target+" HTTP/1.1\r\nHost: localhost\r\n"+headers+"\r\n")
		if err == nil {
			if answer, err := http.ReadResponse(c.r, &http.Request{Method: verb}); err == nil {
				_, _ = io.Copy(io.Discard, answer.Body) // the next answer follows
				if answer.Close {
					_ = c.conn.Close()
					c.conn = nil
				}
				return answer.StatusCode
			}
		}
		_ = c.conn.Close()
		c.conn = nil
	}
	c.t.Errorf("%s %s is not answered", verb, target)
	return 0
}

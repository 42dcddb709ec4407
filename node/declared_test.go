package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	commonv1 "github.com/dapr/dapr/pkg/proto/common/v1"
	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node"
)

// failingApp is an application that answers every call with 500 and counts the calls.
type failingApp struct {
	port  int
	calls atomic.Int64
	paths chan string
}

func newFailingApp(t *testing.T) *failingApp {
	t.Helper()
	a := &failingApp{paths: make(chan string, 1000)}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dapr/config" || r.URL.Path == "/dapr/subscribe" { // requests of the node at its start
			http.NotFound(w, r)
			return
		}
		a.calls.Add(1)
		select {
		case a.paths <- r.URL.Path:
		default:
		}
		http.Error(w, "no", http.StatusInternalServerError)
	}))
	t.Cleanup(s.Close)
	a.port = s.Listener.Addr().(*net.TCPAddr).Port
	return a
}

func (a *failingApp) id(n *node.Node) string { return n.Addresses().Apps[0].ID }

// awaits waits for a call with the given path.
func (a *failingApp) awaits(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	defer cancel()
	for {
		select {
		case got := <-a.paths:
			if got == path {
				return
			}
		case <-ctx.Done():
			t.Fatalf("no request of %s", path)
		}
	}
}

func middlewareDoc(name, typ, metadata string) string {
	return document("Component", name, "  type: "+typ+"\n  version: v1\n  metadata: ["+metadata+"]\n")
}

func TestPipeline_AliasAndRateLimit(t *testing.T) {
	n, dir, _ := running(t, map[string]string{
		"s.yaml": store("orders", "state.raft", ""),
		"a.yaml": middlewareDoc("alias", "middleware.http.routeralias",
			`{name: routes, value: '{"/o/{id}": "/v1.0/state/orders/{id}"}'}`),
		"l.yaml": middlewareDoc("limit", "middleware.http.ratelimit", `{name: maxRequestsPerSecond, value: "1000000"}`),
		"c.yaml": document("Configuration", "c", "  httpPipeline:\n    handlers: [{name: alias, type: "+
			"middleware.http.routeralias}, {name: limit, type: middleware.http.ratelimit}, "+
			"{name: later, type: middleware.http.routeralias}]\n"),
	}, nil)
	answers(t, n, "POST", "/v1.0/state/orders", `[{"key":"7","value":"seven"}]`, 204, "")
	answers(t, n, "GET", "/o/7", "", 200, "seven")
	write(t, dir, "l.yaml", middlewareDoc("limit", "middleware.http.ratelimit",
		`{name: maxRequestsPerSecond, value: "0.001"}`))
	answers(t, n, "GET", "/o/7", "", 429, "ERR_TOO_MANY_REQUESTS")
	answers(t, n, "GET", "/v1.0/healthz", "", 204, "") // health probes skip the pipeline
}

func TestAppPipeline_FiltersCallsOfTheApplication(t *testing.T) {
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, "app ", r.RequestURI)
	}))
	t.Cleanup(app.Close)
	alias := func(routes string) string {
		return middlewareDoc("alias", "middleware.http.routeralias", "{name: routes, value: '"+routes+"'}")
	}
	limit := func(rate string) string {
		return middlewareDoc("limit", "middleware.http.ratelimit", `{name: maxRequestsPerSecond, value: "`+rate+`"}`)
	}
	n, dir, _ := running(t, map[string]string{
		"s.yaml": store("orders", "state.raft", ""),
		"a.yaml": alias(`{"/old/{id}": "/new?id={id}"}`),
		"l.yaml": limit("1000000"),
		"c.yaml": document("Configuration", "c", "  appHttpPipeline:\n    handlers: [{name: alias, type: "+
			"middleware.http.routeralias}, {name: limit, type: middleware.http.ratelimit}]\n"),
	}, func(c *node.Config) { c.App.Port = app.Listener.Addr().(*net.TCPAddr).Port })
	at := "/v1.0/invoke/" + n.Addresses().Apps[0].ID + "/method"
	answers(t, n, "GET", at+"/old/7?x=1", "", 200, "app /new?id=7&x=1")
	answers(t, n, "GET", at+"/a%2Fb//c", "", 200, "app /a%2Fb//c") // other paths stay byte for byte
	answers(t, n, "GET", "/old/7", "", 404, "")                    // the API itself has no such middleware
	if r := requestWith(t, n, "GET", at+"/m", "", "Baggage", "a=1"); r.header.Get("Baggage") != "a=1" {
		t.Errorf("the answer lacks the baggage of the request: %+v", r)
	}
	write(t, dir, "a.yaml", alias(`{"/old/{id}": "/newer"}`))
	answers(t, n, "GET", at+"/old/7", "", 200, "app /newer")
	write(t, dir, "l.yaml", limit("0.001"))
	answers(t, n, "GET", at+"/old/7", "", 429, "ERR_TOO_MANY_REQUESTS")
}

func TestPipelines_UppercaseBodies(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(app.Close)
	upper := middlewareDoc("upper", "middleware.http.uppercase", "")
	for _, section := range []string{"httpPipeline", "appHttpPipeline"} {
		n, dir, _ := running(t, map[string]string{
			"c.yaml": document("Configuration", "c", "  "+section+":\n    handlers: [{name: upper, type: "+
				"middleware.http.uppercase}]\n"),
		}, func(c *node.Config) { c.App.Port = app.Listener.Addr().(*net.TCPAddr).Port })
		at := "/v1.0/invoke/" + n.Addresses().Apps[0].ID + "/method/echo"
		answers(t, n, "POST", at, "hello", 200, "hello") // a missing component is skipped
		write(t, dir, "u.yaml", upper)
		answers(t, n, "POST", at, "hello", 200, "HELLO")
		answers(t, n, "GET", "/v1.0/metadata", "", 200,
			`{"name":"upper","type":"middleware.http.uppercase","version":"v1"}`)
		write(t, dir, "u.yaml", middlewareDoc("upper", "middleware.http.routeralias", `{name: routes, value: '{}'}`))
		answers(t, n, "POST", at, "hello", 200, "hello") // another type than the handler's is skipped too
	}
}

func TestMetadata_ListsResilienciesFeaturesAndDeclaredComponents(t *testing.T) {
	policy := func(name string) string {
		return document("Resiliency", name, "  policies: {timeouts: {t: 5s}}\n  targets: {apps: {web: {timeout: t}}}\n")
	}
	n, dir, _ := running(t, map[string]string{
		"m.yaml": store("memory", "state.in-memory", ""), "r.yaml": policy("first"),
		"c.yaml": document("Configuration", "c", "  features: [{name: A, enabled: true}, {name: B, enabled: false}]\n"),
	}, func(c *node.Config) { c.API.DeclaredOnly = true })
	answers(t, n, "GET", "/v1.0/metadata", "", 200, `"enabledFeatures":["A"]`)
	answers(t, n, "GET", "/v1.0/metadata", "", 200, `"components":[{"name":"memory","type":"state.in-memory",`+
		`"version":"v1","capabilities":["ETAG","TRANSACTIONAL","TTL","DELETE_WITH_PREFIX","KEYS_LIKE","ACTOR"]}]`)
	answers(t, n, "GET", "/v1.0/metadata", "", 200, `"resiliencies":[{"name":"first"}]`)
	write(t, dir, "r.yaml", policy("second"))
	answers(t, n, "GET", "/v1.0/metadata", "", 200, `"resiliencies":[{"name":"second"}]`)
}

func TestPipeline_MissingProtectionRefusesTheStart(t *testing.T) {
	c := config(t)
	c.Components.Paths = resources(t, map[string]string{"c.yaml": document("Configuration", "c",
		"  httpPipeline: {handlers: [{name: jwt, type: middleware.http.bearer}]}\n")})
	n, err := node.Open(t.Context(), c, deps(t))
	if err == nil {
		closeNode(t, n)
	}
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "jwt") {
		t.Errorf("%v", err)
	}
	c.Components.Paths = resources(t, map[string]string{"o.yaml": middlewareDoc("o", "middleware.http.oauth2", "")})
	if n, err = node.Open(t.Context(), c, deps(t)); err == nil {
		closeNode(t, n)
	}
	if err == nil || !strings.Contains(err.Error(), "middleware.http.oauth2 is unknown") {
		t.Errorf("%v", err)
	}
}

func TestPipeline_BearerGuardsEveryPath(t *testing.T) {
	n, _, _ := running(t, map[string]string{
		"s.yaml": store("orders", "state.raft", ""),
		"b.yaml": middlewareDoc("jwt", "middleware.http.bearer", "{name: issuer, value: \"http://127.0.0.1:1\"}, "+
			"{name: audience, value: shop}, {name: jwksURL, value: \"http://127.0.0.1:1/keys\"}"),
		"c.yaml": document("Configuration", "c", "  httpPipeline: {handlers: [{name: jwt, type: "+
			"middleware.http.bearer}]}\n"),
	}, nil)
	for _, path := range []string{"/v1.0/state/orders/k", "//v1.0/state/orders/k", "/v1.0/metadata", "/unknown"} {
		code, body, h := ask(t, n, "GET", path, "")
		if code != 401 || !strings.Contains(body, "ERR_UNAUTHENTICATED") || h.Get("Www-Authenticate") != "Bearer" {
			t.Errorf("%s: %d %s %v", path, code, body, h)
		}
	}
}

func TestAPIRules_HTTPAndGRPC(t *testing.T) {
	n, _, _ := running(t, map[string]string{"c.yaml": document("Configuration", "c", `  api:
    allowed: [{name: state, version: v1.0, protocol: http}, {name: state, version: v1, protocol: grpc}]
`)}, nil)
	answers(t, n, "POST", "/v1.0/state/statestore", `[{"key":"k","value":1}]`, 204, "")
	for _, path := range []string{"/v1.0/metadata", "/v1.0/secrets/s/k", "/v1.0/invoke/a/method/b"} {
		answers(t, n, "GET", path, "", 404, "requested endpoint is not available")
	}
	for _, path := range []string{"/v1.0-alpha1/lock/lockstore", "/v1.0-alpha1/jobs/j", "/v1.0/jobs/j",
		"/v1.0-alpha1/publish/bulk/pubsub/t", "/v1.0-beta1/workflows/dapr/w/start"} {
		answers(t, n, "POST", path, "{}", 404, "requested endpoint is not available")
	}
	answers(t, n, "GET", "/v1.0/healthz", "", 204, "")
	conn, err := grpc.NewClient(n.Addresses().GRPC[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := runtimev1.NewDaprClient(conn)
	got, err := client.GetState(t.Context(), &runtimev1.GetStateRequest{StoreName: "statestore", Key: "k"})
	if err != nil || string(got.GetData()) != "1" {
		t.Errorf("%v %v", got, err)
	}
	_, err = client.GetMetadata(t.Context(), &runtimev1.GetMetadataRequest{})
	if grpcstatus.Code(err) != codes.Unimplemented ||
		!strings.Contains(err.Error(), "requested endpoint is not available") {
		t.Errorf("%v", err)
	}
}

func TestAPILog_LogsRequestsWithoutBodiesAndQueries(t *testing.T) {
	n, _, log := running(t, map[string]string{"c.yaml": document("Configuration", "c",
		"  logging: {apiLogging: {enabled: true, omitHealthChecks: true}}\n")}, nil)
	answers(t, n, "POST", "/v1.0/state/statestore?metadata.secret=hunter2", `[{"key":"k","value":"body"}]`, 204, "")
	answers(t, n, "GET", "/v1.0/healthz", "", 204, "")
	poll(t, func() error {
		if !log.Has(`msg="HTTP API Called"`, `method="POST /v1.0/state/statestore"`, "code=204") {
			return fmt.Errorf("%s", log.String())
		}
		return nil
	})
	for _, word := range []string{"hunter2", "body", "GET /v1.0/healthz"} {
		if strings.Contains(log.String(), word) {
			t.Errorf("the log contains %s", word)
		}
	}
}

func TestEndpoints_ScopesResiliencyAndAnyAddress(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	calls := 0
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; r.URL.Path == "/base/flaky" && calls < 3 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprint(w, r.URL.RequestURI(), " ", r.Header.Get("Traceparent") != "", r.Header.Get("Dapr-Api-Token"),
			r.Header.Get("Te"))
	}))
	t.Cleanup(partner.Close)
	files := map[string]string{
		"e.yaml": document("HTTPEndpoint", "partner", "  baseUrl: "+partner.URL+"/base/\n"),
		"o.yaml": document("HTTPEndpoint", "other", "  baseUrl: "+partner.URL+"/o\n") + "scopes: [somebody]\n",
		"d.yaml": document("HTTPEndpoint", "down", "  baseUrl: http://127.0.0.1:1\n"),
		"r.yaml": document("Resiliency", "r", "  policies:\n    retries: {r: {policy: constant, duration: 1ms, "+
			"maxRetries: 5}}\n  targets:\n    apps: {partner: {retry: r}}\n"),
	}
	n, _, _ := running(t, files, nil)
	answers(t, n, "GET", "/v1.0/invoke/partner/method/flaky", "", 200, "/base/flaky true")
	answers(t, n, "GET", "/v1.0/invoke/partner/method/a%20b//c?d=e%2Ff", "", 200, "/base/a%20b//c?d=e%2Ff true")
	answers(t, n, "GET", "/v1.0/invoke/partner/method/../../x", "", 200, "/base/x true")
	if got := withTE(t, "http://"+n.Addresses().API[0]+"/v1.0/invoke/partner/method/x"); got != "/base/x true" {
		t.Errorf("with TE: %s", got)
	}
	answers(t, n, "GET", "/v1.0/invoke/other/method/x", "", 500, "couldn't find service")
	answers(t, n, "GET", "/v1.0/invoke/down/method/x", "", 500, "down cannot be reached")
	for _, address := range []string{partner.URL, partner.URL + "/o", partner.URL + "/basement",
		partner.URL + "/base/../o", "http://user:pw@" + strings.TrimPrefix(partner.URL, "http://") + "/base"} {
		if code, body, _ := ask(t, n, "GET", "/v1.0/invoke/"+address+"/method/x", ""); code != 403 && code != 400 {
			t.Errorf("%s: %d %s", address, code, body)
		}
	}
	open, _, _ := running(t, nil, func(c *node.Config) { c.API.AnyEndpoint = true })
	answers(t, open, "GET", "/v1.0/invoke/"+partner.URL+"/free/method/x", "", 200, "/free/x true")
}

// Paths of calls to servers outside of the cluster arrive byte for byte, whether the call names the endpoint or the
// address of the server. An address with another path than the HTTPEndpoint is refused, because the headers of the
// HTTPEndpoint are secret.
func TestEndpoints_PathsArriveAsTheyWereSentAndBelowTheBase(t *testing.T) {
	t.Parallel()
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprint(w, r.RequestURI, " ", r.Header.Get("X-Key"))
	}))
	t.Cleanup(partner.Close)
	n, _, _ := running(t, map[string]string{"e.yaml": document("HTTPEndpoint", "partner", "  baseUrl: "+partner.URL+
		"/b%2Fase\n  headers: [{name: X-Key, value: secret}]\n")}, nil)
	const path = "/a%2Fb%3Bc%2Bd+e//%67?q=%2F+"
	const want = "/b%2Fase" + path + " secret"
	address := partner.URL + "/b%2Fase"
	answers(t, n, "GET", "/v1.0/invoke/partner/method"+path, "", 200, want)
	answers(t, n, "GET", "/v1.0/invoke/"+address+"/method"+path, "", 200, want)
	answers(t, n, "GET", "/v1.0/invoke/"+url.QueryEscape(address)+"/method"+path, "", 200, want)
	for _, target := range []string{"partner", address} {
		if got := requestWith(t, n, "GET", path, "", "Dapr-App-Id", target); got.body != want {
			t.Errorf("by the header %s: %+v", target, got)
		}
		answer, err := dialSDK(t, n).GrpcClient().InvokeService(t.Context(), &runtimev1.InvokeServiceRequest{Id: target,
			Message: &commonv1.InvokeRequest{Method: path, HttpExtension: &commonv1.HTTPExtension{
				Verb: commonv1.HTTPExtension_GET}}})
		if got := string(answer.GetData().GetValue()); err != nil || got != want {
			t.Errorf("over gRPC to %s: %s, %v", target, got, err)
		}
	}
	for _, rest := range []string{"/..;/admin", "/..%5cadmin", "/%2e%2e/admin", "/x%2F..%2F..%2Fadmin", "/../admin"} {
		for _, form := range []string{address + rest, url.QueryEscape(address + rest)} {
			answers(t, n, "GET", "/v1.0/invoke/"+form+"/method/x", "", 400, "is not a base address")
		}
		if got := requestWith(t, n, "GET", "/x", "", "Dapr-App-Id", address+rest); got.status != 400 {
			t.Errorf("by the header %s: %+v", address+rest, got)
		}
		_, err := dialSDK(t, n).GrpcClient().InvokeService(t.Context(), &runtimev1.InvokeServiceRequest{
			Id: address + rest, Message: &commonv1.InvokeRequest{Method: "x"}})
		if grpcstatus.Code(err) != codes.InvalidArgument {
			t.Errorf("over gRPC to %s: %v", address+rest, err)
		}
	}
}

// withTE sends a GET request with the header TE, which belongs to one connection, and returns the answer.
func withTE(t *testing.T, address string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Te", "trailers")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

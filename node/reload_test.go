package node_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

func document(kind, name, spec string) string {
	return "apiVersion: dapr.io/v1alpha1\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec:\n" + spec
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	next := filepath.Join(t.TempDir(), name)
	err := errors.Join(os.WriteFile(next, []byte(text), 0o600), os.Rename(next, filepath.Join(dir, name)))
	if err != nil {
		t.Fatal(err)
	}
}

// answers polls until a request is answered as wanted.
func answers(t *testing.T, n *node.Node, method, path, body string, code int, want string) {
	t.Helper()
	poll(t, func() error {
		if got, text, _ := ask(t, n, method, path, body); got != code || !strings.Contains(text, want) {
			return fmt.Errorf("%s %s: %d %s", method, path, got, text)
		}
		return nil
	})
}

// running returns a node whose component files are in a directory, and its log.
func running(t *testing.T, files map[string]string, change func(*node.Config)) (*node.Node, string, *record) {
	t.Helper()
	c := config(t)
	c.Components.Paths = resources(t, files)
	c.Components.Reload = 50 * time.Millisecond
	if change != nil {
		change(&c)
	}
	log := &record{}
	d := deps(t)
	d.Logger = slog.New(slog.NewTextHandler(log, nil))
	n := nodetest.OpenWith(t, c, d)
	ready(t, n)
	return n, c.Components.Paths[0], log
}

// says waits until a line of the log has all words. A change takes effect before it is logged.
func says(t *testing.T, log *record, words ...string) {
	t.Helper()
	poll(t, func() error {
		if !log.Has(words...) {
			return errors.New(log.String())
		}
		return nil
	})
}

func TestReload_ComponentsAreAddedChangedAndRemoved(t *testing.T) {
	t.Parallel()
	partner := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s", r.URL.Path, r.Header.Get("X-Key"))
	}))
	t.Cleanup(partner.Close)
	n, dir, log := running(t, map[string]string{"a.yaml": store("first", "state.raft", "")}, nil)
	const save, read = "/v1.0/state/first", "/v1.0/state/first/k"
	answers(t, n, "POST", save, `[{"key":"k","value":1}]`, 204, "")

	write(t, dir, "b.yaml", store("second", "state.in-memory", ""))
	answers(t, n, "POST", "/v1.0/state/second", `[{"key":"k","value":2}]`, 204, "")

	write(t, dir, "a.yaml", store("first", "state.raft", "{name: keyPrefix, value: name}"))
	answers(t, n, "GET", read, "", 204, "") // the store has other keys now
	write(t, dir, "a.yaml", store("first", "state.raft", "{name: keyPrefix, value: appid}"))
	answers(t, n, "GET", read, "", 200, "1")

	endpoint := func(key string) string {
		return document("HTTPEndpoint", "partner", "  baseUrl: "+partner.URL+"/v1\n  headers: [{name: X-Key, value: "+
			key+"}]\n")
	}
	write(t, dir, "e.yaml", endpoint("one"))
	answers(t, n, "GET", "/v1.0/invoke/partner/method/m", "", 200, "/v1/m one")
	write(t, dir, "e.yaml", endpoint("two"))
	answers(t, n, "GET", "/v1.0/invoke/"+partner.URL+"/v1/method/m", "", 200, "/v1/m two")
	answers(t, n, "GET", "/v1.0/invoke/"+partner.URL+"/v2/method/m", "", 403, "declare the address as an HTTPEndpoint")

	for _, name := range []string{"b.yaml", "e.yaml"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	answers(t, n, "GET", "/v1.0/state/second/k", "", 400, "ERR_STATE_STORE_NOT_FOUND")
	answers(t, n, "GET", "/v1.0/invoke/partner/method/m", "", 500, "couldn't find service")
	says(t, log, "changed component files were applied", "state first")
}

func TestReload_LogsWhatChanged(t *testing.T) {
	const subscription = "apiVersion: dapr.io/v1alpha1\nkind: Subscription\nmetadata: {name: orders}\n" +
		"spec: {pubsubname: pubsub, topic: orders, route: /orders}\n"
	_, dir, log := running(t, nil, nil)
	write(t, dir, "s.yaml", subscription)
	says(t, log, `msg="changed component files were applied" changed_documents=Subscription`)
	write(t, dir, "a.yaml", store("first", "state.in-memory", ""))
	says(t, log, `msg="changed component files were applied" added="state first"`)
}

func TestReload_BrokenFileKeepsWhatIsThere(t *testing.T) {
	n, dir, log := running(t, map[string]string{"a.yaml": store("first", "state.raft", "")}, nil)
	answers(t, n, "POST", "/v1.0/state/first", `[{"key":"k","value":1}]`, 204, "")
	write(t, dir, "a.yaml", "kind: [")
	poll(t, func() error {
		for _, issue := range status(t, n).Issues {
			if issue.About == "component files" && strings.Contains(issue.Reason, "a.yaml:1") {
				return nil
			}
		}
		return errors.New("the status does not show the broken file")
	})
	answers(t, n, "GET", "/v1.0/state/first/k", "", 200, "1")
	says(t, log, "level=ERROR", "a change of the component files was not applied")
	write(t, dir, "a.yaml", store("first", "state.raft", ""))
	poll(t, func() error {
		if len(status(t, n).Issues) > 0 {
			return errors.New("the issue is still there")
		}
		return nil
	})
}

// A component with ignoreErrors that fails at the start is tried again although no file changes.
func TestReload_ComponentThatFailedAtTheStartIsTriedAgain(t *testing.T) {
	t.Parallel()
	secrets := filepath.Join(t.TempDir(), "secrets.json")
	n, _, log := running(t, map[string]string{"a.yaml": store("first", "state.raft", ""),
		"b.yaml": document("Component", "vault", "  type: secretstores.local.file\n  version: v1\n"+
			"  ignoreErrors: true\n  metadata: [{name: secretsFile, value: "+secrets+"}]\n")},
		func(c *node.Config) { c.Components.Retry = 20 * time.Millisecond })
	if !slices.ContainsFunc(status(t, n).Issues, func(i schema.Issue) bool {
		return i.About == "component files" && strings.Contains(i.Reason, "component vault")
	}) {
		t.Errorf("%+v", status(t, n).Issues)
	}
	poll(t, func() error { // until the component was tried again and has failed
		if strings.Contains(scrape(t, n), `quorate_reloads_total{result="failed"} 0`) {
			return errors.New(log.String())
		}
		return nil
	})
	if err := os.WriteFile(secrets, []byte(`{"key":"value"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	answers(t, n, "GET", "/v1.0/secrets/vault/key", "", 200, "value")
	poll(t, func() error {
		if len(status(t, n).Issues) > 0 {
			return errors.New("the issue is still there")
		}
		return nil
	})
	if count := strings.Count(log.String(), "because it has ignoreErrors: true"); count != 1 {
		t.Errorf("the failure is logged %d times:\n%s", count, log.String())
	}
}

// A component that cannot be opened is listed as failed as long as a file declares it.
func TestReload_ListOfFailedComponentsFollowsFiles(t *testing.T) {
	t.Parallel()
	n, dir, _ := running(t, map[string]string{"a.yaml": store("first", "state.raft", "")}, nil)
	listed := func(want bool) {
		t.Helper()
		poll(t, func() error {
			if _, text, _ := ask(t, n, "GET", "/readyz", ""); strings.Contains(text, "vault") != want {
				return errors.New(text)
			}
			return nil
		})
	}
	listed(false)
	write(t, dir, "b.yaml", document("Component", "vault", "  type: secretstores.local.file\n  version: v1\n"+
		"  ignoreErrors: true\n  metadata: [{name: secretsFile, value: /absent/secrets.json}]\n"))
	listed(true)
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	listed(false)
}

func TestReload_StoreThatWouldLoseItsValuesWaitsForRestart(t *testing.T) {
	n, dir, log := running(t, map[string]string{"a.yaml": store("first", "state.in-memory", "")}, nil)
	answers(t, n, "POST", "/v1.0/state/first", `[{"key":"k","value":1}]`, 204, "")
	write(t, dir, "a.yaml", store("first", "state.in-memory", "{name: keyPrefix, value: name}"))
	says(t, log, "takes effect with a restart of the node")
	answers(t, n, "GET", "/v1.0/state/first/k", "", 200, "1")
}

func TestReload_ResiliencyAndConfiguration(t *testing.T) {
	app := newFailingApp(t)
	n, dir, log := running(t, map[string]string{"a.yaml": store("first", "state.raft", "")}, func(c *node.Config) {
		c.App.Port = app.port
	})
	answers(t, n, "GET", "/v1.0/invoke/"+app.id(n)+"/method/m", "", 500, "no")
	if got := app.calls.Swap(0); got != 1 {
		t.Errorf("%d calls without a policy", got)
	}
	write(t, dir, "r.yaml", document("Resiliency", "r", "  policies:\n    retries: {two: {policy: constant, "+
		"duration: 1ms, maxRetries: 2}}\n  targets:\n    apps: {"+app.id(n)+": {retry: two}}\n"))
	poll(t, func() error {
		app.calls.Store(0)
		if _, _, _ = ask(t, n, "GET", "/v1.0/invoke/"+app.id(n)+"/method/m", ""); app.calls.Load() != 3 {
			return fmt.Errorf("%d calls", app.calls.Load())
		}
		return nil
	})
	write(t, dir, "c.yaml", document("Configuration", "c", "  api: {denied: [{name: metadata, version: v1.0, "+
		"protocol: http}]}\n  metrics: {daprNames: true}\n"))
	answers(t, n, "GET", "/v1.0/metadata", "", 404, "requested endpoint is not available")
	says(t, log, "spec.metrics of the Configuration changed; it takes effect with the next start")
}

// Dapr's sidecar applies spec.metrics after SIGHUP, because it restarts its runtime.
func TestReload_MetricsWithDaprsDefaults(t *testing.T) {
	n, dir, _ := running(t, map[string]string{"a.yaml": store("first", "state.raft", "")}, func(c *node.Config) {
		c.Dapr = true
	})
	page := func(section string, status int, part string) {
		t.Helper()
		if section != "" {
			write(t, dir, "c.yaml", document("Configuration", "c", "  metrics: {"+section+"}\n"))
		}
		poll(t, func() error {
			answers(t, n, "GET", "/v1.0/state/first/k", "", 204, "")
			code, text := askAt(t, n.Addresses().Metrics, "GET", "/metrics", "", "")
			if code != status || !strings.Contains(text, part) {
				return fmt.Errorf("with %q the metrics are %d without %s", section, code, part)
			}
			return nil
		})
	}
	page("", 200, `method="GET",path="/v1.0/state/first",status="204"`)
	page("http: {increasedCardinality: false}", 200, `method="GET",path="",status="204"`)
	page("enabled: false", 404, "spec.metrics.enabled")
	page("http: {excludeVerbs: true}", 200, `method="",path="/v1.0/state/first",status="204"`)
}

// dapr init writes a Configuration that sends spans to Zipkin.
func TestReload_TracingToZipkin(t *testing.T) {
	app := newFailingApp(t)
	spans := make(chan string, 100)
	zipkin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		spans <- r.URL.Path + " " + string(body)
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(zipkin.Close)
	n, dir, log := running(t, map[string]string{"a.yaml": store("first", "state.raft", "")}, func(c *node.Config) {
		c.App.Port = app.port
	})
	write(t, dir, "c.yaml", document("Configuration", "c", "  tracing: {samplingRate: \"1\", zipkin: "+
		"{endpointAddress: \""+zipkin.URL+"/api/v2/spans\"}}\n"))
	says(t, log, "spec.tracing of the Configuration was applied")
	answers(t, n, "GET", "/v1.0/invoke/"+app.id(n)+"/method/m", "", 500, "no")
	answers(t, n, "GET", "/v1.0/state/first/%ff", "", 400, "") // must not harm the other spans
	answers(t, n, "GET", "/v1.0/state/first/k", "", 204, "")
	closeNode(t, n) // exports the last spans
	got := ""
	for len(spans) > 0 { // they may come in several requests
		got += <-spans
	}
	for _, part := range []string{"/api/v2/spans ", `"name":"invoke `, `"name":"/v1.0/state/first/k"`,
		`"db.name":"first"`, `"dapr.status_code":"204"`} {
		if !strings.Contains(got, part) {
			t.Errorf("Zipkin got no %s: %s", part, got)
		}
	}
}

// If the collectors of spec.tracing cannot be used, the whole change is refused, and tried again.
func TestReload_TracingThatFailsIsTriedAgain(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", filepath.Join(t.TempDir(), "ca.pem"))
	collector := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(collector.Close)
	_, dir, log := running(t, nil, func(c *node.Config) { c.Components.Retry = 50 * time.Millisecond })
	write(t, dir, "c.yaml", document("Configuration", "c", "  tracing: {samplingRate: \"1\", otel: {protocol: http, "+
		"endpointAddress: \""+collector.URL+"\"}}\n"))
	says(t, log, "level=ERROR", "a change of the component files was not applied", "OTEL_EXPORTER_OTLP_CERTIFICATE")
	if log.Has("spec.tracing of the Configuration was applied") {
		t.Error("the change was applied")
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: collector.Certificate().Raw})
	if err := os.WriteFile(os.Getenv("OTEL_EXPORTER_OTLP_CERTIFICATE"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, log, "spec.tracing of the Configuration was applied")
}

func TestReload_InvalidResiliencyWithDaprsDefaults(t *testing.T) {
	wrong := document("Resiliency", "r", "  policies: {retries: {two: {policy: sometimes}}}\n")
	n, _, log := running(t, map[string]string{"r.yaml": wrong}, func(c *node.Config) { c.Dapr = true })
	_, _ = save(t, n, "k", "v")
	says(t, log, "a Resiliency resource has no effect")
}

func TestReload_ForcedReadsFilesThatAreNotWatched(t *testing.T) {
	n, dir, log := running(t, map[string]string{"a.yaml": store("first", "state.raft", "")}, func(c *node.Config) {
		c.Components.Reload = -1
	})
	write(t, dir, "b.yaml", store("second", "state.raft", ""))
	n.Reload()
	answers(t, n, "POST", "/v1.0/state/second", `[{"key":"k","value":2}]`, 204, "")
	n.Reload()
	says(t, log, "the component files were read; nothing has changed")
}

func TestReload_InputBindingMovesToItsNewRoute(t *testing.T) {
	t.Parallel()
	app := newFailingApp(t)
	tick := func(route string) string {
		return document("Component", "tick", "  type: bindings.cron\n  version: v1\n  metadata: [{name: schedule, "+
			"value: \"@every 1s\"}, {name: direction, value: input}, {name: route, value: "+route+"}]\n")
	}
	_, dir, _ := running(t, map[string]string{"a.yaml": tick("/one")}, func(c *node.Config) { c.App.Port = app.port })
	app.awaits(t, "/one")
	write(t, dir, "a.yaml", tick("/two"))
	app.awaits(t, "/two")
}

func TestReload_ActorStateStaysWhereItIs(t *testing.T) {
	n, dir, log := running(t, map[string]string{"a.yaml": store("first", "state.raft",
		`{name: actorStateStore, value: "true"}`)}, nil)
	write(t, dir, "b.yaml", store("second", "state.in-memory", `{name: actorStateStore, value: "true"}`)+"---\n"+
		store("third", "state.in-memory", ""))
	answers(t, n, "POST", "/v1.0/state/third", `[{"key":"k","value":3}]`, 204, "")
	answers(t, n, "POST", "/v1.0/state/second", `[{"key":"k","value":2}]`, 400, "")
	poll(t, func() error {
		if !strings.Contains(log.String(), "cannot move to another store while the node runs") {
			return errors.New(log.String())
		}
		return nil
	})

	write(t, dir, "b.yaml", store("second", "state.in-memory", ""))
	answers(t, n, "POST", "/v1.0/state/second", `[{"key":"k","value":2}]`, 204, "")
}

// A trust domain that no certificate can have is found when the certificate is made.
func TestReload_UnusableTrustDomainKeepsTheMiddleware(t *testing.T) {
	alias := middlewareDoc("alias", "middleware.http.routeralias",
		`{name: routes, value: '{"/short": "/v1.0/metadata"}'}`)
	pipeline := "  httpPipeline: {handlers: [{name: alias, type: middleware.http.routeralias}]}\n"
	n, dir, log := running(t, map[string]string{"a.yaml": alias, "c.yaml": document("Configuration", "c", pipeline)},
		func(c *node.Config) { c.Security.ClusterTokenFile = tokenFile(t, "", trust.NewToken()) })
	answers(t, n, "GET", "/short", "", 200, "runtimeVersion")
	write(t, dir, "c.yaml", document("Configuration", "c",
		"  accessControl: {defaultAction: deny, trustDomain: a/b}\n"))
	says(t, log, "level=ERROR", "a change of the component files was not applied")
	if code, body, _ := ask(t, n, "GET", "/short", ""); code != 200 {
		t.Errorf("the middleware is gone: %d %s", code, body)
	}
	write(t, dir, "c.yaml", document("Configuration", "c", pipeline))
	answers(t, n, "GET", "/short", "", 200, "runtimeVersion")
}

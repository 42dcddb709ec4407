package components_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/component/pluggable/pluggabletest"
	"github.com/quorate/quorate/component/state/inmemory"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// declared returns a component file. spec is the type and the YAML text of the fields after it.
func declared(name, spec string) string {
	return "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: " + name + "}\nspec: {version: v1, type: " +
		spec + "}\n"
}

// respond sends a request, and returns an error unless the status of the answer is want.
func respond(t *testing.T, n *node.Node, want int, verb, path, body string) error {
	t.Helper()
	if code, text, _ := nodetest.Ask(t, n, verb, path, body); code != want {
		return fmt.Errorf("%s %s: %d %s, want %d", verb, path, code, text, want)
	}
	return nil
}

// TestPluggable_ProcessRestarts uses components in another process over HTTP, while this process is killed and started
// again.
func TestPluggable_ProcessRestarts(t *testing.T) {
	folder := pluggabletest.Folder(t)
	backing := inmemory.Open(inmemory.Options{})
	t.Cleanup(func() { testutil.Must(t, backing.Close()) })
	events := &pluggabletest.Input{}
	p := pluggabletest.Start(t, folder, "mine", (&pluggabletest.State{Store: backing, Offers: []string{"ETAG",
		"TRANSACTIONAL"}}).Register, events.Register, (&pluggabletest.Secrets{
		Secrets: map[string]map[string]string{"db": {"db": "hunter2"}}}).Register)
	received := make(chan string, 10)
	app := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); r.Method == http.MethodPost {
			received <- r.URL.Path + " " + string(body)
		}
	}))
	t.Cleanup(app.Close)
	c := nodetest.Config(t)
	c.App.Port = app.Listener.Addr().(*net.TCPAddr).Port
	c.Components.Sockets = folder
	c.Components.Paths = nodetest.Resources(t, map[string]string{
		"orders.yaml": declared("orders", "state.mine, metadata: [{name: actorStateStore, value: 'true'}]"),
		"vault.yaml":  declared("vault", "secretstores.mine"), "queue.yaml": declared("queue", "bindings.mine")})
	n := nodetest.Open(t, c)

	testutil.Must(t, respond(t, n, 204, "POST", "/v1.0/state/orders", `[{"key":"k","value":{"a":1}}]`))
	code, body, h := nodetest.Ask(t, n, "GET", "/v1.0/state/orders/k", "")
	if code != 200 || body != `{"a":1}` || h.Get("ETag") == "" || h.Get("Quorate-Consistency") != "stale" {
		t.Errorf("%d %s %v", code, body, h)
	}
	testutil.Must(t, respond(t, n, 409, "POST", "/v1.0/state/orders",
		`[{"key":"k","value":2,"etag":"old"},{"key":"l","value":2}]`))
	testutil.Must(t, respond(t, n, 204, "POST", "/v1.0/state/orders/transaction", `{"operations":[`+
		`{"operation":"upsert","request":{"key":"l","value":"x"}},{"operation":"delete","request":{"key":"k"}}]}`))
	_, body, _ = nodetest.Ask(t, n, "POST", "/v1.0/state/orders/bulk", `{"keys":["k","l"]}`)
	if !strings.HasPrefix(body, `[{"key":"k"},{"key":"l","data":"x","etag":`) {
		t.Errorf("bulk: %s", body)
	}
	if _, body, _ := nodetest.Ask(t, n, "GET", "/v1.0/secrets/vault/db", ""); body != `{"db":"hunter2"}` {
		t.Errorf("secret: %s", body)
	}
	events.Send(t, "", `"event 1"`)
	if got := <-received; got != `/queue "event 1"` {
		t.Errorf("event %s", got)
	}

	p.Kill()
	code, body, _ = nodetest.Ask(t, n, "GET", "/v1.0/state/orders/l", "")
	if code != 500 || !strings.Contains(body, "no component listens at "+p.Path) {
		t.Errorf("without the process: %d %s", code, body)
	}
	testutil.Eventually(t, func() error { return respond(t, n, 503, "GET", "/readyz", "") })
	p.Run()
	testutil.Eventually(t, func() error { return respond(t, n, 200, "GET", "/readyz", "") })
	testutil.Must(t, respond(t, n, 200, "GET", "/v1.0/state/orders/l", ""))
	events.Send(t, "", `"event 2"`)
	if got := <-received; got != `/queue "event 2"` {
		t.Errorf("event %s", got)
	}
}

// TestPluggable_StartWaitsForProcess starts a process after the node.
func TestPluggable_StartWaitsForProcess(t *testing.T) {
	folder := pluggabletest.Folder(t)
	backing := inmemory.Open(inmemory.Options{})
	t.Cleanup(func() { testutil.Must(t, backing.Close()) })
	c := nodetest.Config(t)
	c.Components.Sockets = folder
	c.Components.Paths = nodetest.Resources(t, map[string]string{"orders.yaml": declared("orders",
		"state.late, initTimeout: 2m")})
	p := pluggabletest.New(t, folder, "late", (&pluggabletest.State{Store: backing}).Register)
	if _, err := node.Check(t.Context(), c, nodetest.Deps(t).Env); err != nil {
		t.Errorf("the files are valid without the process: %v", err)
	}
	type result struct {
		node *node.Node
		err  error
	}
	opened := make(chan result, 1)
	go func() {
		n, err := node.Open(t.Context(), c, nodetest.Deps(t))
		opened <- result{n, err}
	}()
	select {
	case r := <-opened:
		t.Fatalf("the node is open without the process of its component: %v", r.err)
	case <-time.After(100 * time.Millisecond):
	}
	p.Run()
	r := <-opened
	testutil.Must(t, r.err)
	defer nodetest.Close(t, r.node)
	testutil.Must(t, respond(t, r.node, 204, "GET", "/v1.0/state/orders/absent", ""))
}

// TestPluggable_StoreWithoutETags uses a component that has no ETags over HTTP.
func TestPluggable_StoreWithoutETags(t *testing.T) {
	folder := pluggabletest.Folder(t)
	backing := inmemory.Open(inmemory.Options{})
	t.Cleanup(func() { testutil.Must(t, backing.Close()) })
	pluggabletest.Start(t, folder, "bare", (&pluggabletest.State{Store: backing, NoETags: true}).Register)
	c := nodetest.Config(t)
	c.Components.Sockets = folder
	c.Components.Paths = nodetest.Resources(t, map[string]string{"orders.yaml": declared("orders", "state.bare")})
	n := nodetest.Open(t, c)
	testutil.Must(t, respond(t, n, 204, "POST", "/v1.0/state/orders", `[{"key":"k","value":1}]`))
	code, body, h := nodetest.Ask(t, n, "GET", "/v1.0/state/orders/k", "")
	if _, ok := h["Etag"]; code != 200 || body != "1" || ok {
		t.Errorf("%d %s %v", code, body, h)
	}
	code, body, _ = nodetest.Ask(t, n, "POST", "/v1.0/state/orders/bulk", `{"keys":["k","l"]}`)
	if code != 200 || body != `[{"key":"k","data":1},{"key":"l"}]` {
		t.Errorf("%d %s", code, body)
	}
	testutil.Must(t, respond(t, n, 400, "POST", "/v1.0/state/orders",
		`[{"key":"k","value":2,"options":{"concurrency":"first-write"}}]`))
	testutil.Must(t, respond(t, n, 204, "DELETE", "/v1.0/state/orders/k", ""))
	testutil.Must(t, respond(t, n, 204, "GET", "/v1.0/state/orders/k", ""))
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/bindings/azure/eventgrid/eventgridtest"
)

const gridDocument = `apiVersion: quorate.dev/v1alpha1
kind: Component
metadata: {name: orders}
spec:
  type: bindings.azure.eventgrid
  version: v1
  metadata:
  - {name: tenantId, value: %q}
  - {name: subscriptionId, value: sub}
  - {name: clientId, value: %q}
  - {name: clientSecret, envRef: GRID_SECRET}
  - {name: subscriberEndpoint, value: %q}
  - {name: handshakePort, value: %q}
  - {name: listenHost, value: 127.0.0.1}
  - {name: scope, value: /subscriptions/sub/resourceGroups/shop}
  - {name: pollInterval, value: 50ms}
  - {name: accessKey, envRef: GRID_KEY}
  - {name: topicEndpoint, value: %q}
  - {name: azureAuthorityHost, value: %q}
  - {name: azureResourceManagerEndpoint, value: %q}
`

// application receives the events of a binding. It fails as often as fail says.
type application struct {
	mu     sync.Mutex
	taken  []string
	failed int
	fail   int // number of further failures
}

func (a *application) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		return
	}
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fail > 0 {
		a.fail--
		a.failed++
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	a.taken = append(a.taken, r.URL.Path+" "+string(body))
}

func (m *machine) port() string {
	p := m.ports[0]
	m.ports = m.ports[1:]
	return strconv.Itoa(p)
}

func cloudEvent(id string) string {
	return `{"specversion":"1.0","id":"` + id + `","source":"/shop","type":"order.placed","data":{"n":1.50}}`
}

// TestEventGrid_EventsRoundTrip runs three real nodes and a real application against the protocols of Event Grid.
// There must be one event subscription. The application must get every event in order, and again after a failure.
// The topic must get the published events byte for byte.
func TestEventGrid_EventsRoundTrip(t *testing.T) {
	m := newMachine(t)
	grid, err := eventgridtest.New(eventgridtest.Config{Polls: 2})
	must(t, err)
	t.Cleanup(grid.Close)
	must(t, os.WriteFile(filepath.Join(m.dir, "ca.pem"), grid.Authority(), 0o600))
	t.Setenv("SSL_CERT_FILE", filepath.Join(m.dir, "ca.pem"))
	t.Setenv("GRID_SECRET", grid.Secret)
	t.Setenv("GRID_KEY", grid.AccessKey)
	app := &application{}
	shop := httptest.NewServer(app)
	t.Cleanup(shop.Close)
	_, appPort, err := net.SplitHostPort(shop.Listener.Addr().String())
	must(t, err)

	endpoint := grid.Ingress + "/api/events"
	var servers []*server
	var nodes, joins []string
	for _, id := range []string{"a", "b", "c"} {
		s := m.server(id)
		servers, joins = append(servers, s), append(joins, "--join", s.Gossip())
	}
	runs := map[*server][]string{}
	for _, s := range servers {
		port := m.port()
		nodes = append(nodes, "127.0.0.1:"+port)
		dir := filepath.Join(m.dir, "components-"+s.ID)
		must(t, os.Mkdir(dir, 0o700))
		text := fmt.Sprintf(gridDocument, grid.Tenant, grid.Client, endpoint, port, grid.Topic, grid.URL, grid.URL)
		must(t, os.WriteFile(filepath.Join(dir, "orders.yaml"), []byte(text), 0o600))
		runs[s] = append([]string{"--app-id", "shop", "--app-port", appPort, "--resources-path", dir,
			"--bootstrap-expect", "3"}, joins...)
	}
	for _, s := range servers {
		m.start(s, runs[s]...)
	}
	grid.Lead(nodes...)
	m.until(func() error { // until every node has opened its listener for events
		for _, node := range nodes {
			c, err := net.Dial("tcp", node)
			if err != nil {
				return err
			}
			must(t, c.Close())
		}
		if state := grid.Subscription("/subscriptions/sub/resourceGroups/shop",
			"orders")["provisioningState"]; state != "Succeeded" {
			return fmt.Errorf("the subscription is %v", state)
		}
		return nil
	})

	deliver := func(attempts int, ids ...string) {
		t.Helper()
		var events []json.RawMessage
		for _, id := range ids {
			events = append(events, json.RawMessage(cloudEvent(id)))
		}
		m.until(func() error { // repeated, because a starting node may not know its application yet
			o, err := grid.Deliver(t.Context(), endpoint, events, attempts, 0)
			if err != nil || !o.Handled {
				return fmt.Errorf("%+v %v", o, err)
			}
			return nil
		})
	}
	deliver(1, "1")
	deliver(1, "2", "3")
	app.mu.Lock()
	app.fail = 2
	app.mu.Unlock()
	deliver(5, "4")
	want := []string{"/orders " + cloudEvent("1"), "/orders " + cloudEvent("2"), "/orders " + cloudEvent("3"),
		"/orders " + cloudEvent("4")}
	app.mu.Lock()
	if diff := cmp.Diff(want, app.taken); diff != "" || app.failed != 2 {
		t.Errorf("%d failures, (-want +got)\n%s", app.failed, diff)
	}
	app.mu.Unlock()

	status, body, err := m.ask(servers[0], "POST", "/v1.0/bindings/orders",
		map[string]any{"operation": "create", "data": json.RawMessage(cloudEvent("5"))})
	if err != nil || status != http.StatusNoContent {
		t.Fatalf("%d %s %v", status, body, err)
	}
	published := grid.Requests("topic")
	if len(published) != 1 || published[0].Body != cloudEvent("5") {
		t.Errorf("the topic got %+v", published)
	}

	refused, err := grid.Attempt(t.Context(), eventgridtest.Delivery{Endpoint: endpoint, Token: "forged",
		Body:   []byte(cloudEvent("6")),
		Header: http.Header{"Content-Type": {eventgridtest.MediaEvent}}})
	if err != nil || refused.Status != http.StatusUnauthorized {
		t.Errorf("a forged token: %+v %v", refused, err)
	}

	servers[2].Kill() // the node restarts and finds the existing subscription
	m.start(servers[2], runs[servers[2]]...)
	grid.Lead(nodes[2])
	deliver(1, "7")
	puts := 0
	for _, r := range grid.Requests("management") {
		if r.Method == http.MethodPut {
			puts++
		}
	}
	if puts != 1 {
		t.Errorf("the subscription was requested %d times", puts)
	}
	if strings.Contains(servers[0].log.String(), grid.Secret) ||
		strings.Contains(servers[0].log.String(), grid.AccessKey) {
		t.Error("the log shows a secret")
	}
}

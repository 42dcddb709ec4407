package inputs_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// eventApp is an application that receives events. It fails as often as failing says, and then sends each event to the
// channel.
type eventApp struct {
	*httptest.Server
	events  chan string
	failing atomic.Int64
}

func newEventApp(t *testing.T) *eventApp {
	t.Helper()
	a := &eventApp{events: make(chan string, 100)}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			return // the request that asks whether the application handles a binding
		}
		if a.failing.Add(-1) >= 0 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		body, _ := io.ReadAll(r.Body)
		select {
		case a.events <- r.URL.Path + " " + string(body) + " " + r.Header.Get("readTimeUTC"):
		default:
		}
		_, _ = w.Write([]byte(`"thanks"`))
	}))
	t.Cleanup(a.Close)
	return a
}

func (a *eventApp) port(t *testing.T) int {
	t.Helper()
	_, text, err := net.SplitHostPort(a.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func binding(name, typ string, metadata ...string) string {
	text := "apiVersion: quorate.dev/v1alpha1\nkind: Component\nmetadata:\n  name: " + name + "\nspec:\n  type: " +
		typ + "\n  version: v1\n  metadata:\n"
	for i := 0; i < len(metadata); i += 2 {
		text += fmt.Sprintf("  - {name: %s, value: %q}\n", metadata[i], metadata[i+1])
	}
	return text
}

func TestBindings_SendAndReceive(t *testing.T) {
	app := newEventApp(t)
	c := nodetest.Config(t)
	c.App.Port = app.port(t)
	c.Components.Paths = nodetest.Resources(t, map[string]string{
		"tick.yaml":    binding("tick", "bindings.cron", "schedule", "@every 1s", "route", "/on/tick"),
		"partner.yaml": binding("partner", "bindings.http", "url", app.URL),
	})
	n := nodetest.Open(t, c)
	if got := <-app.events; !strings.HasPrefix(got, "/on/tick  20") {
		t.Errorf("the tick arrived as %q", got)
	}
	app.failing.Store(0)
	code, body, h := nodetest.Ask(t, n, "POST", "/v1.0/bindings/partner",
		`{"operation":"post","data":{"order":1},"metadata":{"path":"/orders"}}`)
	if code != 200 || body != `"thanks"` || h.Get("Metadata.statusCode") != "200" {
		t.Errorf("%d %s %v", code, body, h)
	}
	for got := range app.events {
		if strings.HasPrefix(got, "/orders ") {
			if got != `/orders {"order":1} ` {
				t.Errorf("the partner was sent %q", got)
			}
			break
		}
	}
}

func TestBindings_RetryPolicy(t *testing.T) {
	app := newEventApp(t)
	c := nodetest.Config(t)
	c.Components.Paths = nodetest.Resources(t, map[string]string{
		"partner.yaml": binding("partner", "bindings.http", "url", app.URL),
		"r.yaml": "apiVersion: quorate.dev/v1alpha1\nkind: Resiliency\nmetadata: {name: r}\nspec:\n  " +
			"policies:\n    retries:\n      twice: {policy: constant, duration: 1ms, maxRetries: 2}\n" +
			"  targets:\n    components:\n      partner: {outbound: {retry: twice}}\n",
	})
	n := nodetest.Open(t, c)
	app.failing.Store(2)
	if code, body, _ := nodetest.Ask(t, n, "POST", "/v1.0/bindings/partner",
		`{"operation":"create","data":1}`); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	app.failing.Store(3)
	if code, body, _ := nodetest.Ask(t, n, "POST", "/v1.0/bindings/partner",
		`{"operation":"create","data":1}`); code != 500 || !strings.Contains(body, "received status code 500") {
		t.Errorf("%d %s", code, body)
	}
}

func TestBindings_InputForSeveralApplicationsIsRefused(t *testing.T) {
	c := nodetest.Config(t)
	c.App.Port = 1
	c.Apps = []node.AppEntry{{App: node.App{ID: "second", Port: 2}, HTTPPort: node.Port{Number: 0, Given: true}}}
	c.Components.Paths = nodetest.Resources(t, map[string]string{"tick.yaml": binding("tick", "bindings.cron",
		"schedule", "@hourly")})
	n, err := node.Open(t.Context(), c, nodetest.Deps(t))
	if err == nil {
		nodetest.Close(t, n)
	}
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "second") ||
		!strings.Contains(err.Error(), "scopes") {
		t.Errorf("%v", err)
	}
}

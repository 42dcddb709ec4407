package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	runtimev1 "github.com/dapr/dapr/pkg/proto/runtime/v1"
	sdk "github.com/dapr/go-sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quorate/quorate/api/configurations"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// configured is an application that receives changes of configuration items as callbacks.
type configured struct {
	*httptest.Server
	mu     sync.Mutex
	values map[string]string
	calls  int
}

func newConfiguredApp(t *testing.T) (*configured, int) {
	t.Helper()
	a := &configured{values: map[string]string{}}
	a.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var in struct {
			Items map[string]configurations.Item
		}
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || json.Unmarshal(body, &in) != nil {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.calls++
		for key, item := range in.Items {
			if r.URL.Path != "/configuration/configstore/"+key {
				t.Errorf("%s was sent to %s", key, r.URL.Path)
			}
			a.values[key] = item.Value
		}
	}))
	t.Cleanup(a.Close)
	address, err := url.Parse(a.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	return a, port
}

func (a *configured) value(key string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.values[key]
}

// adminSet writes an item as quorate configuration set does.
func adminSet(t *testing.T, n *node.Node, key, value string) {
	t.Helper()
	poll(t, func() error {
		_, err := n.Admin().WriteConfiguration(t.Context(), "configstore", []configurations.Change{{Key: key,
			Value: value}})
		return err
	})
}

// A client of the public SDK and an application with callbacks both get two changes, although the leader is lost
// between the changes.
func TestConfiguration_SDKAndCallbackSurviveLossOfLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for an election")
	}
	app, port := newConfiguredApp(t)
	nodes, _ := nodetest.ThreeWith(t, func(c *node.Config) { c.App.Port = port })
	at := leads(t, nodes)
	rest := append(append([]*node.Node{}, nodes[:at]...), nodes[at+1:]...)

	code, body, _ := ask(t, rest[0], "GET", "/v1.0/configuration/configstore/subscribe?key=a&key=b%20c", "")
	if code != 200 {
		t.Fatalf("subscribe: %d %s", code, body)
	}
	t.Setenv("DAPR_CLIENT_TIMEOUT_SECONDS", "60")
	client, err := sdk.NewClientWithAddress(rest[1].Addresses().GRPC[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	var mu sync.Mutex
	seen := map[string]string{}
	id, err := client.SubscribeConfigurationItems(t.Context(), "configstore", []string{"a"},
		func(_ string, items map[string]*sdk.ConfigurationItem) {
			mu.Lock()
			defer mu.Unlock()
			for key, item := range items {
				seen[key] = item.Value
			}
		})
	if err != nil {
		t.Fatal(err)
	}
	both := func(want string) {
		t.Helper()
		poll(t, func() error {
			mu.Lock()
			defer mu.Unlock()
			if seen["a"] != want || app.value("a") != want {
				return fmt.Errorf("the SDK has %q, the application %q, want %q", seen["a"], app.value("a"), want)
			}
			return nil
		})
	}
	adminSet(t, nodes[at], "a", "before")
	both("before")
	closeNode(t, nodes[at])
	adminSet(t, rest[0], "b c", "1")
	adminSet(t, rest[0], "a", "after")
	both("after")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	item, err := client.GetConfigurationItem(ctx, "configstore", "a",
		sdk.WithConfigurationMetadata("consistency", "strong"))
	if err != nil || item.Value != "after" || item.Version == "" {
		t.Errorf("%+v, %v", item, err)
	}
	items, err := client.GetConfigurationItems(ctx, "configstore", []string{"a", "b c", "absent"})
	if err != nil || len(items) != 2 {
		t.Errorf("%+v, %v", items, err)
	}
	if err := client.UnsubscribeConfigurationItems(ctx, "configstore", id); err != nil {
		t.Error(err)
	}
	adminSet(t, rest[0], "a", "unsubscribed")
	poll(t, func() error {
		if got := app.value("a"); got != "unsubscribed" {
			return fmt.Errorf("the application has %q", got)
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	if seen["a"] != "after" {
		t.Errorf("after it unsubscribed, the SDK got %q", seen["a"])
	}
}

// A stream of the public API gets the newest value of each key, while one leader after the other is lost.
func TestConfiguration_StreamSurvivesLossesOfLeaders(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for elections")
	}
	nodes, configs := nodetest.Three(t)
	side := open(t, nodetest.Sidecar(t, "s1", nodes[0].Addresses().Gossip))
	ready(t, side)
	conn, err := grpc.NewClient("passthrough:///"+side.Addresses().GRPC[0],
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := runtimev1.NewDaprClient(conn).SubscribeConfiguration(t.Context(),
		&runtimev1.SubscribeConfigurationRequest{StoreName: "configstore"})
	if err != nil {
		t.Fatal(err)
	}
	if first, err := stream.Recv(); err != nil || first.GetId() == "" {
		t.Fatalf("the first message: %v, %v", first, err)
	}
	var mu sync.Mutex
	seen := map[string]string{}
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			mu.Lock()
			for key, item := range m.GetItems() {
				seen[key] = item.GetValue()
			}
			mu.Unlock()
		}
	}()
	want := map[string]string{}
	for round := range 3 {
		at := leads(t, nodes)
		closeNode(t, nodes[at])
		for i := range 12 {
			key, value := strconv.Itoa(i%4), fmt.Sprint(round, "-", i)
			adminSet(t, nodes[(at+1)%3], key, value)
			want[key] = value
		}
		poll(t, func() error {
			mu.Lock()
			defer mu.Unlock()
			if !maps.Equal(seen, want) {
				return fmt.Errorf("loss %d: the stream has %v, want %v", round+1, seen, want)
			}
			return nil
		})
		nodes[at] = open(t, configs[at])
		ready(t, nodes[at])
	}
}

// An application that is a writer of a component can write its items at a sidecar.
func TestConfiguration_WritersWriteAtSidecar(t *testing.T) {
	files := map[string]string{"c.yaml": "apiVersion: quorate.dev/v1alpha1\nkind: Component\n" +
		"metadata: {name: settings}\n" +
		"spec:\n  type: configuration.raft\n  version: v1\n  metadata:\n" +
		"  - {name: writers, value: \"other, shop\"}\n  - {name: maxValueSize, value: \"8\"}\n"}
	c := member(t, "n1", 0)
	c.App.ID, c.Components.Paths = "shop", nodetest.Resources(t, files)
	server := open(t, c)
	ready(t, server)
	s := nodetest.Sidecar(t, "s1", server.Addresses().Gossip)
	s.App.ID, s.Components.Paths = "shop", nodetest.Resources(t, files)
	side := open(t, s)
	ready(t, side)
	for _, step := range []struct {
		method, path, body string
		code               int
		answer             string
	}{
		{"PUT", "settings", `[{"key":"a","value":"1","version":"0"}]`, 204, ""},
		{"PUT", "settings", `[{"key":"a","value":"1","version":"0"}]`, 409, ""},
		{"PUT", "settings", `[{"key":"a","value":"123456789"}]`, 400, ""},
		{"DELETE", "settings?key=a", "", 204, ""},
		{"GET", "settings", "", 204, ""},
		{"GET", "configstore", "", 400, ""}, // a declared component replaces the default one
	} {
		code, body, _ := ask(t, side, step.method, "/v1.0/configuration/"+step.path, step.body)
		if code != step.code {
			t.Errorf("%s %s: %d %s", step.method, step.path, code, body)
		}
	}
}

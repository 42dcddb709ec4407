package node_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// subscribed starts an application. For each message that the application gets, it sends a text to the channel got.
func subscribed(t *testing.T) (port int, got chan string) {
	t.Helper()
	got = make(chan string, 100)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dapr/subscribe" {
			_, _ = io.WriteString(w, `[{"pubsubname":"messages","topic":"orders","route":"/orders"},
				{"pubsubname":"messages","topic":"secret","route":"/secret"}]`)
			return
		}
		if r.Method == http.MethodGet {
			http.NotFound(w, r)
			return
		}
		var event struct{ Data, Topic string }
		body, _ := io.ReadAll(r.Body)
		if json.Unmarshal(body, &event) != nil {
			t.Errorf("the body is no CloudEvent: %s", body)
		}
		got <- r.URL.Path + " " + event.Data + " " + r.Header.Get("Color") + r.Header.Get("Pubsubname") +
			r.Header.Get("Dapr-Api-Token")
	}))
	t.Cleanup(app.Close)
	address, err := url.Parse(app.URL)
	if err != nil {
		t.Fatal(err)
	}
	if port, err = strconv.Atoi(address.Port()); err != nil {
		t.Fatal(err)
	}
	return port, got
}

const pubsubFile = "apiVersion: dapr.io/v1alpha1\nkind: Component\nmetadata: {name: messages}\nspec:\n" +
	"  type: pubsub.in-memory\n  version: v1\n  metadata:\n" +
	"  - {name: subscriptionScopes, value: \"app=orders,declared\"}\n"

const subscriptionFile = "apiVersion: dapr.io/v1alpha1\nkind: Subscription\nmetadata: {name: declared}\nspec:\n" +
	"  pubsubname: messages\n  topic: declared\n  route: ROUTE\n"

func TestSubscriptions_OfApplicationAndFiles(t *testing.T) {
	port, got := subscribed(t)
	folder := t.TempDir()
	file := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file("messages.yaml", pubsubFile)
	file("subscription.yaml", strings.Replace(subscriptionFile, "ROUTE", "/declared", 1))
	c := config(t)
	c.App.ID, c.App.Port, c.Components.Paths = "app", port, []string{folder}
	c.Components.Reload = 50 * time.Millisecond
	n := open(t, c)
	publish := func(topic, data string) {
		t.Helper()
		to := "http://" + n.Addresses().API[0] + "/v1.0/publish/messages/" + topic + "?metadata.color=red"
		answer, err := http.Post(to, "text/plain", bytes.NewReader([]byte(data)))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusNoContent {
			t.Fatal(answer.Status)
		}
	}
	want := func(text string) {
		t.Helper()
		select {
		case have := <-got:
			if have != text {
				t.Errorf("delivered %q, want %q", have, text)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%q was not delivered", text)
		}
	}
	publish("secret", "x") // app may publish to this topic, but not subscribe to it
	publish("orders", "1")
	want("/orders 1 redmessages")
	publish("declared", "2")
	want("/declared 2 redmessages")
	_, described := askAt(t, n.Addresses().API[0], "GET", "/v1.0/metadata", "", "")
	for _, text := range []string{
		`{"pubsubname":"messages","topic":"orders","rules":[{"path":"/orders"}],"deadLetterTopic":"",` +
			`"type":"PROGRAMMATIC"}`,
		`{"pubsubname":"messages","topic":"declared","rules":[{"path":"/declared"}],"deadLetterTopic":"",` +
			`"type":"DECLARATIVE"}`} {
		if !strings.Contains(described, text) {
			t.Errorf("the metadata lack %s: %s", text, described)
		}
	}
	file("subscription.yaml", strings.Replace(subscriptionFile, "ROUTE", "/moved", 1))
	deadline := time.Now().Add(30 * time.Second)
	for moved := false; !moved; {
		publish("declared", "3")
		select {
		case have := <-got:
			moved = have == "/moved 3 redmessages"
			if !moved && have != "/declared 3 redmessages" {
				t.Fatalf("delivered %q", have)
			}
		case <-time.After(time.Until(deadline)):
			t.Fatal("the changed subscription did not take effect")
		}
	}
	if len(got) > 0 {
		t.Errorf("delivered %q", <-got)
	}
}

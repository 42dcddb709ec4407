package node_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/node"
)

func TestApps_HaveOwnListenerKeysStoresAndToken(t *testing.T) {
	scoped := strings.Replace(store("private", "state.in-memory", ""), "spec:", "scopes: [pay]\nspec:", 1)
	c := config(t)
	c.Components.Paths = resources(t, map[string]string{"a.yaml": store("statestore", "state.raft", ""),
		"b.yaml": scoped})
	c.Apps = []node.AppEntry{{App: node.App{ID: "pay"}, HTTPPort: free(), Token: "hush"},
		{App: node.App{ID: "ship"}, HTTPPort: free()}}
	n := open(t, c)
	at := map[string]string{}
	for _, a := range n.Addresses().Apps {
		at[a.ID] = a.API[0]
	}
	if len(at) != 3 || at["shop"] != n.Addresses().API[0] {
		t.Fatalf("%+v", n.Addresses().Apps)
	}
	for _, r := range []struct {
		app, method, path, body, token string
		code                           int
		want                           string
	}{
		{"shop", "POST", "/v1.0/state/statestore", `[{"key":"k","value":"of shop"}]`, "", 204, ""},
		{"pay", "POST", "/v1.0/state/statestore", `[{"key":"k","value":"of pay"}]`, "", 401, ""},
		{"pay", "POST", "/v1.0/state/statestore", `[{"key":"k","value":"of pay"}]`, "hush", 204, ""},
		{"pay", "GET", "/v1.0/state/statestore/k", "", "hush", 200, `"of pay"`},
		{"shop", "GET", "/v1.0/state/statestore/k", "", "", 200, `"of shop"`},
		{"ship", "GET", "/v1.0/state/statestore/k", "", "", 204, ""},
		{"pay", "GET", "/v1.0/state/private/k", "", "hush", 204, ""},
		{"shop", "GET", "/v1.0/state/private/k", "", "", 400, "ERR_STATE_STORE_NOT_FOUND"},
		{"ship", "POST", "/v1.0/state/private", `[{"key":"k","value":1}]`, "", 400, "ERR_STATE_STORE_NOT_FOUND"},
		{"pay", "GET", "/v1.0/metadata", "", "hush", 200, `"private"`},
		{"ship", "GET", "/v1.0/healthz?appid=ship", "", "", 204, ""},
	} {
		code, body := askAt(t, at[r.app], r.method, r.path, r.body, r.token)
		if code != r.code || !strings.Contains(body, r.want) {
			t.Errorf("%s %s at %s: %d %s, want %d %s", r.method, r.path, r.app, code, body, r.code, r.want)
		}
	}
	if _, body := askAt(t, at["ship"], "GET", "/v1.0/metadata", "", ""); strings.Contains(body, "private") ||
		!strings.Contains(body, `"id":"ship"`) {
		t.Errorf("metadata of ship: %s", body)
	}
	if s := status(t, n).Node.Apps; len(s) != 3 || s[1].ID != "pay" {
		t.Errorf("status: %+v", s)
	}
}

// listed waits until a node lists exactly the wanted applications, such as "pay@n1:uncalled". It returns how long
// that took.
func listed(t testing.TB, n *node.Node, want ...string) time.Duration {
	t.Helper()
	begun := time.Now()
	poll(t, func() error {
		apps, err := n.Admin().Apps(t.Context())
		if err != nil {
			return err
		}
		var have []string
		for _, a := range apps {
			name := a.App
			if a.Namespace != "" {
				name += "." + a.Namespace
			}
			have = append(have, name+"@"+a.Node+":"+a.State)
		}
		if got, wanted := strings.Join(have, " "), strings.Join(want, " "); got != wanted {
			return errors.New("lists " + got + ", not " + wanted)
		}
		return nil
	})
	return time.Since(begun)
}

func TestApps_AreListedByEveryNode(t *testing.T) {
	t.Parallel()
	nodes, configs := threeWith(t, func(c *node.Config) {
		c.App.ID = "app-" + c.Cluster.NodeID
		if c.Cluster.NodeID == "n3" {
			c.Namespace = "prod"
			c.Apps = []node.AppEntry{{App: node.App{ID: "extra"}, HTTPPort: free()}}
		}
	})
	all := []string{"app-n1@n1:uncalled", "app-n2@n2:uncalled", "app-n3.prod@n3:uncalled", "extra.prod@n3:uncalled"}
	for _, n := range nodes {
		listed(t, n, all...)
	}
	var m struct {
		Applications []struct {
			ID, Namespace string
			Instances     int
		}
	}
	if _, body, _ := ask(t, nodes[0], "GET", "/v1.0/metadata", ""); json.Unmarshal([]byte(body), &m) != nil ||
		len(m.Applications) != 4 || m.Applications[3].Namespace != "prod" {
		t.Errorf("metadata: %s", body)
	}

	closeNode(t, nodes[2])
	t.Logf("a node that stops is gone after %s", listed(t, nodes[0], all[:2]...))
	configs[2].App.ID, configs[2].Apps = "app-again", nil
	back := open(t, configs[2])
	t.Logf("one that starts is known %s after it serves",
		listed(t, nodes[0], "app-again.prod@n3:uncalled", all[0], all[1]))
	listed(t, back, "app-again.prod@n3:uncalled", all[0], all[1])
}

// The error of a call names the port that the application has not opened, as the health check does.
func TestCall_ApplicationThatDoesNotListenYet(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.App.Port = freePort(t)
	n := open(t, c)
	want := fmt.Sprintf("the application has not opened 127.0.0.1:%d yet", c.App.Port)
	// If the server of another test has used the port for a moment, the node reports that the application was there.
	also := fmt.Sprintf("the application does not take connections on 127.0.0.1:%d", c.App.Port)
	poll(t, func() error {
		code, body, _ := ask(t, n, "GET", "/v1.0/invoke/shop/method/x", "")
		if code != 500 || !strings.Contains(body, want) && !strings.Contains(body, also) {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
}

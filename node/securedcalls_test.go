package node_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
)

// caller returns the configuration of a node with its own application and trust domain. The node joins the cluster
// of seed.
func caller(t testing.TB, id, app, domain, seed string, token trust.Token) node.Config {
	var seeds []string
	if seed != "" {
		seeds = []string{seed}
	}
	c := member(t, id, 0, seeds...)
	c.App.ID = app
	c.Security.ClusterTokenFile, c.Security.Look = tokenFile(t, "", token), 20*time.Millisecond
	c.Security.Drain = 4 * time.Second // longer than the slowest call, on a busy machine too
	c.Components.Paths = resources(t, map[string]string{"access.yaml": `
apiVersion: dapr.io/v1alpha1
kind: Configuration
metadata: {name: access}
spec:
  accessControl:
    defaultAction: deny
    trustDomain: ` + domain + `
    policies: [{appId: web, namespace: default, trustDomain: corp, defaultAction: allow}]
`})
	return c
}

// Only the application web of trust domain corp may call shop. web makes short and long calls while tokens and
// certificates are replaced. No call may fail.
func TestSecuredCalls_SurviveRenewals(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster under load for many seconds")
	}
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-time.After(200 * time.Millisecond)
		}
		_, _ = io.WriteString(w, "done")
	}))
	defer app.Close()
	_, port, _ := net.SplitHostPort(app.Listener.Addr().String())
	old, next := trust.NewToken(), trust.NewToken()
	shop := caller(t, "n1", "shop", "corp", "", old)
	shop.App.Port, _ = strconv.Atoi(port)
	a := open(t, shop)
	web := caller(t, "n2", "web", "corp", a.Addresses().Gossip, old)
	other := caller(t, "n3", "web2", "corp", a.Addresses().Gossip, old)
	foreign := caller(t, "n4", "web", "elsewhere", a.Addresses().Gossip, old)
	b := open(t, web)
	invoke := func(n *node.Node, method string) (int, string) {
		code, body, _ := ask(t, n, "GET", "/v1.0/invoke/shop/method/"+method, "")
		return code, body
	}
	ready(t, b)
	poll(t, func() error {
		if code, body := invoke(b, "x"); code != 200 || body != "done" {
			return fmt.Errorf("web calls shop: %d %s", code, body)
		}
		return nil
	})
	for _, conf := range []node.Config{other, foreign} {
		n := open(t, conf)
		ready(t, n)
		poll(t, func() error {
			if code, body := invoke(n, "x"); code != 403 {
				return fmt.Errorf("%s of node %s calls shop: %d %s", conf.App.ID, conf.Cluster.NodeID, code, body)
			}
			return nil
		})
	}

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var calls atomic.Int64
	for _, method := range []string{"x", "y", "slow"} {
		wg.Go(func() {
			for ctx.Err() == nil {
				if code, body := invoke(b, method); code != 200 || body != "done" {
					t.Errorf("%s: %d %s", method, code, body)
					return
				}
				calls.Add(1)
			}
		})
	}
	for _, step := range [][]trust.Token{{old, next}, {next, old}, {next}} {
		for i, c := range []node.Config{shop, web} {
			tokenFile(t, c.Security.ClusterTokenFile, step...)
			n := []*node.Node{a, b}[i]
			poll(t, func() error {
				if got := status(t, n).Security.Tokens; len(got) != len(step) || got[0] != step[0].Fingerprint() {
					return fmt.Errorf("tokens %v", got)
				}
				return nil
			})
			before := calls.Load()
			poll(t, func() error {
				if calls.Load() < before+5 {
					return fmt.Errorf("no calls go through")
				}
				return nil
			})
		}
	}
	<-time.After(5 * time.Second) // connections with the old token are closed in that time
	stop()
	wg.Wait()
}

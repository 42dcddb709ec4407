package node_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
)

func TestSidecarsRemovalAndTheDoctorWorkInASecuredCluster(t *testing.T) {
	token := trust.NewToken()
	nodes, configs := threeSecured(t, func(*node.Config) {}, token)
	c := beside(t, "side", nodes[0].Addresses().Gossip)
	c.Security.ClusterTokenFile = configs[0].Security.ClusterTokenFile
	var log record
	side := openLogged(t, c, &log)
	ready(t, side)
	if code, body := save(t, side, "k", "1"); code != 204 {
		t.Fatalf("save at the sidecar: %d %s", code, body)
	}
	found, err := side.Checkup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range found.Checks {
		if r.Level == api.CheckFail {
			t.Errorf("%+v", r)
		}
	}
	if len(results(found, "peer port back")) != 3 || len(results(found, "gossip port back (tcp)")) != 3 {
		t.Errorf("%+v", found.Checks)
	}
	at := leads(t, nodes)
	remove(t, side, status(t, nodes[(at+1)%3]).Node.ID)
	knowsItIsRemoved(t, nodes[(at+1)%3])
	stranger := beside(t, "stranger", nodes[0].Addresses().Gossip)
	stranger.Data.Dir = filepath.Join(t.TempDir(), "stranger")
	if code, body, _ := ask(t, open(t, stranger), "GET", "/v1.0/healthz", ""); code != 500 || !strings.Contains(body, "cluster") {
		t.Errorf("a sidecar without the token: %d %s", code, body)
	}
}

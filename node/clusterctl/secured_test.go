package clusterctl_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

func TestSecuredCluster_SidecarsRemovalAndDoctor(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	token := trust.NewToken()
	nodes, configs := nodetest.ThreeSecured(t, func(*node.Config) {}, token)
	c := nodetest.Sidecar(t, "side", nodes[0].Addresses().Gossip)
	c.Security.ClusterTokenFile = configs[0].Security.ClusterTokenFile
	var log nodetest.Log
	side := nodetest.OpenLogged(t, c, &log)
	nodetest.Ready(t, side)
	if code, body := nodetest.Save(t, side, "k", "1"); code != 204 {
		t.Fatalf("save at the sidecar: %d %s", code, body)
	}
	nodetest.Poll(t, func() error { // until gossip has reached every server
		found, err := side.Admin().Checkup(t.Context())
		if err != nil {
			return err
		}
		for _, r := range found.Checks {
			if r.Level == schema.CheckFail {
				return fmt.Errorf("%+v", r)
			}
		}
		if len(nodetest.Results(found, "peer port back")) != 3 ||
			len(nodetest.Results(found, "gossip port back (tcp)")) != 3 {
			return fmt.Errorf("%+v", found.Checks)
		}
		return nil
	})
	at := nodetest.Leader(t, nodes)
	remove(t, side, nodetest.Status(t, nodes[(at+1)%3]).Node.ID)
	knowsItIsRemoved(t, nodes[(at+1)%3])
	stranger := nodetest.Sidecar(t, "stranger", nodes[0].Addresses().Gossip)
	stranger.Data.Dir = filepath.Join(t.TempDir(), "stranger")
	if code, body, _ := nodetest.Ask(t, nodetest.Open(t, stranger), "GET", "/v1.0/healthz", ""); code != 500 ||
		!strings.Contains(body, "cluster") {
		t.Errorf("a sidecar without the token: %d %s", code, body)
	}
}

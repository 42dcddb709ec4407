package doctor_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

func TestDoctor_ChecksEveryNodeInBothDirections(t *testing.T) {
	nodes, _ := nodetest.Three(t)
	side := nodetest.Open(t, nodetest.Sidecar(t, "side", nodes[0].Addresses().Gossip))
	nodetest.Ready(t, side)
	nodetest.Poll(t, func() error {
		if m := nodetest.Members(t, nodes[2])["side"]; m.State != "alive" {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	looks := func(n *node.Node) error {
		c, err := n.Admin().Checkup(t.Context())
		if err != nil {
			return err
		}
		for _, check := range []string{"gossip port to (udp)", "gossip port to (tcp)", "peer port to",
			"gossip port back (udp)", "gossip port back (tcp)", "peer port back", "clock", "round trip"} {
			found := nodetest.Results(c, check)
			if len(found) != 3 {
				return fmt.Errorf("%s at %s: %v", check, c.Node, found)
			}
			for about, r := range found {
				if r.Level != schema.CheckOK && check != "round trip" {
					return fmt.Errorf("%s of %s at %s: %+v", check, about, c.Node, r)
				}
			}
		}
		for _, check := range []string{"disk sync", "free space", "open files", "settings", "ready"} {
			if len(nodetest.Results(c, check)) == 0 {
				return fmt.Errorf("%s was not examined", check)
			}
		}
		return nil
	}
	for _, n := range []*node.Node{nodes[2], side} {
		nodetest.Poll(t, func() error { return looks(n) }) // a node on a busy machine may answer too late
	}
}

func TestDoctor_ReportsVersionDifferencesLikeStatus(t *testing.T) {
	nodes, configs := nodetest.Three(t)
	nodetest.Close(t, nodes[2])
	configs[2].Version = "another"
	nodes[2] = nodetest.Open(t, configs[2])
	nodetest.Poll(t, func() error {
		s := nodetest.Status(t, nodes[0])
		c, err := nodes[0].Admin().Checkup(t.Context())
		if err != nil {
			return err
		}
		if r := nodetest.Results(c, "settings")["version"]; r.Level != schema.CheckWarn || len(s.Notes) != 1 ||
			!strings.Contains(s.Notes[0].Reason, "another") {
			return fmt.Errorf("%+v, notes %+v", r, s.Notes)
		}
		return nil
	})
}

func TestDoctor_ChecksWithoutRunningNode(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of this test
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	c := nodetest.Member(t, "n1", 0, fmt.Sprintf("127.0.0.1:%d", taken),
		fmt.Sprintf("127.0.0.1:%d", nodetest.SparePort(t)))
	c.Cluster.Peer = node.Port{Number: taken, Given: true}
	c.Data.MinFree = 1 << 60
	found := node.Examine(context.Background(), c)
	for check, want := range map[string]map[string]schema.CheckLevel{
		"port":          {"--peer-port tcp": schema.CheckFail, "--gossip-port udp": schema.CheckOK},
		"nodes to join": {fmt.Sprintf("127.0.0.1:%d", taken): schema.CheckOK},
	} {
		for about, level := range want {
			if r := nodetest.Results(found, check)[about]; r.Level != level {
				t.Errorf("%s %s: %+v", check, about, r)
			}
		}
	}
	if found.Worst() != schema.CheckFail || found.Checks[0].Level != schema.CheckFail || found.Checks[0].Fix == "" {
		t.Errorf("what is wrong comes first: %+v", found.Checks)
	}
	for _, r := range nodetest.Results(found, "free space") {
		if r.Level != schema.CheckFail {
			t.Errorf("%+v", r)
		}
	}
}

func TestDoctor_ChecksKeysWithoutRunningNode(t *testing.T) {
	token, other := trust.NewToken(), trust.NewToken()
	seed := nodetest.Member(t, "n1", 1)
	seed.Security.ClusterTokenFile = nodetest.TokenFile(t, "", token)
	at := nodetest.Open(t, seed).Addresses().Gossip
	for name, c := range map[string]struct {
		file  string
		about string
		level schema.CheckLevel
		found string
	}{
		"the same token":  {nodetest.TokenFile(t, "", token), "", schema.CheckOK, "token " + token.Fingerprint()},
		"another token":   {nodetest.TokenFile(t, "", other), at, schema.CheckFail, "do not accept each other"},
		"no token at all": {filepath.Join(t.TempDir(), "none"), "", schema.CheckFail, "cannot be read"},
	} {
		conf := nodetest.Member(t, "n2", 0, at)
		conf.Security.ClusterTokenFile = c.file
		found := nodetest.Results(node.Examine(t.Context(), conf), "keys")
		if r := found[c.about]; r.Level != c.level || !strings.Contains(r.Text, c.found) {
			t.Errorf("%s: %+v", name, found)
		}
		if r, told := found[at]; name == "the same token" && told {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// The clock of one server is an hour ahead. If it leads, cluster time is an hour ahead of the other servers.
func TestDoctor_WarnsOfClockFarFromClusterTime(t *testing.T) {
	if testing.Short() {
		t.Skip("restarts a node of a cluster")
	}
	nodes, configs := nodetest.Three(t)
	for _, n := range nodes {
		c, err := n.Admin().Checkup(t.Context())
		if r := nodetest.Results(c, "cluster time")[""]; err != nil || r.Level != schema.CheckOK {
			t.Errorf("%+v, %v", r, err)
		}
	}
	nodetest.Close(t, nodes[2])
	nodes[2] = nodetest.OpenAt(t, configs[2], func() time.Time { return time.Now().Add(time.Hour) })
	nodetest.Poll(t, func() error {
		warned, measured := 0, 0
		for _, n := range nodes {
			c, err := n.Admin().Checkup(t.Context())
			if err != nil {
				return err
			}
			if nodetest.Results(c, "cluster time")[""].Level == schema.CheckWarn {
				warned++
			}
			_, text, _ := nodetest.AskAt(t, n.Addresses().Metrics, "GET", "/metrics", "", "")
			for line := range strings.Lines(text) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
				v, _ := strconv.ParseFloat(value, 64)
				if strings.HasPrefix(name, "quorate_raft_clock_offset_seconds{") && math.Abs(v) > 3500 {
					measured++
				}
			}
		}
		if warned == 0 || measured == 0 {
			return fmt.Errorf("%d warnings of the doctor, %d values of the metric", warned, measured)
		}
		return nil
	})
}

package node_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/node"
)

// results are those of one check, by what they are about.
func results(c api.Checkup, check string) map[string]api.CheckResult {
	out := map[string]api.CheckResult{}
	for _, r := range c.Checks {
		if r.Check == check {
			out[r.About] = r
		}
	}
	return out
}

func TestTheDoctorLooksAtEveryOtherNodeBothWays(t *testing.T) {
	nodes, _ := three(t)
	side := open(t, beside(t, "side", nodes[0].Addresses().Gossip))
	ready(t, side)
	poll(t, func() error {
		if m := membersOf(t, nodes[2])["side"]; m.State != "alive" {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	looks := func(n *node.Node) error {
		c, err := n.Checkup(t.Context())
		if err != nil {
			return err
		}
		for _, check := range []string{"gossip port to (udp)", "gossip port to (tcp)", "peer port to", "gossip port back (udp)", "gossip port back (tcp)", "peer port back", "clock", "round trip"} {
			found := results(c, check)
			if len(found) != 3 {
				return fmt.Errorf("%s at %s: %v", check, c.Node, found)
			}
			for about, r := range found {
				if r.Level != api.CheckOK && check != "round trip" {
					return fmt.Errorf("%s of %s at %s: %+v", check, about, c.Node, r)
				}
			}
		}
		for _, check := range []string{"disk sync", "free space", "open files", "settings", "ready"} {
			if len(results(c, check)) == 0 {
				return fmt.Errorf("%s was not examined", check)
			}
		}
		return nil
	}
	for _, n := range []*node.Node{nodes[2], side} {
		poll(t, func() error { return looks(n) }) // on a busy machine a node may answer too late once
	}
}

func TestTheDoctorNamesWhatIsCutOff(t *testing.T) {
	nodes, _ := three(t)
	n, other := nodes[0], status(t, nodes[1]).Node
	n.Isolate(other.ServerID)
	defer n.Rejoin(other.ServerID)
	poll(t, func() error { // on a busy machine a node may answer too late once
		c, err := n.Checkup(t.Context())
		if err != nil {
			return err
		}
		r := results(c, "peer port to")[other.ID]
		if r.Level != api.CheckFail || r.Mend == "" || c.Worst() != api.CheckFail {
			return fmt.Errorf("%+v", r)
		}
		if r := results(c, "gossip port to (udp)")[other.ID]; r.Level != api.CheckOK {
			return fmt.Errorf("gossip: %+v", r)
		}
		return nil
	})
}

func TestTheDoctorSeesADisagreementAboutVersionsAsStatusDoes(t *testing.T) {
	nodes, configs := three(t)
	closeNode(t, nodes[2])
	configs[2].Version = "another"
	nodes[2] = open(t, configs[2])
	poll(t, func() error {
		s := status(t, nodes[0])
		c, err := nodes[0].Checkup(t.Context())
		if err != nil {
			return err
		}
		if r := results(c, "settings")["version"]; r.Level != api.CheckWarn || len(s.Notes) != 1 || !strings.Contains(s.Notes[0].Reason, "another") {
			return fmt.Errorf("%+v, notes %+v", r, s.Notes)
		}
		return nil
	})
}

func TestTheDoctorExaminesWithoutANode(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // of this test
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	c := member(t, "n1", 0, fmt.Sprintf("127.0.0.1:%d", taken), fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	c.Cluster.Peer = node.Port{Number: taken, Given: true}
	c.Data.MinFree = 1 << 60
	found := node.Examine(context.Background(), c)
	for check, want := range map[string]map[string]api.CheckLevel{
		"port":          {"--peer-port tcp": api.CheckFail, "--gossip-port udp": api.CheckOK},
		"nodes to join": {fmt.Sprintf("127.0.0.1:%d", taken): api.CheckOK},
	} {
		for about, level := range want {
			if r := results(found, check)[about]; r.Level != level {
				t.Errorf("%s %s: %+v", check, about, r)
			}
		}
	}
	if found.Worst() != api.CheckFail || found.Checks[0].Level != api.CheckFail || found.Checks[0].Mend == "" {
		t.Errorf("what is wrong comes first: %+v", found.Checks)
	}
	for _, r := range results(found, "free space") {
		if r.Level != api.CheckFail {
			t.Errorf("%+v", r)
		}
	}
}

func TestTheDoctorTriesTheKeysWithoutANode(t *testing.T) {
	token, other := trust.NewToken(), trust.NewToken()
	seed := member(t, "n1", 1)
	seed.Security.ClusterTokenFile = tokenFile(t, "", token)
	at := open(t, seed).Addresses().Gossip
	for name, c := range map[string]struct {
		file  string
		about string
		level api.CheckLevel
		found string
	}{
		"the same token":  {tokenFile(t, "", token), "", api.CheckOK, "token " + token.Fingerprint()},
		"another token":   {tokenFile(t, "", other), at, api.CheckFail, "do not accept each other"},
		"no token at all": {filepath.Join(t.TempDir(), "none"), "", api.CheckFail, "cannot be read"},
	} {
		conf := member(t, "n2", 0, at)
		conf.Security.ClusterTokenFile = c.file
		found := results(node.Examine(t.Context(), conf), "keys")
		if r := found[c.about]; r.Level != c.level || !strings.Contains(r.Text, c.found) {
			t.Errorf("%s: %+v", name, found)
		}
		if r, told := found[at]; name == "the same token" && told {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

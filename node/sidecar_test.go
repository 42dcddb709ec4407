package node_test

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
)

func TestSidecar_ServesDataOfServers(t *testing.T) {
	t.Parallel()
	nodes, _ := three(t)
	side := open(t, beside(t, "side", nodes[0].Addresses().Gossip))
	ready(t, side)
	if code, body := save(t, nodes[1], "from-server", "1"); code != 204 {
		t.Fatalf("save at a server: %d %s", code, body)
	}
	if code, body := save(t, side, "from-side", "2"); code != 204 {
		t.Fatalf("save at the sidecar: %d %s", code, body)
	}
	for _, key := range []string{"from-server", "from-side"} {
		for _, n := range append(nodes, side) {
			code, body, h := ask(t, n, "GET", "/v1.0/state/statestore/"+key+"?consistency=strong", "")
			if code != 200 || h.Get("Quorate-Consistency") != "linearizable" {
				t.Errorf("%s: %d %s", key, code, body)
			}
		}
	}
	var etag string
	poll(t, func() error { // without a leader, the answer has another consistency
		code, body, h := ask(t, side, "GET", "/v1.0/state/statestore/from-side", "")
		if code != 200 || body != `"2"` || h.Get("Quorate-Consistency") != "session" ||
			h.Get("Quorate-Session") == "" {
			return fmt.Errorf("eventual read: %d %s %v", code, body, h)
		}
		etag = h.Get("ETag")
		return nil
	})
	if code, _, _ := ask(t, side, "POST", "/v1.0/state/statestore",
		`[{"key":"from-side","value":3,"etag":"1000000"}]`); code != 409 {
		t.Errorf("a save with a wrong etag: %d", code)
	}
	if code, body, _ := ask(t, side, "POST", "/v1.0/state/statestore", `[{"key":"from-side","value":3,"etag":"`+etag+
		`"}]`); code != 204 {
		t.Errorf("a save with the right etag: %d %s", code, body)
	}
	poll(t, func() error {
		s := status(t, side)
		if !s.Ready || s.Node.Role != "sidecar" || s.Node.ServerID != "" || len(s.Groups) != 1 ||
			s.Groups[0].State != "routed" || s.Groups[0].Leader == "" || s.Groups[0].Nearest == "" {
			return fmt.Errorf("status: %+v", s)
		}
		return nil
	})
	poll(t, func() error {
		m := membersOf(t, nodes[2])["side"]
		if m.Role != "sidecar" || m.State != "alive" || m.ServerID != "" {
			return fmt.Errorf("%+v", m)
		}
		return nil
	})
	for _, n := range nodes {
		for _, m := range status(t, n).Groups[0].Servers {
			if m.Node == "side" {
				t.Errorf("the sidecar is a member of the group: %+v", m)
			}
		}
	}
}

func TestSidecar_SurvivesLossOfEachServer(t *testing.T) {
	if testing.Short() {
		t.Skip("forms several clusters, or waits for several elections")
	}
	nodes, configs := three(t)
	var seeds []string
	for _, n := range nodes {
		seeds = append(seeds, n.Addresses().Gossip)
	}
	side := open(t, beside(t, "side", seeds...))
	ready(t, side)
	for i := range nodes {
		closeNode(t, nodes[i])
		key := fmt.Sprint("k", i)
		if code, body := save(t, side, key, "1"); code != 204 {
			t.Fatalf("save without server %d: %d %s", i, code, body)
		}
		if code, body, _ := ask(t, side, "GET", "/v1.0/state/statestore/"+key, ""); code != 200 {
			t.Fatalf("read without server %d: %d %s", i, code, body)
		}
		configs[i].Cluster.Join = seeds
		nodes[i] = open(t, configs[i])
		ready(t, nodes[i])
		voters(t, nodes[i], 3)
	}
}

func TestSidecar_ManyClientsDuringLeaderChange(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster under load for many seconds")
	}
	nodes, _ := three(t)
	side := open(t, beside(t, "side", nodes[0].Addresses().Gossip))
	ready(t, side)
	var clients sync.WaitGroup
	failed := make(chan string, 200)
	for i := range 200 {
		clients.Go(func() {
			for j := range 3 {
				body := fmt.Sprintf(`[{"key":"c%d-%d","value":1,`+
					`"options":{"consistency":"strong","concurrency":"first-write"}}]`, i, j)
				url := "http://" + side.Addresses().API[0] + "/v1.0/state/statestore"
				resp, err := http.Post(url, "application/json", strings.NewReader(body)) //nolint:noctx,gosec // a test
				if err != nil {
					failed <- err.Error()
					return
				}
				_ = resp.Body.Close()
				// Each write creates a key. 409 would mean that an internal retry was applied twice.
				if resp.StatusCode != 204 {
					failed <- fmt.Sprint("status ", resp.StatusCode)
					return
				}
			}
		})
	}
	poll(t, func() error { // under load leadership may move by itself
		_, err := nodes[leads(t, nodes)].Admin().TransferLeader(t.Context(), 0, "")
		return err
	})
	clients.Wait()
	close(failed)
	for f := range failed {
		t.Error(f)
	}
}

func TestSidecar_WithoutServersNamesWhatIsMissing(t *testing.T) {
	side := open(t, beside(t, "side", fmt.Sprintf("127.0.0.1:%d", freePort(t))))
	poll(t, func() error { // the status changes only after the next check
		code, body, _ := ask(t, side, "GET", "/v1.0/healthz", "")
		if code != 500 || !strings.Contains(body, "no node of a cluster has been reached") ||
			!strings.Contains(body, "no node is reached by gossip") {
			return fmt.Errorf("healthz: %d %s", code, body)
		}
		return nil
	})
	s := status(t, side)
	if s.Ready || len(s.Issues) == 0 {
		t.Errorf("status: %+v", s)
	}
}

func TestSidecar_IsReadyOnceThereIsALeader(t *testing.T) {
	t.Parallel()
	first := member(t, "n1", 0)
	lone := open(t, first)
	side := open(t, beside(t, "side", lone.Addresses().Gossip))
	ready(t, side)
	closeNode(t, lone)
	poll(t, func() error {
		if s := status(t, side); s.Ready {
			return errors.New("ready without a server")
		}
		return nil
	})
	for _, i := range status(t, side).Issues {
		if i.Reason == "" {
			t.Errorf("an issue without a reason: %+v", i)
		}
	}
}

func TestRole_RefusesInvalidConfig(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*node.Config)
		want   string
	}{
		"without servers to join": {func(c *node.Config) { c.Cluster.Join = nil }, "--join"},
		"that forms a cluster":    {func(c *node.Config) { c.Cluster.BootstrapExpect = 3 }, "--bootstrap-expect"},
	} {
		conf := beside(t, "side", "127.0.0.1:1")
		c.change(&conf)
		err := conf.WithDefaults().Validate()
		if !fault.Is(err, fault.Invalid) && err == nil || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	server := member(t, "n1", 0)
	closeNode(t, open(t, server))
	conf := beside(t, "n1", "127.0.0.1:1")
	conf.Data.Dir = server.Data.Dir
	if _, err := node.Open(t.Context(), conf, deps(t)); err == nil ||
		!strings.Contains(fault.Text(err), "holds the data of server n1") {
		t.Errorf("on a server's directory: %v", err)
	}
}

func TestNodeID_DefaultsToHostNameWhenJoining(t *testing.T) {
	for host, want := range map[string]string{
		"web-7.example.org": "web-7", "DB_1": "db_1", "-odd-": "odd", "": "", "localhost": "", "local": "", "ü": "",
	} {
		c := node.Config{}
		c.Cluster.Host, c.Cluster.Join, c.Data.StateDir = host, []string{"x"}, "/state"
		dir := c.WithDefaults().Data.Dir
		if want != "" {
			want = filepath.Join("/state/quorate/default", want)
		}
		if dir != want {
			t.Errorf("host %q: data directory %q, want %q", host, dir, want)
		}
	}
	seed := open(t, member(t, "n1", 0))
	c := member(t, "", 0, seed.Addresses().Gossip)
	c.Data.Dir, c.Cluster.Host = filepath.Join(t.TempDir(), "d"), "web-7.example.org"
	n := open(t, c)
	ready(t, n)
	if id := status(t, n).Node.ID; id != "web-7" {
		t.Errorf("node id %q", id)
	}
	closeNode(t, n)
	c.Cluster.Host = "renamed" // the id in the directory has precedence
	if id := status(t, open(t, c)).Node.ID; id != "web-7" {
		t.Errorf("after the machine was renamed: node id %q", id)
	}
}

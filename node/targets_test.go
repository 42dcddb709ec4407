package node_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/node"
)

// targetGroup is one element of the list that Prometheus reads with http_sd_configs.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// targets requests the scrape targets from a node, as Prometheus does.
func targets(t testing.TB, n *node.Node) (map[string]targetGroup, error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + n.Addresses().Metrics + "/targets")
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "application/json" {
		return nil, fmt.Errorf("status %d, type %s", resp.StatusCode, kind)
	}
	var groups []targetGroup
	d := json.NewDecoder(resp.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&groups); err != nil || groups == nil {
		return nil, fmt.Errorf("%v in a body of %v", err, groups)
	}
	out := map[string]targetGroup{}
	for _, g := range groups {
		out[g.Labels["__meta_quorate_node"]] = g
	}
	if len(out) != len(groups) {
		return nil, fmt.Errorf("a node is listed twice: %v", groups)
	}
	return out, nil
}

// lists waits until a node lists exactly these nodes.
func lists(t *testing.T, asked *node.Node, want map[string]targetGroup) {
	t.Helper()
	poll(t, func() error {
		got, err := targets(t, asked)
		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return err
	})
}

func TestScrapeTargets_ListEveryNodeThatHasNotLeft(t *testing.T) {
	t.Parallel()
	nodes, configs := three(t)
	hidden := member(t, "s1", 0, nodes[0].Addresses().Gossip)
	hidden.Cluster.Role, hidden.Metrics.Off = node.RoleSidecar, true
	ready(t, open(t, hidden)) // no node lists this node, because it has no metrics
	want := map[string]targetGroup{}
	for i, n := range nodes {
		id := configs[i].Cluster.NodeID
		want[id] = targetGroup{Targets: []string{n.Addresses().Metrics}, Labels: map[string]string{
			"__meta_quorate_node": id, "__meta_quorate_role": "server", "__meta_quorate_cluster": "default",
			"__meta_quorate_cluster_id": status(t, n).Node.ClusterID, "__meta_quorate_version": "test",
			"__meta_quorate_state": "alive",
		}}
	}
	for _, n := range nodes {
		lists(t, n, want)
	}
	promtoolFinds(t, nodes[1], nodes)

	closeNode(t, nodes[2])
	delete(want, "n3")
	lists(t, nodes[0], want)
	lists(t, nodes[1], want)
}

// promtoolFinds checks with promtool that Prometheus, with the configuration in deploy, finds the targets of a node.
func promtoolFinds(t *testing.T, asked *node.Node, all []*node.Node) {
	t.Helper()
	promtool := os.Getenv("QUORATE_PROMTOOL")
	if promtool == "" {
		t.Log("QUORATE_PROMTOOL names no promtool: the list is not read by Prometheus")
		return
	}
	text, err := os.ReadFile("../deploy/prometheus/prometheus_http_sd.yml")
	if err != nil {
		t.Fatal(err)
	}
	const seed = "http://a.example:9090/targets"
	if !strings.Contains(string(text), seed) {
		t.Fatalf("the file does not ask %s", seed)
	}
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(string(text), seed, "http://"+asked.Addresses().Metrics+
		"/targets")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), promtool, "check", "service-discovery", "--timeout=60s", file,
		"quorate").CombinedOutput()
	for _, n := range all {
		if !strings.Contains(string(out), `"__address__": "`+n.Addresses().Metrics+`"`) || err != nil {
			t.Errorf("promtool does not find %s: %v\n%s", n.Addresses().Metrics, err, out)
		}
	}
	if !strings.Contains(string(out), `"quorate_node": "n3"`) {
		t.Errorf("the relabelling of the file gives n3 no name:\n%s", out)
	}
}

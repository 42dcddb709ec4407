package node_test

import (
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/quorate/quorate/node"
)

// recorder records every registered metric, also metrics without a value yet.
type recorder struct {
	*prometheus.Registry
	names map[string][]string // name -> labels
}

var descPattern = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

func (r *recorder) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 256)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		m := descPattern.FindStringSubmatch(d.String())
		var labels []string
		if m[2] != "" {
			labels = strings.Split(m[2], ",")
		}
		slices.Sort(labels)
		r.names[m[1]] = labels
	}
	return r.Registry.Register(c)
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// registered returns the metrics of all subsystems of a node, except those of libraries.
func registered(t *testing.T) map[string][]string {
	t.Helper()
	r := &recorder{Registry: prometheus.NewRegistry(), names: map[string][]string{}}
	d := deps(t)
	d.Registry = r
	n, err := node.Open(t.Context(), config(t), d)
	if err != nil {
		t.Fatal(err)
	}
	closeNode(t, n)
	for name := range r.names {
		if !strings.HasPrefix(name, "quorate_") {
			delete(r.names, name)
		}
	}
	// the labels of this metric are constant, so that its description does not list them
	r.names["quorate_build_info"] = []string{"cluster", "version"}
	return r.names
}

// documented returns the metrics in docs/metrics.md, which has one table row for each:
// | `name` | `label`, ... | meaning |
func documented(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`quorate_") {
			continue
		}
		var labels []string
		for _, l := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cells[2], -1) {
			labels = append(labels, l[1])
		}
		slices.Sort(labels)
		names[strings.Trim(cells[1], " `")] = labels
	}
	return names
}

func TestMetrics_AreDocumentedWithLabels(t *testing.T) {
	if diff := cmp.Diff(documented(t), registered(t)); diff != "" {
		t.Errorf("docs/metrics.md and the code differ: a line with + needs a row | `name` | `label`, ... | meaning | "+
			"in docs/metrics.md (-documented +registered):\n%s", diff)
	}
}

func TestMetrics_FollowPrometheusConventions(t *testing.T) {
	n := open(t, config(t))
	ask(t, n, "POST", "/v1.0/state/statestore", `[{"key":"k","value":1}]`)
	ask(t, n, "POST", "/v1.0/state/statestore", `[{"key":"k","value":1,"etag":"7"}]`)
	ask(t, n, "GET", "/v1.0/state/statestore/k", "")
	resp, err := http.Get("http://" + n.Addresses().Metrics + "/metrics") //nolint:noctx // loopback
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	problems, err := promlint.New(io.Reader(resp.Body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

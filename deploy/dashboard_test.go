package deploy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	client "github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/node/nodetest"
)

// dashboard is the part of a Grafana dashboard that the tests use.
type dashboard struct {
	Panels []struct {
		ID          int
		Type, Title string
		Description string
		Targets     []struct{ Expr, LegendFormat string }
	}
	Templating struct{ List []variable }
}

// variable is a choice at the top of the dashboard.
type variable struct {
	Name, Type string
	Query      json.RawMessage // text, or an object for a query
}

// expr returns the expression and the label of label_values(expression, label).
func (v variable) expr(t *testing.T) (expr, label string) {
	t.Helper()
	var q struct{ Query string }
	if err := json.Unmarshal(v.Query, &q); err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`^label_values\((.*), ([a-z]+)\)$`).FindStringSubmatch(q.Query)
	if m == nil {
		t.Fatalf("variable %s: %s is no label_values", v.Name, q.Query)
	}
	return m[1], m[2]
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, "grafana/quorate.json")), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// expressions returns every expression of the dashboard, by the panel or the variable that has it.
func (d dashboard) expressions(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, p := range d.Panels {
		for i, q := range p.Targets {
			out[fmt.Sprintf("panel %d %q, query %d", p.ID, p.Title, i)] = q.Expr
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			out["variable "+v.Name], _ = v.expr(t)
		}
	}
	return out
}

func TestDashboard_QueriesUseExistingMetrics(t *testing.T) {
	d := readDashboard(t)
	known, ids := metrics(t), map[int]bool{}
	var rows []string
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
	}
	for name, expr := range d.expressions(t) {
		for _, problem := range problems(expr, known) {
			t.Errorf("%s: %s: %s", name, expr, problem)
		}
	}
	if want := []string{"Overview", "Writes", "Reads", "Raft", "Gossip", "Calls", "Bindings", "Runtime",
		"Watches and locks", "Configuration items", "Actors", "Jobs and reminders",
		"Workflows", "Topics"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q, not %q", rows, want)
	}
}

// The variable cluster limits the values of the variable node. Every query must select the nodes, and queries about
// state also the stores.
func TestDashboard_VariablesSelect(t *testing.T) {
	d := readDashboard(t)
	var names []string
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		names = append(names, v.Name)
		expr, label := v.expr(t)
		if want := map[string]string{"cluster": "", "node": `cluster=~"$cluster"`, "app": `instance=~"$node"`,
			"store": `instance=~"$node"`}[v.Name]; !strings.Contains(expr, want) {
			t.Errorf("variable %s: %s does not select %s", v.Name, expr, want)
		}
		if want := map[string]string{"cluster": "cluster", "node": "instance", "app": "app",
			"store": "store"}[v.Name]; label != want {
			t.Errorf("variable %s has the values of %s", v.Name, label)
		}
	}
	if want := []string{"cluster", "node", "app", "store"}; !slices.Equal(names, want) {
		t.Errorf("variables %q, not %q", names, want)
	}
	for name, expr := range d.expressions(t) {
		if strings.HasPrefix(name, "variable") {
			continue
		}
		found, _ := parse(expr)
		for _, s := range found {
			if !slices.Contains(s.labels, "instance") {
				t.Errorf("%s: %s is not limited to the nodes", name, s.name)
			}
			if strings.HasPrefix(s.name, "quorate_state_") && !slices.Contains(s.labels, "store") {
				t.Errorf("%s: %s is not limited to the stores", name, s.name)
			}
		}
	}
}

// named records the names of all metrics that a node registers, also of those without a value yet.
type named struct {
	*client.Registry
	names map[string]bool
}

var fqName = regexp.MustCompile(`fqName: "([^"]+)"`)

func (r *named) Register(c client.Collector) error {
	descs := make(chan *client.Desc, 1024)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		r.names[fqName.FindStringSubmatch(d.String())[1]] = true
	}
	return r.Registry.Register(c)
}

func (r *named) MustRegister(cs ...client.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// TestDashboard_ExpressionsWorkOnRunningNode starts a node and checks that it has every metric of the dashboard.
func TestDashboard_ExpressionsWorkOnRunningNode(t *testing.T) {
	r := &named{Registry: client.NewRegistry(), names: map[string]bool{"up": true}}
	deps := nodetest.Deps(t)
	deps.Registry = r
	n := nodetest.OpenWith(t, nodetest.Config(t), deps)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families { // some collectors describe only metrics that have a value
		r.names[f.GetName()] = true
	}
	nodetest.Close(t, n)
	for name, expr := range readDashboard(t).expressions(t) {
		found, _ := parse(expr)
		for _, s := range found {
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(s.name, "")
			if !r.names[s.name] && !r.names[base] && (runtime.GOOS == "linux" || !strings.HasPrefix(base, "process_")) {
				t.Errorf("%s: a running node has no %s", name, s.name)
			}
		}
	}
}

// TestDashboardAndAlerts_ParseInPromtool gives every expression of the dashboard to promtool as a recording rule.
func TestDashboardAndAlerts_ParseInPromtool(t *testing.T) {
	promtool := tool(t, "promtool", "QUORATE_PROMTOOL")
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	type group struct {
		Name  string `json:"name"`
		Rules []rule `json:"rules"`
	}
	g := group{Name: "dashboard"}
	for _, expr := range readDashboard(t).expressions(t) {
		g.Rules = append(g.Rules, rule{fmt.Sprintf("dashboard:query:%d", len(g.Rules)), asGrafana(expr)})
	}
	text, err := json.Marshal(map[string]any{"groups": []group{g}}) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, ".", promtool, "check", "rules", "--lint=none", file)
}

// Every panel has a description, which says what the numbers mean and which of them are bad.
func TestDashboard_EveryPanelHasADescription(t *testing.T) {
	for _, p := range readDashboard(t).Panels {
		if p.Type != "row" && len(p.Description) < 20 {
			t.Errorf("panel %d %q has no description", p.ID, p.Title)
		}
	}
}

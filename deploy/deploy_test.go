package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// metrics returns the metrics of docs/metrics.md with their labels. Another test compares the page
// with the metrics that nodes register.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{"up": nil}
	row := regexp.MustCompile("(?m)^\\| `(quorate_[a-z0-9_]+)` \\|([^|]*)\\|")
	for _, m := range row.FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1) {
		for _, l := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(m[2], -1) {
			out[m[1]] = append(out[m[1]], l[1])
		}
		if out[m[1]] == nil {
			out[m[1]] = []string{}
		}
	}
	if len(out) < 80 {
		t.Fatalf("only %d metrics found", len(out))
	}
	for name := range out { // a constant label of each listener of the HTTP API
		if strings.HasPrefix(name, "quorate_http_request") {
			out[name] = append(out[name], "app")
		}
	}
	for name, labels := range runtimeMetrics() {
		out[name] = labels
	}
	return out
}

// runtimeMetrics returns the metrics of the Prometheus client library that the dashboard uses, with their labels.
func runtimeMetrics() map[string][]string {
	return map[string][]string{"process_cpu_seconds_total": {}, "process_resident_memory_bytes": {},
		"process_open_fds": {}, "go_memstats_heap_inuse_bytes": {}, "go_goroutines": {},
		"go_gc_duration_seconds": {"quantile"}}
}

// selector is one metric in an expression, and the labels that are matched on it.
type selector struct {
	name   string
	labels []string
}

var (
	grouping = regexp.MustCompile(`\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	picked   = regexp.MustCompile(`(\b[a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?(\s*\()?`)
	matcher  = regexp.MustCompile(`([a-zA-Z_]+)\s*(?:=~|!~|!=|=)\s*"[^"]*"`)
	window   = regexp.MustCompile(`\[[^\]]*\]`)
)

// parse returns the metrics of an expression, and the labels that it groups by.
func parse(expr string) (found []selector, groups []string) {
	for _, m := range grouping.FindAllStringSubmatch(expr, -1) {
		for _, l := range strings.Split(m[2], ",") {
			groups = append(groups, strings.TrimSpace(l))
		}
	}
	expr = window.ReplaceAllString(grouping.ReplaceAllString(expr, " "), " ")
	for _, m := range picked.FindAllStringSubmatch(expr, -1) {
		if m[3] != "" || slices.Contains([]string{"and", "or", "unless", "bool", "sum", "max", "min", "count", "avg"},
			m[1]) {
			continue // a function or an operator
		}
		s := selector{name: m[1]}
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			s.labels = append(s.labels, l[1])
		}
		found = append(found, s)
	}
	return found, groups
}

// problems returns the names in an expression that no node has.
func problems(expr string, known map[string][]string) (out []string) {
	found, groups := parse(expr)
	if len(found) == 0 {
		return []string{"names no metric"}
	}
	allowed := []string{"job", "instance"}
	for _, s := range found {
		labels, ok := known[s.name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, cut := strings.CutSuffix(s.name, suffix); cut && !ok {
				labels, ok = known[base]
				labels = append(slices.Clone(labels), "le")
			}
		}
		if !ok {
			out = append(out, "no node has the metric "+s.name)
		}
		own := append([]string{"job", "instance"}, labels...)
		for _, l := range s.labels {
			if !slices.Contains(own, l) {
				out = append(out, s.name+" has no label "+l)
			}
		}
		allowed = append(allowed, labels...)
	}
	for _, l := range groups {
		if !slices.Contains(allowed, l) {
			out = append(out, "nothing in it has the label "+l)
		}
	}
	return out
}

func TestExpressions_WrongNamesAreFound(t *testing.T) {
	known := map[string][]string{"quorate_a_total": {"x"}, "quorate_h_seconds": {"y"}}
	for expr, bad := range map[string]bool{
		`sum by (x) (rate(quorate_a_total{x="1",job="q"}[5m])) > 1e9`:                                false,
		`histogram_quantile(0.9, sum by (y, le) (rate(quorate_h_seconds_bucket[$__rate_interval])))`: false,
		`quorate_a_total and on (x) quorate_a_total`:                                                 false,
		`rate(quorate_b_total[5m])`:                                                                  true,
		`quorate_a_total{z="1"}`:                                                                     true,
		`sum by (z) (quorate_a_total)`:                                                               true,
		`sum by (le) (quorate_a_total)`:                                                              true,
		`quorate_a_total / quorate_c`:                                                                true,
		`vector(1)`:                                                                                  true,
		`max(quorate_a_total) or quorate_`:                                                           true,
	} {
		if got := problems(expr, known); (len(got) > 0) != bad {
			t.Errorf("%s: %q", expr, got)
		}
	}
}

// rules is a file of alert rules.
type rules struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr         string
			Labels, Annotations map[string]string
		}
	}
}

func TestAlerts_UseExistingMetricsAndLinkRunbooks(t *testing.T) {
	var r rules
	if err := yaml.Unmarshal([]byte(read(t, "prometheus/alerts.yml")), &r); err != nil {
		t.Fatal(err)
	}
	known, page, tests := metrics(t), read(t, "../docs/troubleshooting.md"),
		read(t, "prometheus/alerts_test.yml")+read(t, "prometheus/alerts_daily_test.yml")
	alerts := map[string]bool{}
	for _, a := range r.Groups[0].Rules {
		alerts[a.Alert] = true
		for _, problem := range problems(a.Expr, known) {
			t.Errorf("%s: %s", a.Alert, problem)
		}
		want := "https://github.com/quorate/quorate/blob/main/docs/troubleshooting.md#" + strings.ToLower(a.Alert)
		if a.Annotations["runbook_url"] != want || !strings.Contains(page, "\n### "+a.Alert+"\n") {
			t.Errorf("%s: its runbook is %q; it should be %s, a heading of that page", a.Alert,
				a.Annotations["runbook_url"], want)
		}
		if !slices.Contains([]string{"warning", "critical"}, a.Labels["severity"]) || a.Annotations["summary"] == "" {
			t.Errorf("%s: severity %q, summary %q", a.Alert, a.Labels["severity"], a.Annotations["summary"])
		}
		if !strings.Contains(tests, "    name: "+a.Alert+"\n") {
			t.Errorf("%s has no test for promtool", a.Alert)
		}
	}
	for _, m := range regexp.MustCompile(`\n### (Quorate\w+)\n`).FindAllStringSubmatch(page, -1) {
		if !alerts[m[1]] {
			t.Errorf("docs/troubleshooting.md tells of %s, which is no alert", m[1])
		}
	}
}

// tool returns the path of a program, or skips the test with a reason.
func tool(t *testing.T, name, variable string) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (%s names it elsewhere)", name, variable)
	}
	return path
}

func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
}

func TestAlerts_FireAndClear(t *testing.T) {
	promtool := tool(t, "promtool", "QUORATE_PROMTOOL")
	run(t, "prometheus", promtool, "check", "config", "prometheus.yml")
	run(t, "prometheus", promtool, "check", "config", "prometheus_http_sd.yml")
	run(t, "prometheus", promtool, "test", "rules", "alerts_test.yml", "alerts_daily_test.yml")
}

func TestUnit_IsConfined(t *testing.T) {
	analyze := tool(t, "systemd-analyze", "QUORATE_SYSTEMD_ANALYZE")
	if out, err := exec.CommandContext(t.Context(), analyze, "security", "--help").CombinedOutput(); err != nil ||
		!strings.Contains(string(out), "--offline") {
		t.Skip("this systemd-analyze judges no files (--offline came with systemd 250)")
	}
	run(t, "systemd", analyze, "security", "--offline=true", "--threshold=20", "quorate.service")
}

// Every key of the settings file beside the unit must be on the configuration page.
func TestUnit_SettingsExist(t *testing.T) {
	var file map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "systemd/quorate.yaml")), &file); err != nil {
		t.Fatal(err)
	}
	page := read(t, "../docs/configuration.md")
	for key := range file {
		if key != "apps" && !strings.Contains(page, "| `"+key+"` |") {
			t.Errorf("%s is no setting", key)
		}
	}
}

// Both ways to build an image must give the same image.
func TestDockerfiles_DescribeTheSameImage(t *testing.T) {
	final := func(path string) (out []string) {
		_, last, ok := strings.Cut(read(t, path), "\nFROM scratch\n")
		if !ok {
			t.Fatalf("%s is not made from scratch", path)
		}
		for line := range strings.Lines(last) {
			if !strings.HasPrefix(line, "COPY") {
				out = append(out, line)
			}
		}
		return out
	}
	a, b := final("container/Dockerfile"), final("container/Dockerfile.prebuilt")
	if !slices.Equal(a, b) {
		t.Errorf("%q\n%q", a, b)
	}
	for _, want := range []string{"USER 65532:65532\n", "ENTRYPOINT [\"/quorate\"]\n"} {
		if !slices.Contains(a, want) {
			t.Errorf("no %q", want)
		}
	}
}

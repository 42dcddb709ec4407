package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// composeTools returns the compose commands that are installed: the Docker plug-in and the older program.
func composeTools(t *testing.T) (tools [][]string) {
	t.Helper()
	if err := exec.CommandContext(t.Context(), "docker", "compose", "version").Run(); err == nil {
		tools = append(tools, []string{"docker", "compose"})
	}
	if path, err := exec.LookPath("docker-compose"); err == nil {
		tools = append(tools, []string{path})
	}
	return tools
}

// marks returns a second compose file, which labels everything that compose.yaml creates.
func (l *lab) marks() string {
	label := fmt.Sprintf("{labels: {%s: %q, %s: \"%d\"}}", labLabel, l.id, timeLabel, time.Now().Unix())
	var b strings.Builder
	fmt.Fprintf(&b, "networks: {default: %s}\nvolumes:\n", label)
	for v := range l.file.Volumes {
		fmt.Fprintf(&b, "  %s: %s\n", v, label)
	}
	b.WriteString("services:\n")
	for s := range l.file.Services {
		fmt.Fprintf(&b, "  %s: %s\n", s, label)
	}
	return b.String()
}

// TestCompose_StartsTheDemo starts all services of the compose file except Grafana, with each installed compose tool
// and locally built images. All must become healthy, Prometheus must scrape them, and web must accept orders.
func TestCompose_StartsTheDemo(t *testing.T) {
	long(t)
	t.Parallel()
	tools := composeTools(t)
	if len(tools) == 0 {
		t.Skip("neither docker compose nor docker-compose is installed")
	}
	for _, tool := range tools {
		t.Run(filepath.Base(strings.Join(tool, " ")), func(t *testing.T) { startDemo(t, tool) })
	}
}

// startDemo is TestCompose_StartsTheDemo with one tool.
func startDemo(t *testing.T, tool []string) {
	l := engine(t)
	l.buildPrometheus()
	l.build()
	dir := t.TempDir()
	for _, folder := range []string{"compose", "prometheus", "grafana"} {
		if err := os.CopyFS(filepath.Join(dir, folder), os.DirFS(folder)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "compose", "labels.yaml"), []byte(l.marks()), 0o600); err != nil {
		t.Fatal(err)
	}
	project := l.name("compose")
	compose := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 3*time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, tool[0],
			append(append(slices.Clone(tool[1:]), "-p", project, "-f", "compose.yaml", "-f", "labels.yaml"),
				args...)...)
		c.Dir = filepath.Join(dir, "compose")
		c.Env = append(os.Environ(), "WEB_PORT=0", "PROMETHEUS_PORT=0", "GRAFANA_PORT=0")
		for k, v := range l.images {
			c.Env = append(c.Env, k+"="+v)
		}
		var out, errs bytes.Buffer
		c.Stdout, c.Stderr = &out, &errs
		if err := c.Run(); err != nil {
			return "", fmt.Errorf("%v: %w: %s", args, err, errs.String())
		}
		return strings.TrimSpace(out.String()), nil
	}
	t.Cleanup(func() {
		if t.Failed() {
			logs, _ := compose("logs", "--tail", "20")
			t.Log(logs)
		}
		if _, err := compose("down", "-v", "-t", "1"); err != nil {
			t.Error(err)
		}
	})
	var services, checked []string
	for name, s := range l.file.Services {
		if name != "grafana" {
			services = append(services, name)
		}
		if name != "grafana" && name != "prometheus" && !s.Healthcheck.Disable {
			checked = append(checked, name)
		}
	}
	slices.Sort(services)
	begin := time.Now()
	if _, err := compose(append([]string{"up", "-d"}, services...)...); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, s := range append(checked, "prometheus") {
		ids[s] = l.must("ps", "-aq", "--filter", "label=com.docker.compose.project="+project, "--filter",
			"label=com.docker.compose.service="+s)
		if ids[s] == "" {
			t.Fatalf("%s has no container", s)
		}
	}
	for _, s := range checked {
		l.eventually(s+" is healthy", patience, func() error {
			if state := l.must("inspect", "-f", "{{.State.Health.Status}}", ids[s]); state != "healthy" {
				return errors.New(state)
			}
			return nil
		})
	}
	t.Logf("healthy %v after compose up began", time.Since(begin).Round(100*time.Millisecond))

	port := func(service, port string) string {
		first, _, _ := strings.Cut(l.must("port", ids[service], port+"/tcp"), "\n")
		return "http://" + first
	}
	l.eventually("web takes an order", patience, func() error {
		_, err := call("POST", port("web", "8080")+"/orders/7", `{"total":12.5}`, 204)
		return err
	})
	if got, err := call("GET", port("web", "8080")+"/orders/7", "", 200); err != nil || got != `{"total":12.5}` {
		t.Errorf("%q, %v", got, err)
	}
	p := prometheus{port("prometheus", "9090")}
	l.eventually("every node is scraped", patience, func() error {
		return p.scrapes(t.Context(), "n1:9090", "n2:9090", "n3:9090", "orders:9090", "web:9090")
	})
}

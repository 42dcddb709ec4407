package deploy_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// buildPrometheus builds an image with the Prometheus of this machine and its shared libraries, so that tests need no
// registry. The data folder is that of the Debian package.
func (l *lab) buildPrometheus() {
	l.t.Helper()
	program, dir := tool(l.t, "prometheus", "QUORATE_PROMETHEUS"), l.t.TempDir()
	put := func(from, to string) {
		data, err := os.ReadFile(from)
		if err == nil {
			to = filepath.Join(dir, "root", to)
			err = errors.Join(os.MkdirAll(filepath.Dir(to), 0o755),
				os.WriteFile(to, data, 0o755)) //nolint:gosec // programs that another user runs
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
	put(program, "bin/prometheus")
	// ldd fails for a static program
	if out, err := exec.CommandContext(l.t.Context(), "ldd", program).CombinedOutput(); err == nil {
		for _, lib := range regexp.MustCompile(`(?m)(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
			put(lib[1], lib[1])
		}
	}
	for _, empty := range []string{"root/etc/prometheus", "data/metrics2"} {
		if err := os.MkdirAll(filepath.Join(dir, empty), 0o755); err != nil { //nolint:gosec // another user reads it
			l.t.Fatal(err)
		}
	}
	file := "FROM scratch\nCOPY root/ /\nCOPY --chown=65534:65534 data/ /var/lib/prometheus/\nUSER 65534:65534\n" +
		"ENTRYPOINT [\"/bin/prometheus\"]\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(file), 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.images["PROMETHEUS_IMAGE"] = l.name("prometheus-image")
	l.must(append(append([]string{"build", "-q", "-t", l.name("prometheus-image")}, l.labels()...), dir)...)
}

// prometheus is a running Prometheus.
type prometheus struct{ url string }

// get sends a request to the API of Prometheus and decodes the data of the response.
func (p prometheus) get(ctx context.Context, path string, query url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Status, Error string
		Warnings      []string
		Data          json.RawMessage
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("%s: %w", resp.Status, err)
	}
	if answer.Status != "success" || len(answer.Warnings) > 0 {
		return fmt.Errorf("%s: %s %q", answer.Status, answer.Error, answer.Warnings)
	}
	return json.Unmarshal(answer.Data, into)
}

// scrapes returns nil if exactly these targets are scraped without errors.
func (p prometheus) scrapes(ctx context.Context, want ...string) error {
	var targets struct {
		ActiveTargets []struct {
			Health, LastError string
			Labels            map[string]string
		}
	}
	if err := p.get(ctx, "targets", nil, &targets); err != nil {
		return err
	}
	var have []string
	for _, a := range targets.ActiveTargets {
		if a.Health != "up" || a.Labels["job"] != "quorate" {
			return fmt.Errorf("%v is %s: %s", a.Labels, a.Health, a.LastError)
		}
		have = append(have, a.Labels["instance"])
	}
	slices.Sort(have)
	if slices.Sort(want); !slices.Equal(have, want) {
		return fmt.Errorf("it scrapes %q, not %q", have, want)
	}
	return nil
}

// rulesWork returns nil if every rule of alerts.yml is loaded and evaluated without errors.
func (p prometheus) rulesWork(ctx context.Context, want int) error {
	var answer struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	if err := p.get(ctx, "rules", nil, &answer); err != nil {
		return err
	}
	n := 0
	for _, g := range answer.Groups {
		for _, r := range g.Rules {
			if r.Health != "ok" {
				return fmt.Errorf("%s: %s %s", r.Name, r.Health, r.LastError)
			}
			n++
		}
	}
	if n != want {
		return fmt.Errorf("%d rules, not %d", n, want)
	}
	return nil
}

// fires reports whether an alert with this label fires ("instance=n1:9090").
func (p prometheus) fires(ctx context.Context, alert, label string) (bool, error) {
	var answer struct {
		Alerts []struct {
			State  string
			Labels map[string]string
		}
	}
	if err := p.get(ctx, "alerts", nil, &answer); err != nil {
		return false, err
	}
	name, value, _ := strings.Cut(label, "=")
	for _, a := range answer.Alerts {
		if a.State == "firing" && a.Labels["alertname"] == alert && a.Labels[name] == value {
			return true, nil
		}
	}
	return false, nil
}

// series returns the number of series in the result of a query whose value is a number.
func (p prometheus) series(ctx context.Context, expr string) (int, error) {
	var answer struct {
		Result []struct{ Value [2]any }
	}
	err := p.get(ctx, "query", url.Values{"query": {expr}}, &answer)
	n := 0
	for _, r := range answer.Result {
		if r.Value[1] != "NaN" {
			n++
		}
	}
	return n, err
}

// startPrometheus runs the service of the compose file with the files of this folder, except that it changes a copy of
// the alerts: each alert waits five seconds instead of minutes, and a follower lags from 50 entries instead of 10000.
func (l *lab) startPrometheus() prometheus {
	l.t.Helper()
	alerts := regexp.MustCompile(`(?m)^(\s+for: )\S+$`).ReplaceAllString(read(l.t, "prometheus/alerts.yml"), "${1}5s")
	lag := regexp.MustCompile(`(_lag_entries > )10000(\n\s+for: )5s\n`)
	if !lag.MatchString(alerts) {
		l.t.Fatal("QuorateFollowerLags is another")
	}
	l.mounts["/etc/prometheus/alerts.yml"] = lag.ReplaceAllString(alerts, "${1}50${2}0s\n")
	l.up("prometheus")
	return prometheus{l.url("prometheus", "9090")}
}

// fixedHosts runs Prometheus with prometheus/prometheus.yml and alerts.yml unchanged: the hosts in
// them are the servers of the demo.
func (l *lab) fixedHosts(servers []string) prometheus {
	l.t.Helper()
	l.file.Services["fixed"] = composeService{
		Image: l.file.Services["prometheus"].Image, Command: l.file.Services["prometheus"].Command,
		Ports: []string{"127.0.0.1:0:9090"},
		Volumes: []string{"../prometheus/prometheus.yml:/etc/prometheus/prometheus.yml:ro",
			"../prometheus/alerts.yml:/etc/prometheus/alerts.yml:ro"},
	}
	var hosts []string
	for i, host := range []string{"a.example", "b.example", "c.example"} {
		hosts = append(hosts, "--add-host", host+":"+
			l.must("inspect", "-f", "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", l.name(servers[i])))
	}
	l.up("fixed", hosts...)
	return prometheus{l.url("fixed", "9090")}
}

// alert waits until an alert fires or clears.
func (l *lab) alert(p prometheus, name, label string, want bool) {
	l.t.Helper()
	l.eventually(fmt.Sprintf("%s {%s} fires: %v", name, label, want), patience, func() error {
		got, err := p.fires(l.t.Context(), name, label)
		if err == nil && got != want {
			err = fmt.Errorf("it does: %v", got)
		}
		return err
	})
}

// traffic causes the activity that the panels show. It sends requests through the applications and to the servers:
// reads of both levels, sessions that move between servers, and writes whose conditions fail. At the first server it
// also uses secrets, bindings, locks and configuration, and publishes messages. It ignores errors, because other tests
// find them.
func traffic(ctx context.Context, shop string, nodes []string) {
	const store = "/v1.0/state/statestore"
	client, session, node := &http.Client{Timeout: 5 * time.Second}, "", nodes[0]
	defer client.CloseIdleConnections()
	for n := 0; ctx.Err() == nil; n++ {
		order, state, elsewhere := fmt.Sprintf("%s/orders/%d", shop, n%50), nodes[n%len(nodes)]+store,
			nodes[(n+1)%len(nodes)]+store
		for _, r := range [][3]string{
			{"POST", order, `{"n":1}`},
			{"GET", order, ""},
			{"POST", state, `[{"key":"a","value":1}]`},
			{"POST", state, `[{"key":"a","value":1,"etag":"1","options":{"concurrency":"first-write"}}]`},
			{"GET", elsewhere + "/a", ""},
			{"GET", state + "/a?consistency=strong", ""},
			{"GET", node + "/v1.0/secrets/env/TOKEN", ""},
			{"POST", node + "/v1.0/bindings/partner", `{"operation":"get"}`},
			{"POST", node + "/v1.0/lock/lockstore", `{"resourceId":"r","lockOwner":"o","expiryInSeconds":60}`},
			{"POST", node + "/v1.0/unlock/lockstore", `{"resourceId":"r","lockOwner":"o"}`},
			{"GET", node + "/v1.0/configuration/configstore", ""},
			{"POST", node + "/v1.0/publish/pubsub/orders", `{"n":1}`},
		} {
			req, err := http.NewRequestWithContext(ctx, r[0], r[1], strings.NewReader(r[2]))
			if err != nil {
				return
			}
			req.Header.Set("dapr-api-token", apiToken)
			if session != "" && strings.Contains(r[1], store) {
				req.Header.Set("Quorate-Session", session)
			}
			if resp, err := client.Do(req); err == nil {
				session = cmp.Or(resp.Header.Get("Quorate-Session"), session)
				_ = resp.Body.Close()
			}
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// watch watches a store, for a few seconds each time.
func watch(ctx context.Context, node string) {
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	for ctx.Err() == nil {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, node+"/v1.0/watch/statestore?prefix=a", nil)
		if err != nil {
			return
		}
		req.Header.Set("dapr-api-token", apiToken)
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			continue
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// components adds components to a node of the demo.
func (l *lab) components(service, files string) {
	l.t.Helper()
	volume := service + "-components"
	l.volume(volume)
	l.must(append(append([]string{"create", "--name", l.name(volume), "-v", l.name(volume) + ":/components"},
		l.labels()...), l.name("quorate"))...)
	file := filepath.Join(l.t.TempDir(), "components.yaml")
	if err := os.WriteFile(file, []byte(files), 0o644); err != nil { //nolint:gosec // another user reads it
		l.t.Fatal(err)
	}
	l.must("cp", file, l.name(volume)+":/components/components.yaml")
	s := l.file.Services[service]
	s.Volumes = append(slices.Clone(s.Volumes), volume+":/components")
	s.Environment = maps.Clone(s.Environment)
	s.Environment["QUORATE_RESOURCES_PATH"] = "/components"
	l.file.Services[service] = s
}

// Components that panels show and the demo does not have: a secret store, bindings in both directions, and a
// subscription.
const (
	serverComponents = `
apiVersion: quorate.dev/v1alpha1
kind: Component
metadata: {name: env}
spec: {type: secretstores.local.env, version: v1, metadata: [{name: prefix, value: DEMO_}]}
---
apiVersion: quorate.dev/v1alpha1
kind: Component
metadata: {name: partner}
spec: {type: bindings.http, version: v1, metadata: [{name: url, value: "http://web:8080/healthz"}]}
`
	webComponents = `
apiVersion: quorate.dev/v1alpha1
kind: Component
metadata: {name: tick}
spec:
  type: bindings.cron
  version: v1
  metadata: [{name: schedule, value: "@every 1s"}, {name: direction, value: input}, {name: route, value: /orders/tick}]
---
apiVersion: dapr.io/v1alpha1
kind: Subscription
metadata: {name: orders}
spec: {pubsubname: pubsub, topic: orders, route: /orders/message}
`
)

// panels has the queries of the panels that have not had data yet, by row and title.
type panels map[string][]string

// asGrafana replaces the variables of an expression as Grafana does when all values are selected. The rate interval is
// the one for a scrape interval of 5 s.
func asGrafana(expr string) string {
	return strings.NewReplacer("$__rate_interval", "30s", "$cluster", ".*", "$node", ".*", "$app", ".*", "$store",
		".*").Replace(expr)
}

func panelsOf(t *testing.T) panels {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, "grafana/quorate.json")), &d); err != nil {
		t.Fatal(err)
	}
	out, row := panels{}, ""
	for _, panel := range d.Panels {
		if panel.Type == "row" {
			row = panel.Title
		}
		for _, q := range panel.Targets {
			name := row + ": " + panel.Title
			out[name] = append(out[name], asGrafana(q.Expr))
		}
	}
	if len(out) < 40 {
		t.Fatalf("only %d panels", len(out))
	}
	return out
}

// unused lists the rows of the dashboard about building blocks that the demo does not use. It also lists a panel that
// has data only while a topic is full.
var unused = []string{"Actors", "Jobs and reminders", "Topics: Full topics", //nolint:gochecknoglobals // constant
	"Workflows"}

// look runs every query of the remaining panels, and removes panels with data. It returns an error if a query fails or
// panels remain; the error names these panels. What is in unused needs no data.
func (left panels) look(ctx context.Context, p prometheus) error {
	var without []string
	for name, queries := range left {
		data := 0
		for _, q := range queries {
			n, err := p.series(ctx, q)
			if err != nil {
				return fmt.Errorf("%s: %s: %w", name, q, err)
			}
			data += n
		}
		row, _, _ := strings.Cut(name, ": ")
		if data > 0 || slices.Contains(unused, row) || slices.Contains(unused, name) {
			delete(left, name)
		} else {
			without = append(without, name)
		}
	}
	if len(without) > 0 {
		return fmt.Errorf("no data: %q", without)
	}
	return nil
}

// TestContainers_PrometheusSeesFailures runs Prometheus beside the demo. It must scrape every node
// and have data for every panel of the dashboard, and its alerts must fire and clear.
func TestContainers_PrometheusSeesFailures(t *testing.T) {
	long(t)
	t.Parallel()
	l := engine(t)
	l.buildPrometheus()
	l.build()
	l.components("n1", read(t, "components/statestore.yaml")+"---"+serverComponents)
	l.components("web-sidecar", read(t, "components/statestore.yaml")+"---"+webComponents)
	servers, _ := l.start(append(open(), "-e", "DEMO_TOKEN=x")...)
	p := l.startPrometheus()
	alerts := strings.Count(read(t, "prometheus/alerts.yml"), "- alert:")
	l.eventually("every node is scraped and every rule works", patience, func() error {
		return errors.Join(p.scrapes(t.Context(), "n1:9090", "n2:9090", "n3:9090", "orders:9090", "web:9090"),
			p.rulesWork(t.Context(), alerts))
	})
	fixed := l.fixedHosts(servers)
	busy, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	shop, nodes := l.url("web", "8080"), l.apis(servers)
	clients.Go(func() { traffic(busy, shop, nodes) })
	clients.Go(func() { watch(busy, nodes[0]) })
	t.Cleanup(func() { stop(); clients.Wait(); http.DefaultClient.CloseIdleConnections() })
	left := panelsOf(t)
	l.eventually("every panel has data", patience, func() error { return left.look(t.Context(), p) })
	l.eventually("the hosts of prometheus.yml are scraped", patience, func() error {
		return errors.Join(fixed.scrapes(t.Context(), "a.example:9090", "b.example:9090", "c.example:9090"),
			fixed.rulesWork(t.Context(), alerts))
	})
	l.must("rm", "-f", l.name("fixed"))

	l.lags(p, servers)
	l.cut("n2")
	l.alert(p, "QuorateNodeDown", "instance=n2:9090", true)
	l.plug("n2")
	l.alert(p, "QuorateNodeDown", "instance=n2:9090", false)
	l.eventually("n2 is back", patience, l.health("--placed", servers...))

	l.must("kill", l.name("n2"), l.name("n3"))
	l.alert(p, "QuorateNoLeader", "group=0", true)
	l.alert(p, "QuorateNodeWithoutLeader", "instance=n1:9090", true)
	l.alert(p, "QuorateMembersFailed", "role=server", true)
	l.must("start", l.name("n2"), l.name("n3"))
	for _, a := range [][2]string{{"QuorateNoLeader", "group=0"}, {"QuorateNodeWithoutLeader", "instance=n1:9090"},
		{"QuorateMembersFailed", "role=server"}} {
		l.alert(p, a[0], a[1], false)
	}
}

// lags slows a follower down under load until the alert about its lag fires. It tries several slowdowns, because the
// follower must still report its lag and the right slowdown depends on the machine.
func (l *lab) lags(p prometheus, servers []string) {
	l.t.Helper()
	leader := l.leader(servers)
	slow := servers[(slices.Index(servers, leader)+1)%len(servers)]
	clients := startLedger(l.t, 16, apiToken, l.apis([]string{leader}))
	begin, cpus := time.Now(), ""
	l.eventually("QuorateFollowerLags fires", 2*patience, func() error {
		share := []string{"0.02", "0.05", "0.01", "0.1"}[int(time.Since(begin)/(30*time.Second))%4]
		if share != cpus {
			cpus = share
			l.must("update", "--cpus", cpus, l.name(slow))
		}
		fires, err := p.fires(l.t.Context(), "QuorateFollowerLags", "node="+slow)
		if err == nil && !fires {
			err = errors.New("it does not")
		}
		return err
	})
	clients.end()
	l.t.Logf("%s lagged with %s of a CPU: %v", slow, cpus, clients)
	l.must("update", "--cpus", l.must("info", "--format", "{{.NCPU}}"), l.name(slow))
	l.alert(p, "QuorateFollowerLags", "node="+slow, false)
	l.eventually(slow+" is back", patience, l.health("--placed", servers...))
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/testutil"
)

// attackToken is the API token of the attacked nodes.
const attackToken = "the-token-of-the-api"

// thorough reports whether attacks run at full size and length. They do with QUORATE_ATTACKS=all.
func thorough() bool { return os.Getenv("QUORATE_ATTACKS") == "all" }

// victim is one server of the attacked cluster, in its own process.
type victim struct {
	*launcher.Node
	api, metrics, gossip, peer string // host:port
	log                        *testutil.Output
}

// siege is a secured cluster of three real processes. The first node has an application.
type siege struct {
	dir     string
	nodes   []*victim
	app     *target
	joins   string
	cleared []string // the environment of the test, without settings of Quorate
}

// target is the application. It records the requests that reach it.
type target struct {
	server *http.Server
	port   string
	mu     sync.Mutex // guards seen
	seen   []string   // method, path and body size of each request
	heads  []http.Header
}

// asksForActors reports whether a request is the request of the node for the actor types of the application. Calls of
// other applications have a header with the caller.
func asksForActors(r *http.Request) bool {
	return r.Method == http.MethodGet && r.RequestURI == "/dapr/config" && r.Header.Get("Dapr-Caller-App-Id") == ""
}

func (a *target) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if asksForActors(r) {
		http.NotFound(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, fmt.Sprintf("%s %s %d", r.Method, r.RequestURI, len(body)))
	a.heads = append(a.heads, r.Header.Clone())
}

// take returns the requests that reached the application since the last call.
func (a *target) take() ([]string, []http.Header) {
	a.mu.Lock()
	defer a.mu.Unlock()
	seen, heads := a.seen, a.heads
	a.seen, a.heads = nil, nil
	return seen, heads
}

func newTarget(t *testing.T) *target {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &target{port: strconv.Itoa(l.Addr().(*net.TCPAddr).Port)}
	a.server = &http.Server{Handler: a, ReadHeaderTimeout: time.Minute}
	go func() { _ = a.server.Serve(l) }()
	t.Cleanup(func() { _ = a.server.Close() })
	return a
}

// newCamp prepares three servers and starts none of them.
func newCamp(t *testing.T) *siege {
	t.Helper()
	dir, err := os.MkdirTemp("", "q") // socket paths must be short
	if err != nil {
		t.Fatal(err)
	}
	s := &siege{dir: dir}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "QUORATE_") && !strings.HasPrefix(e, "DAPR_") {
			s.cleared = append(s.cleared, e)
		}
	}
	s.write(t, "api-token", attackToken)
	s.write(t, "secrets.json", `{"password": "the-value-to-keep-secret"}`)
	s.write(t, "resources/vault.yaml", `apiVersion: quorate.dev/v1alpha1
kind: Component
metadata:
  name: vault
spec:
  type: secretstores.local.file
  version: v1
  metadata:
  - name: secretsFile
    value: `+filepath.Join(dir, "secrets.json")+`
`)
	s.quorate(t, "token", "create", "--file", filepath.Join(dir, "token"))
	var joins []string
	for i := range 3 {
		v := s.victim(t, fmt.Sprintf("n%d", i+1))
		joins, s.nodes = append(joins, v.gossip), append(s.nodes, v)
	}
	s.joins = strings.Join(joins, ",")
	return s
}

func newSiege(t *testing.T) *siege {
	t.Helper()
	s := newCamp(t)
	s.app = newTarget(t)
	for i, v := range s.nodes {
		flags := []string{"--bootstrap-expect", "3", "--cluster-token-file", filepath.Join(s.dir, "token"),
			"--app-id", fmt.Sprintf("app%d", i+1)}
		if i == 0 {
			flags = append(flags, "--app-port", s.app.port)
		}
		s.start(t, v, flags...)
	}
	for _, v := range s.nodes {
		s.eventually(t, v.ID+" becomes ready", time.Minute,
			func() bool { return v.status("GET", "/v1.0/healthz") == http.StatusNoContent })
	}
	return s
}

func sure[V any](v V, err error) func(*testing.T) V {
	return func(t *testing.T) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (s *siege) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// victim returns a server with a directory and ports. It does not start the server.
func (s *siege) victim(t *testing.T, id string) *victim {
	t.Helper()
	v := &victim{log: &testutil.Output{}}
	var ports [4]int
	for i, a := range []*string{&v.api, &v.metrics, &v.gossip, &v.peer} {
		port := sure(freePort())(t)
		*a, ports[i] = "127.0.0.1:"+port, sure(strconv.Atoi(port))(t)
	}
	v.Node = launcher.Loopback(id, "quorate", filepath.Join(s.dir, id), ports[0], ports[2])
	v.Flags = append(v.Flags, "--metrics-port", fmt.Sprint(ports[1]), "--peer-port", fmt.Sprint(ports[3]),
		"--log-as-json", "--api-token-file", filepath.Join(s.dir, "api-token"))
	v.Options.Env = s.env()
	return v
}

// env returns the environment of the servers: cleared, with directories of the test.
func (s *siege) env() []string {
	return append(slices.Clone(s.cleared), "HOME="+s.dir, "XDG_RUNTIME_DIR="+s.dir)
}

func (s *siege) quorate(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("quorate", args...)
	cmd.Env = s.env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("quorate %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// start runs a server until the end of the test.
func (s *siege) start(t *testing.T, v *victim, flags ...string) {
	t.Helper()
	launch(t, v.Node, v.log, append([]string{"--join", s.joins, "--enable-grpc=false", "--resources-path",
		filepath.Join(s.dir, "resources"), "--request-timeout", "3s"}, flags...)...)
}

func (s *siege) eventually(t *testing.T, what string, limit time.Duration, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(limit); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// ask sends a well-formed request on a new connection.
func (v *victim) ask(method, path, body string, headers ...string) (*http.Response, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+v.api+path, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

// status returns the status of the response, or 0 without one.
func (v *victim) status(method, path string, headers ...string) int {
	resp, _, err := v.ask(method, path, "", headers...)
	if err != nil {
		return 0
	}
	return resp.StatusCode
}

// raw sends text on a new connection. It returns the response until the connection is closed, or until nothing arrives
// for half a second.
func raw(t *testing.T, address, text string) string {
	t.Helper()
	c := sure(net.Dial("tcp", address))(t)
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	go func() { _, _ = io.WriteString(c, text) }() // the server may close the connection earlier
	var out bytes.Buffer
	buf := make([]byte, 4096)
	for {
		n, err := c.Read(buf)
		out.Write(buf[:n])
		if err != nil {
			return out.String()
		}
		_ = c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
	}
}

// answers returns the statuses of the HTTP responses in text.
func answers(text string) (out []int) {
	r := bufio.NewReader(strings.NewReader(text))
	for {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return out
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		out = append(out, resp.StatusCode)
	}
}

// usage has the resources of a node that an attack must not leak. heap is in bytes.
type usage struct{ goroutines, files, heap float64 }

func (v *victim) usage(t *testing.T) usage {
	t.Helper()
	m := v.scrape(t)
	return usage{m["go_goroutines"], m["process_open_fds"], m["go_memstats_heap_inuse_bytes"]}
}

func (v *victim) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	resp, err := (&http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Get(
		"http://" + v.metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text := string(sure(io.ReadAll(resp.Body))(t))
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name != "#" {
			if x, err := strconv.ParseFloat(value, 64); err == nil {
				out[name] = x
			}
		}
	}
	return out
}

// sum adds up the metrics whose name and labels begin with prefix.
func (v *victim) sum(t *testing.T, prefix string) (total float64) {
	t.Helper()
	for name, value := range v.scrape(t) {
		if strings.HasPrefix(name, prefix) {
			total += value
		}
	}
	return total
}

// members returns the ids of the nodes that v considers alive.
func (s *siege) members(t *testing.T, v *victim) (ids []string) {
	t.Helper()
	var list []struct{ Node, State string }
	text := s.quorate(t, "members", "--json", "--data-dir", v.DataDir)
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for _, m := range list {
		if m.State == "alive" {
			ids = append(ids, m.Node)
		}
	}
	return ids
}

// serves fails unless a strong write on every node can be read on the next one.
func (s *siege) serves(t *testing.T, when string) {
	t.Helper()
	for i, v := range s.nodes {
		key := fmt.Sprintf("%s-%d", when, i)
		resp, text, err := v.ask("POST", "/v1.0/state/statestore",
			`[{"key":"`+key+`","value":1,"options":{"consistency":"strong"}}]`, "dapr-api-token", attackToken)
		if err != nil || resp.StatusCode != http.StatusNoContent {
			t.Errorf("%s: a write on %s fails: %v %v %s", when, v.ID, err, resp, text)
		}
		if got := v.status("GET", "/v1.0/state/statestore/"+key+"?consistency=strong", "dapr-api-token",
			attackToken); got != http.StatusOK {
			t.Errorf("%s: a read on %s returns %d", when, v.ID, got)
		}
	}
}

// TestAttacks attacks a secured cluster of real processes on every port. Afterwards the members must be the same,
// data must be served, and no goroutine, file or memory may be leaked. With QUORATE_ATTACKS=all it opens the full
// number of idle connections, and also waits for clients that do not read.
func TestAttacks(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real processes")
	}
	s := newSiege(t)
	s.serves(t, "before")
	before := map[string]usage{}
	for _, v := range s.nodes {
		before[v.ID] = v.usage(t)
	}
	for _, a := range []struct {
		name string
		run  func(*testing.T, *siege)
	}{
		{"every endpoint without and with a wrong token", attackWithoutToken},
		{"malformed requests", attackMalformed},
		{"malformed bodies", attackBodies},
		{"oversize requests", attackOversize},
		{"smuggled requests", attackSmuggling},
		{"headers for the next hop", attackHeaders},
		{"raw bytes on the cluster ports", attackClusterPorts},
		{"raw bytes on the metrics port", attackMetrics},
		{"nodes that do not belong", attackMembership},
		{"silent connections to the cluster ports", attackHandshakes},
		{"slow and idle clients", attackIdle},
	} {
		t.Run(a.name, func(t *testing.T) {
			a.run(t, s)
			s.serves(t, "after-"+strings.ReplaceAll(a.name, " ", "-"))
		})
	}
	for _, v := range s.nodes {
		s.recovers(t, v, before[v.ID])
		if got := len(s.members(t, v)); got != 3 {
			t.Errorf("%s sees %d members", v.ID, got)
		}
		if text := v.log.String(); strings.Contains(text, "the-value-to-keep") ||
			strings.Contains(text, attackToken) || strings.Contains(text, "panic") ||
			strings.Contains(text, "DATA RACE") {
			t.Errorf("the log of %s holds a secret, a panic or a data race", v.ID)
		}
	}
}

// recovers waits until a node uses no more resources than before. It waits for several minutes, because an idle
// process returns memory only at a garbage collection, which runs every two minutes.
func (s *siege) recovers(t *testing.T, v *victim, before usage) {
	t.Helper()
	const goroutines, files, heap = 30, 30, 32 << 20 // tolerance for background work
	var now usage
	s.eventually(t, v.ID+" uses as little as before", 5*time.Minute, func() bool {
		now = v.usage(t)
		return now.goroutines <= before.goroutines+goroutines && now.files <= before.files+files &&
			now.heap <= before.heap+heap
	})
	t.Logf("%s: goroutines %v -> %v, files %v -> %v, heap %.1f -> %.1f MiB", v.ID, before.goroutines, now.goroutines,
		before.files, now.files, before.heap/(1<<20), now.heap/(1<<20))
}

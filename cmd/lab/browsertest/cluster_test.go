package browsertest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// node is one process of the program under test.
type node struct {
	name, dir string
	api       string // host:port
	cmd       *exec.Cmd
	log       *bytes.Buffer
}

// program returns the program to test.
func program(t *testing.T) string {
	t.Helper()
	path := os.Getenv("QUORATE")
	if path == "" {
		path = "../../../bin/quorate"
	}
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the program is not built (make build): %v", err)
	}
	return path
}

// freePorts returns ports that nothing listens on. The system gives higher ports to outgoing connections. One of those
// could take the port of a node while the node is restarted.
func freePorts(t *testing.T, n int) []int {
	t.Helper()
	const first, end = 10240, 32768
	var out []int
	for _, i := range rand.Perm(end - first) {
		if len(out) == n {
			return out
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+i))
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }()
		out = append(out, first+i)
	}
	t.Fatalf("127.0.0.1 has fewer than %d free ports between %d and %d", n, first, end-1)
	return nil
}

// startCluster starts three nodes that form a cluster, and stops them when the test ends.
func startCluster(t *testing.T, flags ...string) []*node {
	t.Helper()
	const count, each = 3, 5
	ports := freePorts(t, count*each)
	var seeds []string
	for i := range count {
		seeds = append(seeds, "--join", fmt.Sprintf("127.0.0.1:%d", ports[i*each]))
	}
	dir, err := os.MkdirTemp("", "q") // a short path: it holds a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	var nodes []*node
	for i, name := range []string{"a", "b", "c"} {
		p := ports[i*each:]
		n := &node{name: name, dir: filepath.Join(dir, name), api: fmt.Sprintf("127.0.0.1:%d", p[2]),
			log: &bytes.Buffer{}}
		args := append([]string{"run", "--node-id", name, "--data-dir", n.dir, "--app-id", "app-" + name,
			"--gossip-port", fmt.Sprint(p[0]), "--peer-port", fmt.Sprint(p[1]), "--http-port", fmt.Sprint(p[2]),
			"--metrics-port", fmt.Sprint(p[3]), "--console-port", fmt.Sprint(p[4]), "--console", "--enable-grpc=false",
			"--app-port", appPort(t, name == "b"), "--bootstrap-expect", "3"}, append(seeds, flags...)...)
		n.start(t, args)
		t.Cleanup(func() { n.kill(); _ = os.WriteFile(filepath.Join(artefacts(t), name+".log"), n.log.Bytes(), 0o600) })
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		wait(t, "node "+n.name+" is ready", func() bool { return status("http://"+n.api+"/readyz") == http.StatusOK })
	}
	return nodes
}

// tokenFile writes a token that secures the traffic between nodes, and returns the path of its file.
func tokenFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if out, err := exec.Command(program(t), "token", "create", "--file", path).CombinedOutput(); err != nil {
		t.Fatalf("quorate token create: %v %s", err, out)
	}
	return path
}

// appPort starts an application that answers every call, and returns its port. Calls of the method fail and jobs get
// status 500. With actors, it hosts actors of type Cart.
func appPort(t *testing.T, actors bool) string {
	t.Helper()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/dapr/config" && actors:
			_, _ = io.WriteString(w, `{"entities":["Cart"]}`)
		case r.URL.Path == "/fail" || strings.HasPrefix(r.URL.Path, "/job/"):
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(app.Close)
	return fmt.Sprint(app.Listener.Addr().(*net.TCPAddr).Port)
}

// use sends requests to all nodes until the test ends.
func use(t *testing.T, nodes []*node) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	send := func(n *node, method, path, body string) {
		all.Go(func() {
			for ctx.Err() == nil {
				r, err := http.NewRequestWithContext(ctx, method, "http://"+n.api+"/v1.0/"+path,
					strings.NewReader(body))
				if err != nil {
					return
				}
				if answer, err := http.DefaultClient.Do(r); err == nil {
					_ = answer.Body.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
	for _, n := range nodes {
		send(n, http.MethodPost, "state/statestore", `[{"key":"order-1","value":{"item":"lamp","total":12.5}}]`)
		send(n, http.MethodGet, "state/statestore/order-1", "")
	}
	send(nodes[0], http.MethodGet, "invoke/app-b/method/stock", "")
	send(nodes[0], http.MethodGet, "invoke/app-c/method/pay", "")
	send(nodes[1], http.MethodGet, "invoke/app-c/method/fail", "")
	t.Cleanup(func() { cancel(); all.Wait() })
}

// start starts the process of the node.
func (n *node) start(t *testing.T, args []string) {
	t.Helper()
	n.cmd = exec.Command(program(t), args...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// restart starts the process again, after it has ended.
func (n *node) restart(t *testing.T) {
	t.Helper()
	n.start(t, n.cmd.Args[1:])
}

// terminate asks the process to end.
func (n *node) terminate(t *testing.T) {
	t.Helper()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// kill ends the process at once. It may be called again.
func (n *node) kill() {
	_ = n.cmd.Process.Kill()
	_ = n.cmd.Wait()
}

// link returns a link that signs in to the console.
func (n *node) link(t *testing.T) string {
	t.Helper()
	out, err := exec.Command(program(t), "console", "--print", "--data-dir", n.dir).Output()
	if err != nil {
		t.Fatalf("quorate console: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// save writes values through the API of the node.
func (n *node) save(t *testing.T, body string) {
	t.Helper()
	r, err := http.Post("http://"+n.api+"/v1.0/state/statestore", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	if text, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusNoContent {
		t.Fatalf("save: %s %s", r.Status, text)
	}
}

// post sends a request to the API of the node and returns the status.
func (n *node) post(t *testing.T, path, body string) int {
	t.Helper()
	r, err := http.Post("http://"+n.api+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	return r.StatusCode
}

func status(url string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}

// wait polls until a condition holds.
func wait(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(90 * time.Second); !holds(); <-time.After(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// artefacts returns the directory for screenshots and logs: SCREENSHOTS, or a temporary one.
func artefacts(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		return t.TempDir()
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	return dir
}

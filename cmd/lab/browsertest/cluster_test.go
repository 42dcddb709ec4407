package browsertest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/launcher"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/testutil"
)

// node is one process of the program under test.
type node struct {
	*launcher.Node
	log testutil.Output
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

// startCluster starts three nodes that form a cluster, and stops them when the test ends.
func startCluster(t *testing.T, flags ...string) []*node {
	t.Helper()
	const count, each = 3, 4
	ports, err := listen.Spare(t.Context(), count*each)
	if err != nil {
		t.Fatal(err)
	}
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
		n := &node{Node: launcher.Loopback(name, program(t), filepath.Join(dir, name), p[1], p[0])}
		n.Options.Stdout, n.Options.Stderr = &n.log, &n.log
		n.Flags = append(n.Flags, "--app-id", "app-"+name, "--metrics-port", fmt.Sprint(p[2]), "--console-port",
			fmt.Sprint(p[3]), "--console", "--enable-grpc=false", "--app-port", appPort(t, name == "b"),
			"--bootstrap-expect", "3")
		n.Flags = append(append(n.Flags, seeds...), flags...)
		n.start(t)
		t.Cleanup(func() {
			n.Kill()
			_ = os.WriteFile(filepath.Join(artefacts(t), name+".log"), []byte(n.log.String()), 0o600)
		})
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		wait(t, "node "+n.ID+" is ready", func() bool { return status(n.Base()+"/readyz") == http.StatusOK })
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
				r, err := http.NewRequestWithContext(ctx, method, n.Base()+"/v1.0/"+path,
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

// start starts the process of the node, or starts it again.
func (n *node) start(t *testing.T) {
	t.Helper()
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
}

// link returns a link that signs in to the console.
func (n *node) link(t *testing.T) string {
	t.Helper()
	out, err := n.Quorate(t.Context(), "console", "--print")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// save writes values through the API of the node.
func (n *node) save(t *testing.T, body string) {
	t.Helper()
	r, err := http.Post(n.Base()+"/v1.0/state/statestore", "application/json", strings.NewReader(body))
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
	r, err := http.Post(n.Base()+path, "application/json", strings.NewReader(body))
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

package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/quorate/quorate/internal/testutil"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"quorate": func() { os.Exit(run()) },
		"daprd": func() { os.Exit(run()) }, "probe": probe})
}

// TestScripts runs the scripts in testdata/script against the whole program.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               home,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits,
			"ready": ready,
			"http":  request,
			"quiet": quiet,
		},
	})
}

// home gives a script its own home directory and four free ports.
func home(e *testscript.Env) error {
	dir, err := os.MkdirTemp("", "q") // socket paths must be short
	if err != nil {
		return err
	}
	e.Defer(func() { _ = os.RemoveAll(dir) })
	e.Setenv("HOME", filepath.Join(dir, "home"))
	e.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run"))
	e.Setenv("QUORATE_METRICS_PORT", "0")
	e.Setenv("QUORATE_GRPC_PORT", "0")
	for _, name := range []string{"PORT", "PORT2", "PORT3", "PORT4", "APP_PORT"} {
		port, err := freePort()
		if err != nil {
			return err
		}
		e.Setenv(name, port)
	}
	return nil
}

// reserved holds the reservations of ports until the process ends.
var reserved struct {
	sync.Mutex
	releases []func()
}

// freePort returns a free port of 127.0.0.1 that no other test gets.
func freePort() (string, error) {
	port, release, err := testutil.ReservePort()
	reserved.Lock()
	defer reserved.Unlock()
	reserved.releases = append(reserved.releases, release)
	return strconv.Itoa(port), err
}

// exits runs a command that must end with the given exit code: exits 2 quorate run x.
func exits(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: exits code command args...")
	}
	code := "0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		code = strings.TrimPrefix(err.Error(), "exit status ")
	}
	if code != args[0] {
		ts.Fatalf("exit code %s, want %s", code, args[0])
	}
}

// ready waits until the API on a port is healthy: ready $PORT.
func ready(ts *testscript.TestScript, _ bool, args []string) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); <-tick.C {
		resp, err := client.Get("http://127.0.0.1:" + args[0] + "/v1.0/healthz")
		if err != nil {
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusNoContent {
			return
		}
	}
	ts.Fatalf("no node is ready on port %s", args[0])
}

// request sends a request and prints status and body: http POST $PORT/v1.0/shutdown. Instead of a port, the address
// may begin with unix: and the path of a socket, which ends with .socket.
func request(ts *testscript.TestScript, _ bool, args []string) {
	body := strings.NewReader(strings.Join(args[2:], " "))
	address, transport := "http://127.0.0.1:"+args[1], &http.Transport{DisableKeepAlives: true}
	if socket, ok := strings.CutPrefix(args[1], "unix:"); ok {
		file, path, _ := strings.Cut(socket, ".socket")
		address = "http://localhost" + path
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", file+".socket")
		}
	}
	req, err := http.NewRequest(args[0], address, body)
	ts.Check(err)
	client := http.Client{Timeout: time.Minute, Transport: transport}
	resp, err := client.Do(req)
	ts.Check(err)
	ts.Check(resp.Write(ts.Stdout()))
	_ = resp.Body.Close()
}

// quiet opens a connection to a port and sends nothing until the script has ended: quiet $PORT.
func quiet(ts *testscript.TestScript, _ bool, args []string) {
	c, err := net.Dial("tcp", "127.0.0.1:"+args[0])
	ts.Check(err)
	ts.Defer(func() { _ = c.Close() })
}

// TestReadme_CommandsWork runs the first commands of the README against a node.
func TestReadme_CommandsWork(t *testing.T) {
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	one, _, _ := strings.Cut(string(page), "\n## Three nodes") // cmd/lab/internal/cluster tests the rest
	lines := regexp.MustCompile(`(?m)^curl .*$`).FindAllString(one, -1)
	address := runNode(t)
	var got []string
	for _, line := range lines {
		out, err := exec.Command("sh", "-c", strings.Replace(line, "localhost:3500", address, 1)).Output()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		status, _, _ := strings.Cut(string(out), "\r\n")
		got = append(got, status)
		if strings.HasSuffix(line, "/order-7") &&
			(!strings.Contains(string(out), "Etag: ") || !strings.HasSuffix(string(out), `{"total": 12.50}`)) {
			t.Errorf("%s answered\n%s", line, out)
		}
	}
	want := []string{"HTTP/1.1 204 No Content", "HTTP/1.1 200 OK", "HTTP/1.1 409 Conflict"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// runNode starts the program as a child process and returns the address of its API.
func runNode(t *testing.T) string {
	t.Helper()
	m := newMachine(t)
	s := m.server("n1")
	m.start(s)
	m.until(func() error { return s.Healthy(t.Context()) })
	return s.Address()
}

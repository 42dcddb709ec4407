package shareddir_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	adminapi "github.com/quorate/quorate/api/admin"
	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/node/nodetest"
)

// host is one user's directories on one host.
type host struct{ state, run string }

// newHost makes the directories, with paths that are short enough for sockets.
func newHost(t testing.TB) host {
	t.Helper()
	run, err := os.MkdirTemp("", "q") //nolint:usetesting // the name of the test is too long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	return host{t.TempDir(), filepath.Join(run, "run")}
}

// config returns the configuration of a node on the default data directory of h, with free ports.
func (h host) config(app string) node.Config {
	c := node.Config{Version: "test"}
	c.App.ID, c.API.RequestTimeout = app, 30*time.Second
	c.Data.StateDir, c.Data.RuntimeDir, c.Data.MinFree, c.Data.AnyMinFree = h.state, h.run, 1, true
	c.API.HTTP, c.API.GRPC, c.Metrics.Port, c.Cluster.Gossip, c.Cluster.Peer = nodetest.AnyPort(), nodetest.AnyPort(),
		nodetest.AnyPort(), nodetest.AnyPort(), nodetest.AnyPort()
	return c.WithDefaults()
}

func openShared(t testing.TB, c node.Config, d node.Deps) *node.Shared {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	s, err := node.OpenShared(ctx, c, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeShared(t, s) })
	return s
}

func closeShared(t testing.TB, s *node.Shared) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("closing: %v", err)
	}
}

// at sends a request to the API of a shared node.
func at(t testing.TB, s *node.Shared, method, path, body string) (int, string) {
	t.Helper()
	code, answer, _ := nodetest.AskAt(t, s.Addresses().API[0], method, path, body, "")
	return code, answer
}

func sharedReady(t testing.TB, s *node.Shared) {
	t.Helper()
	nodetest.Poll(t, func() error {
		if code, body := at(t, s, "GET", "/v1.0/healthz", ""); code != 204 {
			return errors.New(body)
		}
		return nil
	})
}

func put(t testing.TB, s *node.Shared, value int) {
	t.Helper()
	code, body := at(t, s, "POST", "/v1.0/state/statestore",
		fmt.Sprintf(`[{"key":"k","value":%d,"options":{"consistency":"strong"}}]`, value))
	if code != 204 {
		t.Fatalf("saving %d: %d %s", value, code, body)
	}
}

// ask sends a request to the admin API of the node that runs on a data directory. The caller must close the body.
func ask(t testing.TB, dir, method, path, body string) *http.Response {
	t.Helper()
	socket, err := adminapi.FindSocket(dir)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn,
		error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	r, err := http.NewRequestWithContext(context.Background(), method, "http://admin"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// answerOf is ask for a request with a short answer.
func answerOf(t testing.TB, dir, method, path, body string) (code int, answer string) {
	t.Helper()
	resp := ask(t, dir, method, path, body)
	defer resp.Body.Close() //nolint:errcheck // it was read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// statusAt returns the status of the node that runs on a data directory.
func statusAt(t testing.TB, dir string) (out schema.NodeStatus) {
	t.Helper()
	_, body := answerOf(t, dir, "GET", adminapi.StatusPath, "")
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSharedDir_NextNodeTakesOver(t *testing.T) {
	h := newHost(t)
	first := openShared(t, h.config("a"), nodetest.Deps(t))
	dir := filepath.Join(h.state, "quorate", "default", "local")
	if got := first.Addresses().DataDir; got != dir {
		t.Fatalf("the first holds %s", got)
	}
	c := h.config("b")
	c.Cluster.Partitions = 0
	second := openShared(t, c, nodetest.Deps(t))
	third := openShared(t, h.config("c"), nodetest.Deps(t))
	for _, s := range []*node.Shared{second, third} {
		if a := s.Addresses(); !strings.HasPrefix(a.DataDir, h.run) || a.SharedDir != dir {
			t.Errorf("another one is on %s, and shares %q", a.DataDir, a.SharedDir)
		}
		sharedReady(t, s)
	}
	if got := first.Addresses().SharedDir; got != "" {
		t.Errorf("the first one waits for %s", got)
	}
	if got := statusAt(t, dir).Node; got.Front != nil || len(got.Apps) != 1 {
		t.Errorf("the first one serves %+v, and its process %+v", got.Apps, got.Front)
	}
	for i, s := range []*node.Shared{first, second, third} {
		put(t, s, i)
	}
	if info, err := os.Stat(dir + ".token"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the token of their traffic: %v, %v", info, err)
	}

	closeShared(t, first)
	begun := time.Now()
	put(t, second, 10)
	t.Logf("the second writes again %s after the first has ended", time.Since(begun))
	put(t, third, 11)
	for want, s := range map[string]*node.Shared{"10": second, "11": third} {
		if code, body := at(t, s, "GET", "/v1.0/state/statestore/k?consistency=strong", ""); code != 200 ||
			body != want {
			t.Errorf("reads %d %s, want %s", code, body, want)
		}
	}
	got, fronts := statusAt(t, dir).Node, map[string]string{"b": second.Addresses().DataDir,
		"c": third.Addresses().DataDir}
	if f := got.Front; f == nil || len(f.Apps) != 1 || f.DataDir != fronts[f.Apps[0]] || len(got.Apps) != 0 {
		t.Errorf("the server of the next one serves %+v, and its process %+v", got.Apps, f)
	}

	again := openShared(t, h.config("a"), nodetest.Deps(t))
	sharedReady(t, again)
	if code, body := at(t, again, "GET", "/v1.0/state/statestore/k?consistency=strong", ""); code != 200 ||
		body != "0" {
		t.Errorf("the first, started again as a sidecar, reads %d %s", code, body)
	}
	closeShared(t, second)
	closeShared(t, third)
	put(t, again, 20)
	closeShared(t, again)
	left, _ := filepath.Glob(filepath.Join(h.run, "*", "*"))
	if len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

// TestSharedDir_InFlightRequestsSurviveTakeover has a client that sends requests during the takeover. None may fail.
func TestSharedDir_InFlightRequestsSurviveTakeover(t *testing.T) {
	h := newHost(t)
	first := openShared(t, h.config("a"), nodetest.Deps(t))
	second := openShared(t, h.config("b"), nodetest.Deps(t))
	sharedReady(t, second)
	stop, done := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		defer func() { done <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			n++
			body := fmt.Sprintf(`[{"key":"k","value":%d,"options":{"consistency":"strong"}}]`, n)
			url := "http://" + second.Addresses().API[0] + "/v1.0/state/statestore"
			r, err := http.Post(url, "application/json", strings.NewReader(body)) //nolint:noctx,gosec // loopback
			if err != nil {
				t.Error(err)
				return
			}
			_ = r.Body.Close()
			if r.StatusCode != http.StatusNoContent {
				t.Errorf("save %d: %d", n, r.StatusCode)
				return
			}
		}
	}()
	<-time.After(200 * time.Millisecond)
	closeShared(t, first)
	<-time.After(time.Second)
	close(stop)
	n := <-done
	if code, body := at(t, second, "GET", "/v1.0/state/statestore/k?consistency=strong", ""); code != 200 ||
		body != fmt.Sprint(n) {
		t.Errorf("after %d saves reads %d %s", n, code, body)
	}
	t.Logf("%d saves without a failure", n)
}

// A node that starts removes directories of killed sidecars, but not those of running ones. The path of the runtime
// directory is so long that the admin sockets of sidecars are not in their directories.
func TestSharedDir_StartRemovesOnlyUnusedDirectories(t *testing.T) {
	h := newHost(t)
	if n := 70 - len(h.run) - 1; n > 0 {
		h.run += "/" + strings.Repeat("x", n)
	}
	openShared(t, h.config("a"), nodetest.Deps(t))
	second := openShared(t, h.config("b"), nodetest.Deps(t)).Addresses()
	if filepath.Dir(second.Admin) == second.DataDir {
		t.Fatalf("the admin socket is %s", second.Admin)
	}
	unused := filepath.Join(filepath.Dir(second.DataDir), "at-killed")
	testutil.Must(t, os.Mkdir(unused, 0o700))
	past := time.Now().Add(-2 * time.Minute)
	for _, dir := range []string{second.DataDir, unused} {
		testutil.Must(t, os.Chtimes(dir, past, past))
	}
	openShared(t, h.config("c"), nodetest.Deps(t))
	if _, err := os.Stat(second.DataDir); err != nil {
		t.Errorf("the directory of a running sidecar: %v", err)
	}
	if _, err := os.Stat(unused); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of a killed sidecar: %v", err)
	}
}

func TestSharedDir_SuccessorKeepsSettings(t *testing.T) {
	h := newHost(t)
	c := h.config("a")
	c.Cluster.Partitions, c.Data.LogStore = 3, node.LogStoreWAL
	first := openShared(t, c, nodetest.Deps(t))
	second := openShared(t, h.config("b"), nodetest.Deps(t))
	sharedReady(t, second)
	put(t, second, 1)
	closeShared(t, first)
	put(t, second, 2)

	c = h.config("c")
	c.Cluster.Partitions = 5
	third := openShared(t, c, nodetest.Deps(t))
	nodetest.Poll(t, func() error {
		if code, body := at(t, third, "GET", "/v1.0/healthz", ""); code == 204 ||
			!strings.Contains(body, "partitions") {
			return fmt.Errorf("with another number of partitions: %d %s", code, body)
		}
		return nil
	})
}

// The admin API of the node on the shared directory serves operators, also after a takeover by another process.
func TestSharedDir_SuccessorServesOperators(t *testing.T) {
	h := newHost(t)
	resources := nodetest.Resources(t, map[string]string{
		"items.yaml": nodetest.Store("items", "configuration.raft", ""),
		"store.yaml": nodetest.Store("statestore", "state.raft", "")})
	var all []*node.Shared
	for _, app := range []string{"a", "b"} {
		c := h.config(app)
		c.Components.Paths = resources
		c.Console.On, c.Console.Port = true, node.Port{Number: nodetest.SparePort(t), Given: true}
		all = append(all, openShared(t, c, nodetest.Deps(t)))
	}
	dir := all[0].Addresses().DataDir
	closeShared(t, all[0])
	put(t, all[1], 1)
	nodetest.Poll(t, func() error {
		s := statusAt(t, dir).Stores
		if slices.ContainsFunc(s, func(one schema.StoreStatus) bool { return one.Name == "items" && one.Ready }) {
			return nil
		}
		return fmt.Errorf("the status names the stores %+v", s)
	})
	items := adminapi.ConfigurationPath("items")
	if code, body := answerOf(t, dir, "POST", items, `[{"key":"k","value":"v"}]`); code != 200 {
		t.Errorf("writing items: %d %s", code, body)
	}
	if code, body := answerOf(t, dir, "GET", items, ""); !strings.Contains(body, `"v"`) {
		t.Errorf("reading items: %d %s", code, body)
	}
	watch := ask(t, dir, "GET", adminapi.ConfigurationWatchPath("items"), "")
	if _, err := watch.Body.Read(make([]byte, 1)); err != nil {
		t.Errorf("watching items: %v", err)
	}
	calls := ask(t, dir, "GET", adminapi.CallsPath(&schema.CallFilter{App: "b"}), "")
	if code, body := nextCall(calls, func() { put(t, all[1], 2) }); code != 204 {
		t.Errorf("watching calls: %d %s", code, body)
	}
	_ = calls.Body.Close()
	closed := make(chan error, 1)
	go func() {
		// If a watch delayed Close, it would do so for most of this hour.
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		closed <- all[1].Close(ctx)
	}()
	select {
	case err := <-closed:
		testutil.Must(t, err)
	case <-time.After(testutil.Patience):
		t.Error("the watch delays the close of the node")
	}
	_ = watch.Body.Close()
}

// nextCall reads the first line of a watch of calls. After this line, the watch shows all calls. nextCall then runs
// request, and returns the status and the line of the next call. It waits for at most testutil.Patience.
func nextCall(watch *http.Response, request func()) (code int, line string) {
	stop := time.AfterFunc(testutil.Patience, func() { _ = watch.Body.Close() })
	defer stop.Stop()
	lines := bufio.NewScanner(watch.Body)
	lines.Scan()
	request()
	lines.Scan()
	var c schema.CallLine
	if err := json.Unmarshal(lines.Bytes(), &c); err != nil || c.Call == nil {
		return 0, lines.Text()
	}
	return c.Call.Code, lines.Text()
}

func TestSharedDir_FailedTakeoverEndsNode(t *testing.T) {
	h := newHost(t)
	first := openShared(t, h.config("a"), nodetest.Deps(t))
	second := openShared(t, h.config("b"), nodetest.Deps(t))
	sharedReady(t, second)
	dir := first.Addresses().DataDir
	ended := make(chan error, 1)
	go func() { ended <- second.Wait(t.Context()) }()
	// The directory is damaged while no process has it open.
	if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	closeShared(t, first)
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(fault.Text(err), "taken over") || !strings.Contains(fault.Text(err), dir) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(testutil.Patience):
		t.Fatal("it goes on without the directory")
	}
}

func TestSharedDir_OnlyChildMovesToAnotherPort(t *testing.T) {
	h := newHost(t)
	first := openShared(t, h.config("a"), nodetest.Deps(t))
	c := h.config("b")
	var port int
	if _, err := fmt.Sscanf(first.Addresses().API[0], "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	c.API.HTTP = node.Port{Number: port} // not Given, so the node treats it like the default port
	d := nodetest.Deps(t)
	d.Logger = slog.New(slog.DiscardHandler)
	if _, err := node.OpenShared(t.Context(), c, d); !fault.Is(err, fault.Unavailable) ||
		!strings.Contains(fault.Text(err), "--http-port") {
		t.Errorf("without a child: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(h.run, "*", "at-*")); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

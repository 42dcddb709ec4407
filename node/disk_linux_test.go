package node_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/node"
	"github.com/quorate/quorate/raftfsm/group"
)

// Environment variables of a child process, which runs a node on the directory in childDir. Tests that kill a node use
// such a process.
const (
	childDir = "QUORATE_TEST_NODE_DIR"
	childLog = "QUORATE_TEST_NODE_LOG" // the log store of the node; empty = boltdb
)

func TestMain(m *testing.M) {
	if address := os.Getenv(childActors); address != "" {
		os.Exit(runActors(address))
	}
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(childNode(dir))
	}
	code := m.Run()
	databases.Close()
	os.Exit(code)
}

// childNode runs a node until it is killed or fails. It prints its address.
func childNode(dir string) int {
	c := node.Config{Version: "test"}
	c.Data.Dir, c.Data.MinFree, c.Data.AnyMinFree = dir, 1, true
	c.API.HTTP, c.API.GRPCOff, c.Metrics.Off = free(), true, true
	// Some disks of these tests are small, and wal allocates 64 MiB.
	c.Data.LogStore = cmp.Or(node.LogStore(os.Getenv(childLog)), node.LogStoreBolt)
	// With these bounds, restarts often coincide with snapshots and with truncation of the log.
	c.Cluster.Bounds = group.Bounds{SnapshotLogBytes: 64 << 10, SnapshotEntries: 100, TrailingEntries: 64}
	c.Cluster.Timing = group.Timing{SnapshotPoll: 10 * time.Millisecond}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	n, err := node.Open(context.Background(), c,
		node.Deps{Logger: log, Env: os.LookupEnv, Exit: os.Exit,
			Fatal: func(err error) {
				fmt.Fprintln(os.Stderr, "FATAL "+fault.Text(err))
				os.Exit(3)
			}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "REFUSED "+fault.Text(err))
		return 4
	}
	fmt.Println(n.Addresses().API[0])
	_ = n.Wait(context.Background())
	return 0
}

// child is a running childNode.
type child struct {
	cmd    *exec.Cmd
	addr   string
	stderr bytes.Buffer
	done   chan error
}

func startChild(t *testing.T, dir string) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0]), done: make(chan error, 1)} //nolint:gosec,noctx // this test binary
	c.cmd.Env = append(os.Environ(), childDir+"="+dir)
	c.cmd.Stderr = &c.stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	first := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n')
		first <- strings.TrimSpace(line)
		c.done <- c.cmd.Wait()
	}()
	select {
	case c.addr = <-first:
	case <-time.After(patience):
		t.Fatal("the child neither starts nor ends")
	}
	return c
}

// end waits until the child has ended and returns its output.
func (c *child) end(t *testing.T) string {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		t.Fatalf("the child goes on: %s", c.stderr.String())
	}
	return c.stderr.String()
}

// save saves the key number i, and returns the status. The error has the body if the status is not 204.
func (c *child) save(i int) (int, error) {
	body := fmt.Sprintf(`[{"key":"k%d","value":"%s","options":{"consistency":"strong"}}]`, i,
		strings.Repeat("v", 8<<10))
	client := http.Client{Timeout: patience}
	url := "http://" + c.addr + "/v1.0/state/statestore"
	resp, err := client.Post(url, "application/json", strings.NewReader(body)) //nolint:noctx // loopback
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, errors.New(string(text))
	}
	return resp.StatusCode, nil
}

// smallDisk mounts a separate file system, which needs root, and returns its path.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("cannot mount a small file system here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmounting: %v", err)
		}
	})
	return dir
}

func ballast(t *testing.T, dir string, size int64) string {
	t.Helper()
	path := filepath.Join(dir, "ballast")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	chunk := make([]byte, 64<<10)
	for written := int64(0); written < size; written += int64(len(chunk)) {
		if _, err := f.Write(chunk); err != nil {
			break // full, as intended
		}
	}
	return path
}

func TestDisk_NearlyFullIsReadOnlyUntilFreed(t *testing.T) {
	dir := smallDisk(t, "256m")
	c := config(t)
	c.Data.Dir, c.Data.MinFree = filepath.Join(dir, "data"), 64<<20
	c.Data.LogStore = node.LogStoreBolt // wal allocates 64 MiB
	n := open(t, c)
	save := func(key string) (int, string) {
		code, body, _ := ask(t, n, "POST", "/v1.0/state/statestore", `[{"key":"`+key+`","value":1}]`)
		return code, body
	}
	if code, body := save("before"); code != 204 {
		t.Fatalf("%d %s", code, body)
	}
	path := ballast(t, dir, 200<<20)
	waitFor(t, func() bool { code, _ := save("during"); return code == 500 })
	if _, body := save("during"); !strings.Contains(body, "read-only") ||
		!strings.Contains(body, `"reason":"read_only"`) {
		t.Errorf("the refusal does not say why: %s", body)
	}
	if code, body, _ := ask(t, n, "GET", "/v1.0/state/statestore/before?consistency=strong", ""); code != 200 {
		t.Errorf("reads must go on: %d %s", code, body)
	}
	if code, body, _ := ask(t, n, "DELETE", "/v1.0/state/statestore/before", ""); code != 204 {
		t.Errorf("deletes must go on: %d %s", code, body)
	}
	if code, body, _ := ask(t, n, "GET", "/readyz", ""); code != 503 || !strings.Contains(body, "read-only") {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, _, _ := ask(t, n, "GET", "/v1.0/healthz", ""); code != 204 {
		t.Errorf("healthz must not turn back: %d", code)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { code, _ := save("after"); return code == 204 })
}

// A disk that is full of values has room again soon after the values were deleted. No values are written in the
// meantime, because the node is read-only.
func TestDisk_DeletedValuesMakeRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a disk")
	}
	dir := smallDisk(t, "192m")
	c := config(t)
	c.Data.Dir, c.Data.MinFree = filepath.Join(dir, "data"), 64<<20
	c.Data.LogStore = node.LogStoreBolt // wal allocates 64 MiB
	c.Cluster.Timing.Reclaim = 100 * time.Millisecond
	n := open(t, c)
	source, value := rand.NewChaCha8([32]byte{1}), make([]byte, 512<<10) // values that do not compress
	saved := 0
	for ; saved < 1000; saved++ {
		_, _ = source.Read(value)
		code, body, _ := ask(t, n, "POST", "/v1.0/state/statestore", fmt.Sprintf(
			`[{"key":"k%d","value":"%x","options":{"consistency":"strong"}}]`, saved, value))
		if code == 500 && strings.Contains(body, `"reason":"read_only"`) {
			break
		}
		if code != 204 {
			t.Fatalf("save %d: %d %s", saved, code, body)
		}
	}
	for i := range saved {
		if code, body, _ := ask(t, n, "DELETE", fmt.Sprintf("/v1.0/state/statestore/k%d", i), ""); code != 204 {
			t.Fatalf("delete %d: %d %s", i, code, body)
		}
	}
	waitFor(t, func() bool {
		code, _, _ := ask(t, n, "POST", "/v1.0/state/statestore", `[{"key":"after","value":1}]`)
		return code == 204
	})
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("not in time")
		}
	}
}

func TestDisk_FullStopsNodeWithoutLoss(t *testing.T) {
	dir := smallDisk(t, "64m")
	data := filepath.Join(dir, "data")
	c := startChild(t, data)
	for i := range 50 {
		if code, err := c.save(i); code != 204 {
			t.Fatalf("save %d: %d %v", i, code, err)
		}
	}
	path, acknowledged := ballast(t, dir, 64<<20), 50
	for {
		_, err := c.save(acknowledged)
		if err == nil {
			acknowledged++
			continue
		}
		if !strings.Contains(err.Error(), `"read_only"`) {
			break
		}
		// The node has measured the disk before a write failed, so it does not end. Free the disk and fill it again.
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { _, err := c.save(acknowledged); return err == nil })
		path = ballast(t, dir, 64<<20)
	}
	if said := c.end(t); !strings.Contains(said, "FATAL") || !strings.Contains(said, "free disk space") {
		t.Errorf("the output has no cause or no fix: %s", said)
	}
	if said := startChild(t, data).end(t); !strings.Contains(said, "REFUSED") || !strings.Contains(said, "is full") {
		t.Errorf("a start on a full disk is not refused with its cause: %s", said)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	healed := startChild(t, data)
	for i := range acknowledged {
		url := fmt.Sprintf("http://%s/v1.0/state/statestore/k%d?consistency=strong", healed.addr, i)
		resp, err := http.Get(url) //nolint:noctx,gosec // loopback
		if err != nil {
			t.Fatalf("%v\n%s", err, healed.stderr.String())
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("acknowledged key k%d of %d is lost: %d", i, acknowledged, resp.StatusCode)
		}
	}
}

func TestDisk_ReadOnlyIsRefused(t *testing.T) {
	dir := smallDisk(t, "64m")
	data := filepath.Join(dir, "data")
	c := startChild(t, data)
	if code, err := c.save(1); code != 204 {
		t.Fatalf("save: %d %v", code, err)
	}
	_ = c.cmd.Process.Kill()
	c.end(t)
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	refused := startChild(t, data)
	if said := refused.end(t); !strings.Contains(said, "REFUSED") || !strings.Contains(said, "mounted read-only") {
		t.Errorf("refused without its cause: %s", said)
	}
}

package hostshare_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/hostshare"
	"github.com/quorate/quorate/internal/testutil"
)

// child is an environment variable. It is set in a child process that announces itself, holds a directory, and waits
// to be killed.
const child = "QUORATE_TEST_NEIGHBOUR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(child); dir != "" {
		_, err := hostshare.Announce(filepath.Join(dir, "run"), hostshare.Note{Node: "child"})
		_, ok, held := hostshare.TryHold(filepath.Join(dir, "data"))
		fmt.Println(err, ok, held)
		select {} // until killed
	}
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

func names(t testing.TB, dir string) string {
	t.Helper()
	notes, err := hostshare.List(dir)
	must(t, err)
	var out []string
	for _, n := range notes {
		out = append(out, n.Node)
	}
	return strings.Join(out, " ")
}

func TestNotes_ListRunningNodes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	if got := names(t, dir); got != "" {
		t.Errorf("no node runs, but the list is %s", got)
	}
	want := hostshare.Note{Node: "b", Role: "server", Gossip: "127.0.0.1:7946", Admin: "/x/admin.sock",
		Apps: []string{"orders"}, PID: 7}
	b, err := hostshare.Announce(dir, want)
	must(t, err)
	a, err := hostshare.Announce(dir, hostshare.Note{Node: "a"})
	must(t, err)
	if got := names(t, dir); got != "a b" {
		t.Errorf("listed %q", got)
	}
	notes, err := hostshare.List(dir)
	must(t, err)
	if diff := cmp.Diff(want, notes[1]); diff != "" {
		t.Error(diff)
	}
	must(t, a.Close())
	if got := names(t, dir); got != "b" {
		t.Errorf("after a closed: %q", got)
	}
	must(t, b.Close())
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

func TestKilledNode_ReleasesNoteAndDirectory(t *testing.T) {
	dir := t.TempDir()
	exe, err := os.Executable()
	must(t, err)
	c := exec.Command(exe)
	c.Env = append(os.Environ(), child+"="+dir)
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "<nil> true <nil>\n" {
		t.Fatalf("the child says %q, %v", line, err)
	}
	run, data := filepath.Join(dir, "run"), filepath.Join(dir, "data")
	if got := names(t, run); got != "child" {
		t.Errorf("listed %q", got)
	}
	if _, ok, err := hostshare.TryHold(data); ok || err != nil {
		t.Errorf("two hold one directory: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		h, err := hostshare.Await(t.Context(), data, 10*time.Millisecond, slog.New(slog.DiscardHandler))
		if err == nil {
			err = h.Release()
		}
		got <- err
	}()
	must(t, c.Process.Kill())
	_ = c.Wait()
	select {
	case err := <-got:
		must(t, err)
	case <-time.After(testutil.Patience):
		t.Fatal("the directory of a killed process is not free")
	}
	if got := names(t, run); got != "" {
		t.Errorf("a killed process is listed: %q", got)
	}
	if left, _ := os.ReadDir(run); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
}

func TestHold_WaitEndsWithContext(t *testing.T) {
	h, ok, err := hostshare.TryHold(t.TempDir())
	if !ok || err != nil {
		t.Fatal(err)
	}
	must(t, h.Release())
	dir := t.TempDir()
	h, _, err = hostshare.TryHold(dir)
	must(t, err)
	defer func() { must(t, h.Release()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = hostshare.Await(ctx, dir, 5*time.Millisecond, slog.New(slog.DiscardHandler))
	if err != ctx.Err() || err == nil {
		t.Errorf("%v", err)
	}
}

func TestNotes_SkipDamagedAndForeignFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	p, err := hostshare.Announce(dir, hostshare.Note{Node: "a"})
	must(t, err)
	defer func() { must(t, p.Close()) }()
	for name, text := range map[string]string{"x.node": "{", "y.node": `{"format":9,"node":"future"}`,
		"readme": "hello"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "z.node")))
	if got := names(t, dir); got != "a" {
		t.Errorf("listed %q", got)
	}
}

func TestSecret_IsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	for i := range 16 {
		wg.Go(func() {
			path, err := hostshare.Secret(dir, "token", func() string { return fmt.Sprint("secret ", i) })
			text, readErr := os.ReadFile(path)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || readErr != nil {
				t.Error(err, readErr)
			}
			seen[string(text)]++
		})
	}
	wg.Wait()
	left, _ := os.ReadDir(dir)
	if len(seen) != 1 || len(left) != 1 {
		t.Errorf("secrets %v, files %v", seen, left)
	}
	info, err := os.Stat(filepath.Join(dir, "token"))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
}

func TestDirectory_RefusesAccessOfOthers(t *testing.T) {
	open := filepath.Join(t.TempDir(), "run")
	must(t, os.Mkdir(open, 0o700))
	must(t, os.Chmod(open, 0o777))
	if _, err := hostshare.Announce(open, hostshare.Note{}); !fault.Is(err, fault.Denied) ||
		!strings.Contains(fault.Text(err), "chmod") {
		t.Errorf("a note in an open directory: %v", err)
	}
	if _, err := hostshare.List(open); !fault.Is(err, fault.Denied) {
		t.Errorf("notes of an open directory: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(t.TempDir(), link))
	if _, err := hostshare.Announce(link, hostshare.Note{}); !fault.Is(err, fault.Denied) {
		t.Errorf("a note behind a link: %v", err)
	}
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "token"), []byte("x"), 0o600))
	must(t, os.Chmod(filepath.Join(dir, "token"), 0o644))
	if _, err := hostshare.Secret(dir, "token", nil); !fault.Is(err, fault.Denied) {
		t.Errorf("a secret that others can read: %v", err)
	}
}

package cli_test

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/backup"
)

// sample writes a backup of two groups; with cut it breaks off.
func sample(w io.Writer, cut bool) error {
	h := backup.Header{Created: time.Unix(1_764_000_000, 0), Node: "n1", Program: "v1.2.3", Cluster: "default", ClusterID: "c1", Partitions: 2,
		Formats: backup.Formats{Command: 1}, Groups: []backup.Group{{ID: 0, Index: 12, Term: 3, Applied: 11, Revision: 40}, {ID: 1, Index: 5, Term: 2, Applied: 5, Revision: 2}}}
	out, err := backup.NewWriter(w, h)
	for id := range uint32(2) {
		if err == nil {
			err = out.Begin(id)
		}
		if err == nil {
			err = out.Records([]backup.Record{{Store: "/statestore", Key: "default||a", Value: []byte(`"1"`)}, {Store: "shop/orders", Key: "default||b", Value: []byte("2"), ExpireAt: 9}})
		}
		if cut {
			return &fault.Error{Code: fault.Unavailable, Op: "test", Msg: "the replica was replaced", Hint: "save again"}
		}
		if err == nil {
			_, err = out.End()
		}
	}
	if err == nil {
		_, err = out.Close()
	}
	return err
}

// SaveSnapshot gives a sample; how it ends is up to files beside the data.
func (n *memoryNode) SaveSnapshot(ctx context.Context, w io.Writer) error {
	told := func(name string) bool {
		_, err := os.Stat(filepath.Join(n.addresses.DataDir, name))
		return err == nil
	}
	if told("hangs") {
		_, _ = io.WriteString(w, "QRBACKUP")
		if f, ok := w.(interface{ Flush() }); ok {
			f.Flush()
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return sample(w, told("breaks off"))
}

func (n *memoryNode) RestoreSnapshot(_ context.Context, r io.Reader) (api.RestoreResult, error) {
	sum, err := backup.Inspect(r, func(id string) (string, string) { return "", id })
	return api.RestoreResult{Created: sum.Created, ClusterID: sum.ClusterID, Groups: len(sum.Groups), Keys: sum.Totals.Keys}, err
}

func (c *console) dataDir() string {
	return filepath.Join(c.home, ".local", "state", "quorate", "default", "local")
}

// left are the files of a directory.
func left(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestSnapshotSaveWritesAWholeFileOrNone(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	dir := t.TempDir()
	file := filepath.Join(dir, "b.qs")
	if r := c.run("snapshot", "save", file); r.code != 0 || !strings.HasPrefix(r.stdout, "Saved 4 keys of cluster c1 to "+file) || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	c.want(1, "", "exists (choose another name, or replace it with --force)", "snapshot", "save", file)
	var saved struct {
		File   string
		Totals backup.Totals
		Stores []backup.StoreSummary
	}
	if r := c.run("snapshot", "save", file, "--force", "--json"); r.code != 0 || json.Unmarshal([]byte(r.stdout), &saved) != nil || saved.File != file || saved.Totals.Keys != 4 || len(saved.Stores) != 2 {
		t.Errorf("%+v", r)
	}
	if got := left(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
	must(t, os.WriteFile(filepath.Join(c.dataDir(), "breaks off"), nil, 0o600))
	c.want(1, "", "the replica was replaced (save again)", "snapshot", "save", filepath.Join(dir, "c.qs"))
	c.want(1, "", "the backup cannot be written", "snapshot", "save", filepath.Join(dir, "no", "such", "dir"))
	if got := left(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

func TestSnapshotSaveThatIsInterruptedLeavesNothing(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	must(t, os.WriteFile(filepath.Join(c.dataDir(), "hangs"), nil, 0o600))
	dir := t.TempDir()
	var stdout, stderr safeBuffer
	m := c.main(&stdout, &stderr, []string{"snapshot", "save", filepath.Join(dir, "b.qs")})
	signals := make(chan os.Signal, 1)
	m.Signals = func() (<-chan os.Signal, func()) { return signals, func() {} }
	code := make(chan int, 1)
	go func() { code <- m.Run(t.Context()) }()
	eventually(t, func() bool { return len(left(t, dir)) == 1 })
	signals <- syscall.SIGINT
	if got := <-code; got != 1 || !strings.Contains(stderr.String(), "interrupted") {
		t.Errorf("code %d: %s", got, stderr.String())
	}
	if got := left(t, dir); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

func TestSnapshotInspectNeedsNoNode(t *testing.T) {
	c := newConsole(t)
	file := filepath.Join(t.TempDir(), "b.qs")
	f, err := os.Create(file)
	must(t, err)
	must(t, sample(f, false))
	must(t, f.Close())
	golden(t, "testdata/backup.txt", c.run("snapshot", "inspect", file).stdout)
	whole, err := os.ReadFile(file)
	must(t, err)
	for name, c2 := range map[string]struct {
		bytes []byte
		want  string
	}{
		"torn":    {whole[:len(whole)-5], "is cut off"},
		"flipped": {append(append([]byte{}, whole[:100]...), append([]byte{whole[100] ^ 1}, whole[101:]...)...), "checksum does not match"},
		"foreign": {[]byte("hello"), "not a backup of this program"},
		"newer":   {append([]byte("QRBACKUP\x00\x63"), whole[10:]...), "has format 99"},
	} {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, c2.bytes, 0o600))
		c.want(1, "", c2.want, "snapshot", "inspect", path)
	}
	c.want(1, "", "no such file", "snapshot", "inspect", file+"x")
	c.want(2, "", "accepts 1 arg", "snapshot", "inspect")
}

func TestSnapshotRestoreAsksFirst(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	file := filepath.Join(t.TempDir(), "b.qs")
	c.run("snapshot", "save", file)
	c.want(2, "", "say --yes", "snapshot", "restore", file)
	c.stdin = "no\n"
	c.want(1, "", "not confirmed; nothing was changed", "snapshot", "restore", file)
	c.stdin = "default\n"
	c.want(0, "Restored 4 keys in 2 groups, as of 2025-11-24T16:00:00Z.\n", "All data of cluster c1 (default)", "snapshot", "restore", file)
	c.stdin = ""
	c.want(0, "Restored 4 keys in 2 groups, as of 2025-11-24T16:00:00Z.\n", "", "snapshot", "restore", file, "--yes")
	must(t, os.WriteFile(file, []byte("QRBACK"), 0o600))
	c.want(1, "", "not a backup", "snapshot", "restore", file, "--yes")
}

func TestRescueOfADirectoryWithoutDataIsRefused(t *testing.T) {
	c := newConsole(t)
	c.want(1, "", "no data in", "rescue", "--data-dir", t.TempDir())
	c.want(2, "", "unknown command", "rescue", "x")
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

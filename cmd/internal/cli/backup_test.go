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

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/backup"
)

// sample writes a backup of two groups. If cut is true, the backup ends early.
func sample(w io.Writer, cut bool) error {
	h := backup.Header{Created: time.Unix(1_764_000_000, 0), Node: "n1", Program: "v1.2.3", Cluster: "default",
		ClusterID: "c1", Partitions: 2,
		Formats: backup.Formats{Command: 1}, Groups: []backup.Group{
			{ID: 0, Index: 12, Term: 3, Applied: 11, Revision: 40},
			{ID: 1, Index: 5, Term: 2, Applied: 5, Revision: 2}}}
	out, err := backup.NewWriter(w, h)
	for id := range uint32(2) {
		if err == nil {
			err = out.Begin(id)
		}
		if err == nil {
			err = out.Records([]backup.Record{{Store: "/statestore", Key: "default||a", Value: []byte(`"1"`)},
				{Store: "shop/orders", Key: "default||b", Value: []byte("2"), ExpireAt: 9}})
		}
		if cut {
			return &fault.Error{Code: fault.Unavailable, Op: "test", Msg: "the replica was replaced",
				Hint: "save again"}
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

// SaveBackup implements admin.Backups. It writes a sample. Files in the data directory choose how the sample ends.
func (n *memoryNode) SaveBackup(ctx context.Context, w io.Writer) error {
	if n.finds("hangs") {
		_, _ = io.WriteString(w, "QRBACKUP")
		if f, ok := w.(interface{ Flush() }); ok {
			f.Flush()
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return sample(w, n.finds("breaks off"))
}

// finds reports whether the data directory has a file with that name.
func (n *memoryNode) finds(name string) bool {
	_, err := os.Stat(filepath.Join(n.addresses.DataDir, name))
	return err == nil
}

func (n *memoryNode) RestoreBackup(ctx context.Context, r io.Reader) (schema.RestoreResult, error) {
	sum, err := backup.Inspect(r, func(id string) (string, string) { return "", id })
	for tick := time.NewTicker(time.Millisecond); n.finds("restores slowly") && ctx.Err() == nil; <-tick.C {
	}
	return schema.RestoreResult{Created: sum.Created, ClusterID: sum.ClusterID, Groups: len(sum.Groups),
		Keys: sum.Totals.Keys}, err
}

func (c *console) dataDir() string {
	return filepath.Join(c.home, ".local", "state", "quorate", "default", "local")
}

// left returns the names of the files in a directory.
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

func TestBackupSave_WritesACompleteFileOrNone(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	dir := t.TempDir()
	file := filepath.Join(dir, "b.qs")
	if r := c.run("backup", "save", file); r.code != 0 ||
		!strings.HasPrefix(r.stdout, "Saved 4 keys of cluster c1 to "+file) || r.stderr != "" {
		t.Fatalf("%+v", r)
	}
	c.want(1, "", "exists (choose another name, or replace it with --force)", "backup", "save", file)
	var saved struct {
		File   string
		Totals backup.Totals
		Stores []backup.StoreSummary
	}
	if r := c.run("backup", "save", file, "--force", "--json"); r.code != 0 ||
		json.Unmarshal([]byte(r.stdout), &saved) != nil || saved.File != file || saved.Totals.Keys != 4 ||
		len(saved.Stores) != 2 {
		t.Errorf("%+v", r)
	}
	if got := left(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
	must(t, os.WriteFile(filepath.Join(c.dataDir(), "breaks off"), nil, 0o600))
	c.want(1, "", "the replica was replaced (save again)", "backup", "save", filepath.Join(dir, "c.qs"))
	c.want(1, "", "the backup cannot be written", "backup", "save", filepath.Join(dir, "no", "such", "dir"))
	if got := left(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

func TestBackupSave_LeavesNothingWhenInterrupted(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	must(t, os.WriteFile(filepath.Join(c.dataDir(), "hangs"), nil, 0o600))
	dir := t.TempDir()
	var stdout, stderr testutil.Output
	m := c.main(&stdout, &stderr, []string{"backup", "save", filepath.Join(dir, "b.qs")})
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

func TestBackupInspect_NeedsNoNode(t *testing.T) {
	c := newConsole(t)
	file := filepath.Join(t.TempDir(), "b.qs")
	f, err := os.Create(file)
	must(t, err)
	must(t, sample(f, false))
	must(t, f.Close())
	golden(t, "testdata/backup.txt", c.run("backup", "inspect", file).stdout)
	whole, err := os.ReadFile(file)
	must(t, err)
	for name, c2 := range map[string]struct {
		bytes []byte
		want  string
	}{
		"torn": {whole[:len(whole)-5], "is truncated"},
		"flipped": {append(append([]byte{}, whole[:100]...), append([]byte{whole[100] ^ 1}, whole[101:]...)...),
			"checksum does not match"},
		"foreign": {[]byte("hello"), "not a backup of this program"},
		"newer":   {append([]byte("QRBACKUP\x00\x63"), whole[10:]...), "has format 99"},
	} {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, c2.bytes, 0o600))
		c.want(1, "", c2.want, "backup", "inspect", path)
	}
	c.want(1, "", "no such file", "backup", "inspect", file+"x")
	c.want(2, "", "accepts 1 arg", "backup", "inspect")
}

func TestBackupRestore_NeedsConfirmation(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	file := filepath.Join(t.TempDir(), "b.qs")
	c.run("backup", "save", file)
	c.want(2, "", "add --yes", "backup", "restore", file)
	c.stdin = "no\n"
	c.want(1, "", "not confirmed; nothing was changed", "backup", "restore", file)
	c.stdin = "default\n"
	c.want(0, "Restored 4 keys in 2 groups, as of 2025-11-24T16:00:00Z.\n", "All data of cluster c1 (default)",
		"backup", "restore", file)
	c.stdin = ""
	c.want(0, "Restored 4 keys in 2 groups, as of 2025-11-24T16:00:00Z.\n", "", "backup", "restore", file, "--yes")
	must(t, os.WriteFile(file, []byte("QRBACK"), 0o600))
	c.want(1, "", "not a backup", "backup", "restore", file, "--yes")
}

func TestBackupRestore_LogsProgressWithoutATerminal(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	file := filepath.Join(t.TempDir(), "b.qs")
	c.run("backup", "save", file)
	slow := filepath.Join(c.dataDir(), "restores slowly")
	must(t, os.WriteFile(slow, nil, 0o600))
	var stdout, stderr testutil.Output
	done := make(chan int, 1)
	go func() {
		args := []string{"backup", "restore", file, "--yes", "--progress", "5ms"}
		done <- c.main(&stdout, &stderr, args).Run(t.Context())
	}()
	eventually(t, func() bool { return strings.Count(stderr.String(), `msg="sent to the node" bytes="`) > 1 })
	must(t, os.Remove(slow))
	if code := <-done; code != 0 || !strings.Contains(stdout.String(), "Restored 4 keys") {
		t.Errorf("%d\n%s\n%s", code, stdout.String(), stderr.String())
	}
}

func TestBackup_WithAKey(t *testing.T) {
	c := newConsole(t)
	s := c.start()
	defer c.stop(s)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	key, other, sealed, plain := in("key"), in("other"), in("sealed.qs"), in("plain.qs")
	c.want(0, "A new backup key is in "+key+".\n", "", "backup", "keygen", "--file", key)
	c.want(1, "", "exists (choose another file", "backup", "keygen", "--file", key)
	must(t, os.WriteFile(other, []byte(c.run("backup", "keygen").stdout), 0o600))
	if r := c.run("backup", "save", sealed, "--backup-key-file", key); r.code != 0 ||
		!strings.Contains(r.stdout, ", encrypted)") {
		t.Fatalf("%+v", r)
	}
	c.run("backup", "save", plain)
	if file, err := os.ReadFile(sealed); err != nil || strings.Contains(string(file), "statestore") ||
		!strings.HasPrefix(string(file), "age-encryption.org/v1\n") {
		t.Errorf("the file begins with %.40q, %v", file, err)
	}
	const restored = "Restored 4 keys in 2 groups, as of 2025-11-24T16:00:00Z.\n"
	c.want(0, restored, "", "backup", "restore", sealed, "--yes", "--backup-key-file", key)
	c.want(0, restored, "", "backup", "restore", plain, "--yes", "--backup-key-file", key, "--allow-unencrypted")
	if r := c.run("backup", "inspect", sealed, "--backup-key-file", key); r.code != 0 ||
		!strings.Contains(r.stdout, "encrypted, by a holder of the key") {
		t.Errorf("%+v", r)
	}
	for _, command := range [][]string{{"backup", "restore", "--yes"}, {"backup", "inspect"}} {
		c.want(1, "", "--allow-unencrypted", append(command, plain, "--backup-key-file", key)...)
		c.want(1, "", "name the file with its key: --backup-key-file", append(command, sealed)...)
		c.want(1, "", "encrypted with another key", append(command, sealed, "--backup-key-file", other)...)
		c.want(1, "", "quorate backup keygen", append(command, sealed, "--backup-key-file", in("none"))...)
	}
	must(t, os.WriteFile(in("short"), []byte("hunter2\n"), 0o600))
	c.want(1, "", "at least 32 are needed", "backup", "save", in("x.qs"), "--backup-key-file", in("short"))
	must(t, os.Chmod(key, 0o644))
	c.want(1, "", "chmod 600", "backup", "save", in("x.qs"), "--backup-key-file", key)
	must(t, os.Chmod(key, 0o600))
	c.env = append(c.env, "QUORATE_BACKUP_KEY_FILE="+key)
	c.want(1, "", "--allow-unencrypted", "backup", "restore", plain, "--yes")
	c.want(0, restored, "", "backup", "restore", sealed, "--yes")
}

func TestRescue_RefusesADirectoryWithoutData(t *testing.T) {
	c := newConsole(t)
	c.want(1, "", "no data in", "rescue", "--data-dir", t.TempDir())
	c.want(2, "", "unknown command", "rescue", "x")
}

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

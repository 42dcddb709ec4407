package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/quorate/quorate/internal/testutil"
)

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

func TestRead_ReturnsWhatWasWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if _, err := Read(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before the first write: %v", err)
	}
	must(t, os.WriteFile(path+Suffix, []byte("left behind by a crash, and longer than what comes"), 0o600))
	for _, body := range []string{`{"n":1}`, "", `{"n":2}`} {
		var steps []string
		must(t, Write(path, []byte(body), func(s string) { steps = append(steps, s) }))
		got, err := Read(path)
		if err != nil || string(got) != body || len(steps) != 2 {
			t.Errorf("got %q, %v after %v, want %q", got, err, steps, body)
		}
	}
	if err := Write(path, []byte("a\nb"), nil); err == nil {
		t.Error("two lines were accepted")
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v", info.Mode())
	}
}

// TestFormat_DoesNotChange checks the bytes of a file, because existing files have this format.
func TestFormat_DoesNotChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	must(t, Write(path, []byte(`{"version":1}`), nil))
	got, err := os.ReadFile(path)
	must(t, err)
	if want := "{\"version\":1}\ncrc32c:9906ed9a\n"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestRead_DetectsDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	must(t, Write(path, []byte(`{"n":1}`), nil))
	whole, err := os.ReadFile(path)
	must(t, err)
	for i := range whole[:len(whole)-1] { // damage of the last newline is harmless
		for bit := range 8 {
			b := append([]byte(nil), whole...)
			b[i] ^= 1 << bit
			if _, err := parse(b); !errors.Is(err, ErrDamaged) {
				t.Errorf("bit %d of byte %d flipped: %v", bit, i, err)
			}
		}
		if _, err := parse(whole[:i]); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
}

// disk simulates a disk. A power cut undoes everything that was not synced. Names and contents are synced separately.
type disk struct {
	left    int               // operations until the power cut
	names   map[string]*inode // files as the process sees them
	kept    map[string]*inode // files as they are on the disk
	noFsync map[string]bool   // operations that do nothing, to show that the test can fail
}

type inode struct{ seen, kept string }

var errPower = errors.New("no power")

func (d *disk) perform(op func()) error {
	if d.left == 0 {
		return errPower
	}
	d.left--
	op()
	return nil
}

func (d *disk) create(path string) (file, error) {
	f := &openFile{disk: d}
	return f, d.perform(func() {
		if d.names[path] == nil {
			d.names[path] = &inode{}
		}
		f.node = d.names[path]
		f.node.seen = ""
	})
}

func (d *disk) rename(from, to string) error {
	return d.perform(func() { d.names[to] = d.names[from]; delete(d.names, from) })
}

func (d *disk) syncDir(string) error {
	return d.perform(func() {
		if !d.noFsync["dir"] {
			d.kept = clone(d.names)
		}
	})
}

func clone(m map[string]*inode) map[string]*inode {
	out := map[string]*inode{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

type openFile struct {
	*disk
	node *inode
}

func (f *openFile) Write(b []byte) (int, error) {
	return len(b), f.perform(func() { f.node.seen += string(b) })
}

func (f *openFile) Sync() error {
	return f.perform(func() {
		if !f.noFsync["file"] {
			f.node.kept = f.node.seen
		}
	})
}

func (f *openFile) Close() error { return nil }

// after returns what a reader may find at path after the power cut. "-" means no file.
func (d *disk) after(path string) []string {
	var out []string
	for _, names := range []map[string]*inode{d.names, d.kept} {
		n := names[path]
		if n == nil {
			out = append(out, "-")
			continue
		}
		for _, content := range []string{n.seen, n.kept, n.seen[:len(n.seen)/2]} {
			if n.seen == n.kept {
				content = n.kept
			}
			body, err := parse([]byte(content))
			if err != nil {
				body = []byte("damaged: " + content)
			}
			out = append(out, string(body))
		}
	}
	return out
}

// cut replaces "old" with "new" and cuts the power after the given number of operations. The operations in without do
// nothing.
func cut(t *testing.T, operations int, without ...string) (found []string, err error) {
	t.Helper()
	d := &disk{left: 100, names: map[string]*inode{}, kept: map[string]*inode{}, noFsync: map[string]bool{}}
	must(t, write(d, "dir/f", []byte("old"), func(string) {}))
	for _, w := range without {
		d.noFsync[w] = true
	}
	d.left = operations
	err = write(d, "dir/f", []byte("new"), func(string) {})
	return d.after("dir/f"), err
}

func TestWrite_PowerCutLeavesOldOrNewContent(t *testing.T) {
	for operations := 0; ; operations++ {
		found, err := cut(t, operations)
		for _, body := range found {
			if body != "new" && (body != "old" || err == nil) {
				t.Errorf("power cut after %d operations (%v): found %q", operations, err, body)
			}
		}
		if err == nil {
			if operations != 5 {
				t.Errorf("a write takes %d operations, want create, write, sync, rename, sync of the directory",
					operations)
			}
			return
		}
	}
}

func TestWrite_EverySyncIsNeeded(t *testing.T) {
	for _, without := range []string{"file", "dir"} {
		bad := 0
		for operations := range 6 {
			found, err := cut(t, operations, without)
			for _, body := range found {
				if body != "new" && (body != "old" || err == nil) {
					bad++
				}
			}
		}
		if bad == 0 {
			t.Errorf("nothing is lost without the sync of the %s: the test above shows nothing", without)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("{}\ncrc32c:00000000\n"))
	f.Add([]byte("x\n" + Sum([]byte("x"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		body, err := parse(b)
		if err != nil {
			return
		}
		if again, err := parse([]byte(string(body) + "\n" + Sum(body) + "\n")); err != nil ||
			string(again) != string(body) {
			t.Fatalf("%q came back as %q, %v", body, again, err)
		}
	})
}

package powercut

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// disk is a Disk on which a test does what a program would do.
type disk struct {
	*Disk
	t    *testing.T
	next uint64
}

func newTestDisk(t *testing.T) *disk {
	t.Helper()
	d, err := NewDisk(filepath.Join(t.TempDir(), "none"))
	if err != nil {
		t.Fatal(err)
	}
	return &disk{Disk: d, t: t}
}

func (d *disk) do(op byte, a, b uint64, first, second string) {
	d.t.Helper()
	// The record goes through the format of a trace.
	path := filepath.Join(d.t.TempDir(), "trace")
	if err := os.WriteFile(path, append(appendRecord(nil, op, a, b, []byte(first), []byte(second)), opWrite, 7),
		0o600); err != nil {
		d.t.Fatal(err)
	}
	records, err := ReadTrace(path)
	if err != nil || len(records) != 1 { // the second record is not complete
		d.t.Fatalf("%d records, %v", len(records), err)
	}
	if err := d.Apply(&records[0]); err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) openFile(path string) uint64 {
	d.t.Helper()
	d.next++
	d.do(opOpen, d.next, 0, path, "")
	return d.next
}

func (d *disk) fsync(file uint64) {
	d.t.Helper()
	d.next++
	d.do(opSyncBegins, file, d.next, "", "")
	d.do(opSynced, file, d.next, "", "")
}

// image returns the files after a power cut: "name=content", separated by spaces.
func (d *disk) image(keep Keep, seed uint64) string {
	d.t.Helper()
	dir := filepath.Join(d.t.TempDir(), "image")
	if err := d.Image(dir, keep, rand.New(rand.NewPCG(seed, 1))); err != nil {
		d.t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		d.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			d.t.Fatal(err)
		}
		out = append(out, e.Name()+"="+string(b))
	}
	return strings.Join(out, " ")
}

// each returns the different images that 60 seeds produce.
func (d *disk) each(keep Keep) map[string]bool {
	d.t.Helper()
	out := map[string]bool{}
	for seed := range uint64(60) {
		out[d.image(keep, seed)] = true
	}
	return out
}

func TestDisk_LosesWhatIsNotSynced(t *testing.T) {
	d := newTestDisk(t)
	f := d.openFile("f")
	d.do(opWrite, f, 0, "old", "")
	d.fsync(f)
	if got := d.image(KeepNone, 1); got != "" {
		t.Errorf("%q: the name was not synced", got)
	}
	d.fsync(d.openFile("."))
	d.do(opWrite, f, 3, "new", "")
	for keep, want := range map[Keep]string{KeepNone: "f=old", KeepAll: "f=oldnew"} {
		if got := d.image(keep, 1); got != want {
			t.Errorf("%d: %q, want %q", keep, got, want)
		}
	}
	for got := range d.each(KeepPrefix) {
		if !strings.HasPrefix("f=oldnew", got) || len(got) < len("f=old") {
			t.Errorf("a prefix is %q", got)
		}
	}
	d.do(opTruncate, f, 1, "", "")
	if got := d.each(KeepSome); !got["f=o"] || !got["f=old"] || !got["f=oldnew"] {
		t.Errorf("any of the changes: %v", got)
	}
}

// TestDisk_SyncKeepsOnlyEarlierWrites checks that a sync does not cover a write that happens while the sync runs.
func TestDisk_SyncKeepsOnlyEarlierWrites(t *testing.T) {
	d := newTestDisk(t)
	f := d.openFile("f")
	d.fsync(d.openFile("."))
	d.do(opWrite, f, 0, "1", "")
	d.do(opSyncBegins, f, 100, "", "")
	d.do(opWrite, f, 1, "2", "")
	d.do(opSynced, f, 100, "", "")
	if got := d.image(KeepNone, 1); got != "f=1" {
		t.Errorf("%q", got)
	}
}

func TestDisk_RenameIsAtomicAndNeedsSync(t *testing.T) {
	d := newTestDisk(t)
	for name, text := range map[string]string{"f": "old", "f.tmp": "new"} {
		f := d.openFile(name)
		d.do(opWrite, f, 0, text, "")
		d.fsync(f)
	}
	root := d.openFile(".")
	d.fsync(root)
	d.do(opRename, 0, 0, "f.tmp", "f")
	if got := d.each(KeepPrefix); len(got) != 2 || !got["f=old f.tmp=new"] || !got["f=new"] {
		t.Errorf("%v", got)
	}
	d.fsync(root)
	if got := d.image(KeepNone, 1); got != "f=new" {
		t.Errorf("%q", got)
	}
	d.do(opUnlink, 0, 0, "f", "")
	if got := d.each(KeepPrefix); len(got) != 2 || !got["f=new"] || !got[""] {
		t.Errorf("%v", got)
	}
}

func TestDisk_LiesDropSyncs(t *testing.T) {
	d := newTestDisk(t)
	d.fsync(d.openFile("."))
	d.Lies = func(path string, dir bool) bool { return path == "f" && !dir }
	f := d.openFile("f")
	d.fsync(d.openFile("."))
	d.do(opWrite, f, 0, "x", "")
	d.fsync(f)
	if got := d.image(KeepNone, 1); got != "f=" {
		t.Errorf("%q", got)
	}
}

func TestOverlay_FitsThisGo(t *testing.T) {
	path, err := WriteOverlay(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"filehook_linux.go", "zsyscall_linux", "syscall_linux.go", "at.go"} {
		if !strings.Contains(string(text), file) {
			t.Errorf("%s is not in %s", file, text)
		}
	}
	if _, err := rename("func write("); err == nil {
		t.Error("a version of Go without these functions is accepted")
	}
}

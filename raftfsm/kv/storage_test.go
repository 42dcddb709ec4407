package kv_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/google/go-cmp/cmp"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

func wantFault(t *testing.T, what string, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Errorf("%s: %v, want %s", what, err, code)
		return
	}
	if f, ok := fault.As(err); !ok || f.Hint == "" {
		t.Errorf("%s: the error has no hint: %v", what, err)
	}
}

func TestCreate_IsDurableAndReopens(t *testing.T) {
	fs := vfs.NewCrashableMem()
	m, err := kv.Create(options(t, fs))
	if err != nil {
		t.Fatal(err)
	}
	left := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for _, fs := range []vfs.FS{fs, left} {
		m, err := kv.Open(options(t, fs))
		if err != nil {
			t.Fatal(err)
		}
		if m.Applied() != 0 {
			t.Errorf("applied %d, want 0", m.Applied())
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = kv.Create(options(t, fs))
		wantFault(t, "Create over a database", err, fault.Invalid)
	}
}

func TestOpen_NeverCreatesDatabase(t *testing.T) {
	for name, prepare := range map[string]func(vfs.FS) error{
		"no directory":    func(vfs.FS) error { return nil },
		"empty directory": func(fs vfs.FS) error { return fs.MkdirAll("db", 0o755) },
		"foreign files":   func(fs vfs.FS) error { return writeFile(fs, "db/notes.txt", []byte("hello")) },
	} {
		fs := vfs.NewMem()
		if err := prepare(fs); err != nil {
			t.Fatal(err)
		}
		before := fs.String()
		_, err := kv.Open(options(t, fs))
		wantFault(t, name, err, fault.Invalid)
		if after := fs.String(); after != before {
			t.Errorf("%s: Open left something behind:\n%s", name, after)
		}
	}
}

func TestOpen_RefusesForeignDatabasesUnchanged(t *testing.T) {
	put := func(key, value string) func(*pebble.DB) error {
		return func(db *pebble.DB) error { return db.Set([]byte(key), []byte(value), pebble.Sync) }
	}
	version := func(v byte) string { return "quorate.kv\x00" + string(v) + strings.Repeat("\x00", 64) }
	for name, c := range map[string]struct {
		fill func(*pebble.DB) error
		code fault.Code
	}{
		"empty, creation did not finish": {func(*pebble.DB) error { return nil }, fault.Invalid},
		"of another program":             {put("key", "value"), fault.Invalid},
		"other bytes under our key":      {put("\x01", "value"), fault.Invalid},
		"newer format":                   {put("\x01", version(kv.FormatVersion+1)), fault.Invalid},
	} {
		fs := vfs.NewMem()
		db, err := pebble.Open("db", &pebble.Options{FS: fs, Logger: quiet{},
			FormatMajorVersion: pebble.FormatMajorVersion(kv.PebbleFormat)})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.fill(db), db.Close()); err != nil {
			t.Fatal(err)
		}
		_, err = kv.Open(options(t, fs))
		wantFault(t, name, err, c.code)
		_, err = kv.Create(options(t, fs))
		wantFault(t, name+", Create", err, fault.Invalid)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)      {}
func (quiet) Errorf(string, ...any)     {}
func (quiet) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

func TestOpen_RefusesNewerEngineUnchanged(t *testing.T) {
	for _, format := range []pebble.FormatMajorVersion{pebble.FormatNewest, 999} {
		fs := vfs.NewMem()
		if format == 999 {
			if err := writeFile(fs, "db/marker.format-version.000001.999", nil); err != nil {
				t.Fatal(err)
			}
		} else {
			db, err := pebble.Open("db", &pebble.Options{FS: fs, Logger: quiet{}, FormatMajorVersion: format})
			if err != nil {
				t.Fatal(err)
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
		}
		before := fs.String()
		_, err := kv.Open(options(t, fs))
		wantFault(t, fmt.Sprint("format ", format), err, fault.Invalid)
		_, err = kv.Create(options(t, fs))
		wantFault(t, fmt.Sprint("Create, format ", format), err, fault.Invalid)
		if after := fs.String(); after != before {
			t.Errorf("format %d: something changed:\n%s", format, after)
		}
	}
}

func TestOpen_OnlyOnce(t *testing.T) {
	fs := vfs.NewMem()
	r := rigOn(t, fs)
	_, err := kv.Open(options(t, fs))
	wantFault(t, "second Open", err, fault.Unavailable)
	r.do(1, write(set("k", "v")))
	r.wantValue("k", "v")
}

func TestOptions_RequireDirAndFatal(t *testing.T) {
	fatal := func(error) {}
	for _, o := range []kv.Options{{FS: vfs.NewMem(), Fatal: fatal}, {FS: vfs.NewMem(), Dir: "db"}} {
		for name, f := range map[string]func(kv.Options) (*kv.Machine, error){"Create": kv.Create, "Open": kv.Open} {
			if _, err := f(o); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s: %v, want %s", name, err, fault.Invalid)
			}
		}
	}
}

func writeFile(fs vfs.FS, name string, data []byte) error {
	if err := fs.MkdirAll(fs.PathDir(name), 0o755); err != nil {
		return err
	}
	f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func readFile(t *testing.T, fs vfs.FS, name string) []byte {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return data
}

// tables returns the names of the table files.
func tables(t *testing.T, fs vfs.FS) []string {
	t.Helper()
	names, err := fs.List("db")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, n := range names {
		if strings.HasSuffix(n, ".sst") {
			out = append(out, fs.PathJoin("db", n))
		}
	}
	return out
}

// stored creates a database with n keys in one table on disk, and closes the machine.
func stored(t *testing.T, fs vfs.FS, n int) {
	t.Helper()
	r := rigOn(t, fs)
	g := rand.New(rand.NewPCG(1, 1))
	for i := range n {
		value := make([]byte, 500)
		for j := range value {
			value[j] = byte(g.Uint32())
		}
		r.do(1, write(set(fmt.Sprintf("k%04d", i), string(value))))
	}
	flush(t, r.Machine)
	if err := kv.CompactAll(t.Context(), r.Machine); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedTable_IsReportedAndNeverServed(t *testing.T) {
	fs := vfs.NewMem()
	const n = 200
	stored(t, fs, n)
	r := reopen(t, fs)
	want := map[string][]byte{}
	for i := range n {
		key := fmt.Sprintf("k%04d", i)
		want[key] = r.get(key, 0).Value
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	names := tables(t, fs)
	file := names[len(names)-1]
	whole := readFile(t, fs, file)
	noticed := 0
	for at := 1000; at < len(whole); at += len(whole) / 25 {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x40
		if err := writeFile(fs, file, damaged); err != nil {
			t.Fatal(err)
		}
		if readAll(t, fs, want) {
			noticed++
		}
	}
	if noticed < 20 {
		t.Errorf("only %d damages were noticed: the test reads too little", noticed)
	}
}

// readAll opens a damaged database and reads everything. It reports whether the damage was noticed.
// A wrong value fails the test.
func readAll(t *testing.T, fs vfs.FS, want map[string][]byte) (noticed bool) {
	t.Helper()
	spy := newFatalSpy()
	o := options(t, fs)
	o.Fatal, o.Logger = spy.fatal, nil
	m, err := kv.Open(o)
	if err != nil {
		wantFault(t, "Open", err, fault.Corrupt)
		return true
	}
	defer func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}()
	for key, value := range want {
		v, err := m.Get("s", key, 0)
		if err != nil {
			wantFault(t, "Get", err, fault.Corrupt)
			if told := <-spy.ch; !fault.Is(told, fault.Corrupt) {
				t.Errorf("Fatal got %v, want %s", told, fault.Corrupt)
			}
			out := m.Apply([]kv.Entry{{Index: m.Applied() + 1}})
			wantFault(t, "Apply on damaged data", out[0].Err, fault.Corrupt)
			return true
		}
		if !bytes.Equal(v.Value, value) {
			t.Fatalf("%s has a wrong value", key)
		}
	}
	return false
}

func reopen(t *testing.T, fs vfs.FS) *rig {
	t.Helper()
	spy := newFatalSpy()
	o := options(t, fs)
	o.Fatal = spy.fatal
	m, err := kv.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return &rig{t: t, Machine: m, fatal: spy}
}

func TestOpen_ReportsMissingOrTruncatedTable(t *testing.T) {
	for name, damage := range map[string]func(fs vfs.FS, file string) error{
		"missing": func(fs vfs.FS, file string) error { return fs.Remove(file) },
		"cut":     func(fs vfs.FS, file string) error { return writeFile(fs, file, []byte("short")) },
	} {
		fs := vfs.NewMem()
		stored(t, fs, 20)
		if err := damage(fs, tables(t, fs)[0]); err != nil {
			t.Fatal(err)
		}
		m, err := kv.Open(options(t, fs))
		wantFault(t, name, err, fault.Corrupt)
		if m != nil {
			t.Errorf("%s: there is a machine besides the error", name)
		}
	}
}

func TestRecords_OfUnknownFormAreReported(t *testing.T) {
	for name, c := range map[string]struct{ key, value string }{
		"data":         {"\x02s\x00k", "\x20........"},
		"data, short":  {"\x02s\x00k", "\x10"},
		"data, expiry": {"\x02s\x00k", "\x11........"},
		"data, type":   {"\x02s\x00k", "\x12........\x7f"},
	} {
		r := newRig(t)
		if err := kv.Put(r.Machine, []byte(c.key), []byte(c.value)); err != nil {
			t.Fatal(err)
		}
		_, err := r.Get("s", "k", 0)
		wantFault(t, name+", Get", err, fault.Corrupt)
		if told := <-r.fatal.ch; !fault.Is(told, fault.Corrupt) {
			t.Errorf("%s: Fatal got %v", name, told)
		}
		r = newRig(t)
		if err := kv.Put(r.Machine, []byte(c.key), []byte(c.value)); err != nil {
			t.Fatal(err)
		}
		out := r.Apply([]kv.Entry{r.entry(1, write(set("a", "1"))), entryOf(t, 2, 1, write(set("k", "v")))})
		wantFault(t, name+", Apply", out[1].Err, fault.Corrupt)
		wantFault(t, name+", the entry before", out[0].Err, fault.Corrupt)
		if r.Applied() != 0 {
			t.Errorf("%s: applied %d, want nothing", name, r.Applied())
		}
	}
}

func TestOpen_ReportsDamagedOrigins(t *testing.T) {
	number := strings.Repeat("\x00", 7) + "\x01"
	for name, c := range map[string]struct{ key, value string }{
		"origin":            {"\x04" + number, "\x02" + strings.Repeat("\x00", 16)},
		"origin, short":     {"\x04" + number, "\x01"},
		"origin, key":       {"\x04x", "\x01" + strings.Repeat("\x00", 16)},
		"results, no owner": {"\x05" + number + number, "\x01" + strings.Repeat("\x00", 8)},
	} {
		fs := vfs.NewMem()
		r := rigOn(t, fs)
		if err := kv.Put(r.Machine, []byte(c.key), []byte(c.value)); err != nil {
			t.Fatal(err)
		}
		flush(t, r.Machine)
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		_, err := kv.Open(options(t, fs))
		wantFault(t, name, err, fault.Corrupt)
	}
}

func TestCheckpoint_OpensAsSameMachine(t *testing.T) {
	fs := vfs.NewMem()
	h := record(t, 9, 60)
	r := rigOn(t, fs)
	kv.SetBounds(r.Machine, testWindow, testOrigins, testClients)
	h.applyRun(t, r.Machine, 0, len(h.entries))
	applied, err := r.Checkpoint("copy")
	if err != nil {
		t.Fatal(err)
	}
	if applied != uint64(len(h.entries)) {
		t.Errorf("the checkpoint holds up to %d, want %d", applied, len(h.entries))
	}
	want := dump(t, r.Machine)
	r.do(1<<40, write(set("later", "v"))) // must not show in the copy
	_, err = r.Checkpoint("copy")
	if !fault.Is(err, fault.Invalid) {
		t.Errorf("into a directory that exists: %v, want %s", err, fault.Invalid)
	}
	if _, err := r.Checkpoint("db/LOCK/copy"); !fault.Is(err, fault.Unavailable) {
		t.Errorf("where no directory can be: %v, want %s", err, fault.Unavailable)
	}
	o := options(t, fs)
	o.Dir = "copy"
	m, err := kv.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	h.checkAt(t, m)
	if d := cmp.Diff(want, dump(t, m)); d != "" {
		t.Error(d)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

func TestRaise_RaisesRevisionsAndDropsOrigins(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := rigOn(t, fs)
	o := r.register(1, "n")
	r.do(1, withID(write(set("k", "1")), o, 1, 0), withClient(write(set("c", "1")), "id"))
	_, before := r.Hash()
	if err := r.Raise(1 << 40); err != nil {
		t.Fatal(err)
	}
	r = reopen(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	if _, hash := r.Hash(); hash == before {
		t.Error("the hash is that of a machine which was not raised")
	}
	if res := r.one(1, withID(write(set("k", "2")), o, 1, 0)); res.Outcome != kv.Stale {
		t.Errorf("an earlier origin: %v, want %v", res.Outcome, kv.Stale)
	}
	if res := r.one(1, withClient(write(set("c", "1")), "id")); !res.Replayed {
		t.Errorf("an earlier client result: %+v, want it to be kept", res)
	}
	if res := r.one(1, write(set("k", "2", ifRevision(2)))); res.Outcome != kv.Applied || res.Revisions[0] != 1<<40+4 {
		t.Errorf("the next write: %+v, want revision %d", res, 1<<40+4)
	}
	if err := r.Raise(1<<64 - 1); !fault.Is(err, fault.Invalid) {
		t.Errorf("a raise that overflows: %v, want %s", err, fault.Invalid)
	}
	r.check()
}

func TestSetApplied_IsDurable(t *testing.T) {
	fs := vfs.NewCrashableMem()
	r := rigOn(t, fs)
	r.Apply([]kv.Entry{entryOf(t, 500, 1, write(set("k", "1")))})
	if err := r.SetApplied(3, 2); err != nil {
		t.Fatal(err)
	}
	r = reopen(t, fs.CrashClone(vfs.CrashCloneCfg{}))
	if s := r.Stats(); s.Applied != 3 || s.Term != 2 {
		t.Errorf("applied %d of term %d, want 3 of term 2", s.Applied, s.Term)
	}
	out := r.Apply([]kv.Entry{entryOf(t, 3, 1, write(set("k", "3"))), entryOf(t, 4, 1, write(set("k", "4")))})
	if !out[0].Skipped || out[1].Skipped {
		t.Errorf("skipped %v and %v, want entry 3 alone", out[0].Skipped, out[1].Skipped)
	}
	r.wantValue("k", "4")
}

// faultyDisk fails operations on table or manifest files while it is on.
type faultyDisk struct {
	on   atomic.Bool
	file string
	hits atomic.Int64
}

func (d *faultyDisk) String() string { return "faulty disk" }

func (d *faultyDisk) MaybeError(op errorfs.Op) error {
	if !d.on.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || !strings.Contains(op.Path, d.file) {
		return nil
	}
	if op.Kind != errorfs.OpFileWrite && op.Kind != errorfs.OpFileSync && op.Kind != errorfs.OpFileFlush {
		return nil
	}
	d.hits.Add(1)
	return syscall.ENOSPC
}

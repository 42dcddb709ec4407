package kv_test

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// tableRig makes a machine with one table, closes it, and returns its file system and the path of the table.
func tableRig(t *testing.T) (vfs.FS, string) {
	t.Helper()
	fs := vfs.NewMem()
	r := rigOn(t, fs)
	for i := range 200 {
		r.one(1, write(set(fmt.Sprintf("k%03d", i), strings.Repeat(fmt.Sprint(i), 100))))
	}
	if _, err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return fs, newestTable(t, fs)
}

func newestTable(t *testing.T, fs vfs.FS) string {
	t.Helper()
	return newestFile(t, fs, func(name string) bool { return strings.HasSuffix(name, ".sst") })
}

// newestFile returns the path of the file with the highest name, of those for which the function is returns true.
func newestFile(t *testing.T, fs vfs.FS, is func(name string) bool) string {
	t.Helper()
	names, err := fs.List("db")
	if err != nil {
		t.Fatal(err)
	}
	newest := ""
	for _, n := range names {
		if is(n) {
			newest = max(newest, n)
		}
	}
	if newest == "" {
		t.Fatalf("no such file: %v", names)
	}
	return fs.PathJoin("db", newest)
}

// changeFile replaces the content of a file.
func changeFile(t *testing.T, fs vfs.FS, path string, change func([]byte) []byte) {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if err := writeFile(fs, path, change(b)); err != nil {
		t.Fatal(err)
	}
}

func TestCheckTables_FindsDamageThatTheStartDoesNotRead(t *testing.T) {
	fs, table := tableRig(t)
	for _, damaged := range []bool{false, true} {
		if damaged {
			table = newestTable(t, fs) // the first start may have replaced the table by a compaction
			changeFile(t, fs, table, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}
		m, err := kv.Open(options(t, fs))
		if err != nil {
			t.Fatal(err)
		}
		if done, err := m.CheckTables(func() bool { return false }); done || err != nil {
			t.Errorf("without time: %v, %v", done, err)
		}
		switch done, err := m.CheckTables(func() bool { return true }); {
		case !damaged && (!done || err != nil):
			t.Errorf("of an undamaged table: %v, %v", done, err)
		case damaged && (!fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), table)):
			t.Errorf("of the damaged %s: %v", table, err)
		}
		if err := m.Broken(); err != nil {
			t.Errorf("the check ended the machine: %v", err)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpen_NamesDamagedFiles(t *testing.T) {
	for prefix, change := range map[string]func([]byte) []byte{
		"OPTIONS-": func(b []byte) []byte { return b[:bytes.LastIndexByte(b, '=')] },
		// The damage is in the first record. Pebble takes damage in the last record for a write that was cut off.
		"MANIFEST-": func(b []byte) []byte { b[20] ^= 8; return b },
	} {
		fs, _ := tableRig(t)
		path := newestFile(t, fs, func(name string) bool { return strings.HasPrefix(name, prefix) })
		changeFile(t, fs, path, change)
		_, err := kv.Open(options(t, fs))
		wantFault(t, prefix, err, fault.Corrupt)
		if !strings.Contains(fault.Text(err), path) {
			t.Errorf("the error does not name %s: %v", path, err)
		}
	}
}

package raftfsm_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/durable"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// trimmed reads a file without the zeros at its end: segments of the log are long and mostly empty.
func trimmed(path string) (b []byte, size int, err error) {
	b, err = os.ReadFile(path)
	return bytes.TrimRight(b, "\x00"), len(b), err
}

// sparseCopy copies a directory. It does not write the zeros at the ends of files, so they take no disk space.
func sparseCopy(t *testing.T, from, to string) {
	t.Helper()
	must(t, filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		if err != nil || e.IsDir() {
			return errors.Join(err, os.MkdirAll(target, 0o700))
		}
		b, size, err := trimmed(path)
		return errors.Join(err, os.WriteFile(target, b, 0o600), os.Truncate(target, int64(size)))
	}))
}

// sums returns the checksums of all files in a directory except its lock.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || path == filepath.Join(dir, "LOCK") {
			return err
		}
		b, size, err := trimmed(path)
		out[strings.TrimPrefix(path, dir)] = fmt.Sprintf("%d bytes, %x", size, sha256.Sum256(b))
		return err
	}))
	return out
}

// one returns the path of the only file in dir that matches a pattern. Patterns for files of a group name the last
// group, so the test also checks that the earlier groups are unchanged.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	must(t, err)
	if len(names) != 1 {
		t.Fatalf("%s names %v", pattern, names)
	}
	return names[0]
}

// amended returns a function that changes fields of a JSON file and returns its path.
func amended(name string, fields map[string]any) func(*testing.T, string) string {
	return func(t *testing.T, dir string) string {
		path := one(t, dir, name)
		body, err := durable.Read(path)
		must(t, err)
		var all map[string]any
		must(t, json.Unmarshal(body, &all))
		for k, v := range fields {
			all[k] = v
		}
		body, err = json.Marshal(all)
		must(t, err)
		must(t, durable.Write(path, body, nil))
		return path
	}
}

// patched returns a function that writes bytes at offsets of a file and returns its path.
func patched(name string, b []byte, offsets ...int64) func(*testing.T, string) string {
	return func(t *testing.T, dir string) string {
		path := one(t, dir, name)
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		for _, at := range offsets {
			_, err := f.WriteAt(b, at)
			must(t, err)
		}
		must(t, f.Close())
		return path
	}
}

// newerBolt returns a function that raises the version in both meta pages of a bbolt file. The page size of the file
// is the page size of the system.
func newerBolt(name string) func(*testing.T, string) string {
	return patched(name, []byte{3}, 20, int64(os.Getpagesize())+20)
}

func newerTables(t *testing.T, dir string) string {
	path := one(t, dir, "groups/1/db-*")
	db, err := pebble.Open(path, &pebble.Options{DisableWAL: true, FormatMajorVersion: pebble.FormatTableFormatV6,
		Logger: quiet{}})
	must(t, err)
	meta, closer, err := db.Get([]byte{1})
	must(t, err)
	newer := append([]byte{}, meta...)
	must(t, closer.Close())
	binary.BigEndian.PutUint16(newer[len("quorate.kv"):], 2)
	must(t, db.Set([]byte{1}, newer, pebble.NoSync))
	must(t, db.Flush())
	must(t, db.Close())
	return path
}

// quiet drops the log of Pebble.
type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(f string, a ...any) {
	panic(fmt.Sprintf(f, a...))
}

func newerStorage(t *testing.T, dir string) string {
	path := one(t, dir, "groups/1/db-*/marker.format-version.*.021")
	must(t, os.Rename(path, strings.TrimSuffix(path, "021")+"099"))
	return filepath.Dir(path)
}

func TestOpen_RefusesDataOfNewerVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("writes and restarts for many seconds")
	}
	type part struct {
		make  func(t *testing.T, dir string) (file string)
		words []string
	}
	of := map[raftlog.Engine]map[string]part{
		raftlog.WAL: {
			"log":      {patched("groups/1/wal/*.wal", []byte{1}, 7), []string{"has format 1", "up to 0"}},
			"log list": {newerBolt("groups/1/wal/wal-meta.db"), []string{"has format 3", "up to 2"}},
		},
		raftlog.BoltDB: {
			"log":      {newerBolt("groups/1/log.db"), []string{"has format 3", "up to 2"}},
			"identity": {amended("node.json", map[string]any{"version": 2}), []string{"has format 2", "up to 1"}},
			"log entries": {amended("node.json", map[string]any{"format": command.Version + 1}),
				[]string{"uses format 2 of log entries", "up to 1"}},
			"manifest": {amended("groups/1/manifest.json", map[string]any{"version": 2}),
				[]string{"has format 2", "up to 1"}},
			"floor": {amended("groups/1/floor.json", map[string]any{"version": 2}),
				[]string{"has format 2", "up to 1"}},
			"terms":          {newerBolt("groups/1/stable.db"), []string{"has format 3", "up to 2"}},
			"tables":         {newerTables, []string{"has format version 2", "understands 1"}},
			"storage engine": {newerStorage, []string{"99", "up to 21"}},
		},
	}
	for engine, parts := range of {
		dir := filepath.Join(t.TempDir(), "data")
		o := options(t, dir)
		o.Engine, o.Partitions = engine, 2
		h := open(t, o)
		for _, s := range []string{"orders", "carts", "users", "stock"} { // keys in both groups
			set(t, h.Store("default", s), "k", "1", state.Strong)
		}
		for _, g := range h.Groups() {
			must(t, g.Snapshot())
		}
		set(t, h.Store("default", "orders"), "k", "2", state.Strong) // only in the log, not in the database
		closeHost(t, h)
		for name, p := range parts {
			t.Run(string(engine)+"/"+name, func(t *testing.T) {
				copied := filepath.Join(t.TempDir(), "data")
				sparseCopy(t, dir, copied)
				file := p.make(t, copied)
				before := sums(t, copied)
				refused := func(err error) {
					t.Helper()
					if !fault.Is(err, fault.Invalid) {
						t.Fatalf("got %v", err)
					}
					for _, w := range append(p.words, file, "a newer") {
						if !strings.Contains(fault.Text(err), w) {
							t.Errorf("%q does not contain %q", fault.Text(err), w)
						}
					}
					if d := cmp.Diff(before, sums(t, copied)); d != "" {
						t.Errorf("the directory was changed:\n%s", d)
					}
				}
				o := options(t, copied)
				h, err := raftfsm.Open(t.Context(), o)
				if err == nil {
					closeHost(t, h)
				}
				refused(err)
				_, err = raftfsm.Rescue(raftfsm.RescueOptions{Dir: copied, Logger: slog.New(slog.DiscardHandler),
					Agree: func(raftfsm.Survey) (bool, error) { return false, nil }})
				refused(err)
			})
		}
		again := open(t, options(t, dir))
		if got := get(t, again.Store("default", "orders"), "k", state.Strong); string(got.Value) != "2" {
			t.Errorf("%s: the data itself is %q", engine, got.Value)
		}
	}
}

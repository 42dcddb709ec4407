package raftfsm_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/quorate/quorate/internal/testutil"
)

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

// eventually polls until check returns nil. The deadline only ends a test that hangs.
func eventually(t testing.TB, check func() error) { t.Helper(); testutil.Eventually(t, check) }

func flip(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		must(t, err)
		b[len(b)/3] ^= 0x04
		must(t, os.WriteFile(path, b, 0o600))
	}
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) { must(t, os.RemoveAll(filepath.Join(dir, name))) }
}

func overwrite(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		must(t, os.WriteFile(filepath.Join(dir, name), bytes.Repeat([]byte("not bolt"), 4096), 0o600))
	}
}

// flipEntry flips a bit in every copy of a value in the log file. bolt has no checksum over data pages.
func flipEntry(t *testing.T, dir string) {
	path := filepath.Join(dir, "groups/0/log.db")
	b, err := os.ReadFile(path)
	must(t, err)
	n := bytes.Count(b, []byte("needle-in-the-log"))
	if n == 0 {
		t.Fatal("the value is not in the log file")
	}
	must(t, os.WriteFile(path, bytes.ReplaceAll(b, []byte("needle-in-the-log"), []byte("noodle-in-the-log")), 0o600))
}

// future writes an identity of a later format, with a valid checksum.
func future(t *testing.T, dir string) {
	rewriteIdentity(t, filepath.Join(dir, "node.json"), func(m map[string]any) { m["version"] = 99 })
}

// rewriteIdentity changes fields of an identity, with a valid checksum.
func rewriteIdentity(t *testing.T, path string, change func(map[string]any)) {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	body, _, _ := bytes.Cut(b, []byte("\n"))
	var m map[string]any
	must(t, json.Unmarshal(body, &m))
	change(m)
	body, err = json.Marshal(m)
	must(t, err)
	sum := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	must(t, os.WriteFile(path, fmt.Appendf(nil, "%s\ncrc32c:%08x\n", body, sum), 0o600))
}

// tree returns the files below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		names = append(names, path)
		return err
	}))
	return names
}

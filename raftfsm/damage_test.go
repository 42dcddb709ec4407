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
	"time"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until check passes.
// eventually waits for a state. The deadline ends a test that hangs and is no claim.
func eventually(t testing.TB, check func() error) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %v", err)
		}
	}
}

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

// flipEntry flips a bit in every copy of a value in the log file: bolt itself has no
// checksum over data pages.
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

// future writes an identity of a later format, with a good checksum.
func future(t *testing.T, dir string) {
	path := filepath.Join(dir, "node.json")
	b, err := os.ReadFile(path)
	must(t, err)
	body, _, _ := bytes.Cut(b, []byte("\n"))
	var m map[string]any
	must(t, json.Unmarshal(body, &m))
	m["version"] = 99
	body, err = json.Marshal(m)
	must(t, err)
	sum := crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli))
	must(t, os.WriteFile(path, fmt.Appendf(nil, "%s\ncrc32c:%08x\n", body, sum), 0o600))
}

// tree lists the files below dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		names = append(names, path)
		return err
	}))
	return names
}

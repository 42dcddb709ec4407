package snapshot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/durable"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
)

func noStep(string) {}

func sampleManifest(index uint64) *Manifest {
	conf := raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"},
		{ID: "b", Address: "b"}}})
	return &Manifest{Database: "db-000007", Snapshot: &Info{Index: index, Term: 3, Configuration: conf,
		ConfigurationIndex: 1, Applied: index - 1}}
}

func TestManifest_RoundTrips(t *testing.T) {
	for name, m := range map[string]*Manifest{
		"with a snapshot": sampleManifest(42),
		"without":         {Database: firstDB},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, writeManifest(dir, m, noStep))
			got, err := readManifest(dir)
			must(t, err)
			if d := cmp.Diff(m, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestLoadManifest_MissingIsNoError(t *testing.T) {
	if m, err := readManifest(t.TempDir()); m != nil || err != nil {
		t.Fatalf("got %v, %v", m, err)
	}
}

func TestLoadManifest_RefusesDamagedOrTorn(t *testing.T) {
	dir := t.TempDir()
	want := sampleManifest(42)
	must(t, writeManifest(dir, want, noStep))
	path := filepath.Join(dir, ManifestName)
	whole, err := os.ReadFile(path)
	must(t, err)
	check := func(what string, at int, b []byte) {
		t.Helper()
		must(t, os.WriteFile(path, b, 0o600))
		got, err := readManifest(dir)
		if err == nil && cmp.Equal(got, want) {
			return // only white space at the end was changed
		}
		if !fault.Is(err, fault.Corrupt) {
			t.Fatalf("%s at %d: got %+v, %v", what, at, got, err)
		}
	}
	refused := 0
	for i := range whole {
		for bit := range 8 {
			b := []byte(string(whole))
			b[i] ^= 1 << bit
			check("bit flipped", i, b)
			refused++
		}
		check("cut", i, whole[:i])
	}
	if refused < 1000 {
		t.Fatalf("only %d damages tried", refused)
	}
}

func TestLoadManifest_RefusesLaterFormat(t *testing.T) {
	dir := t.TempDir()
	body, err := json.Marshal(map[string]any{"version": manifestVersion + 1, "database": "db-000001"})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, ManifestName), []byte(string(body)+"\n"+durable.Sum(body)+"\n"), 0o600))
	_, err = readManifest(dir)
	wantCode(t, err, fault.Invalid)
	if f, _ := fault.As(err); !strings.Contains(f.Text(), "newer") {
		t.Errorf("no hint in %q", f.Text())
	}
}

func TestLoadManifest_RefusesForeignDirectoryName(t *testing.T) {
	for _, name := range []string{"", "../db", "a/b", "/db", ".", ".."} {
		dir := t.TempDir()
		must(t, writeManifest(dir, &Manifest{Database: name}, noStep))
		if _, err := readManifest(dir); !fault.Is(err, fault.Corrupt) {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

func TestStoreManifest_IsAtomic(t *testing.T) {
	dir := t.TempDir()
	before, after := sampleManifest(42), sampleManifest(99)
	must(t, writeManifest(dir, before, noStep))
	var steps []string
	must(t, writeManifest(dir, after, func(step string) {
		steps = append(steps, step)
		image := t.TempDir()
		testutil.CopyTree(t, dir, image)
		got, err := readManifest(image)
		must(t, err)
		want := before
		if step == "manifest-renamed" {
			want = after
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("after a crash at %s: %s", step, d)
		}
	}))
	if d := cmp.Diff([]string{"manifest-written", "manifest-renamed"}, steps); d != "" {
		t.Error(d)
	}
}

func TestStoreManifest_FailedWriteKeepsOldManifest(t *testing.T) {
	dir := t.TempDir()
	before := sampleManifest(42)
	must(t, writeManifest(dir, before, noStep))
	must(t, os.Mkdir(filepath.Join(dir, ManifestName+".tmp"), 0o700))
	if err := writeManifest(dir, sampleManifest(99), noStep); err == nil {
		t.Fatal("the write succeeded")
	}
	got, err := readManifest(dir)
	must(t, err)
	if d := cmp.Diff(before, got); d != "" {
		t.Error(d)
	}
}

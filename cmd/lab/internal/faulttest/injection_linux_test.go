package faulttest

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// A fault without an effect would hide failures of the product, so this tests the effect of a full disk.
func TestDisk_FullRefusesWritesUntilFreed(t *testing.T) {
	if err := Supported(true); err != nil {
		t.Skip(err)
	}
	d, err := newDisk(filepath.Join(t.TempDir(), "disk"), 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	free, err := d.Fill()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(d.dir, "file")
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk answers %v", err)
	}
	if err := free(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, make([]byte, 64<<10), 0o600); err != nil {
		t.Error(err)
	}
}

// And this tests the effect of damage on a file.
func TestDamage_ChangesAFile(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // chance, not a secret
	for _, how := range Damages() {
		for range 50 {
			whole := bytes.Repeat([]byte("quorate"), 1+rnd.IntN(3000))
			whole = append(whole, make([]byte, rnd.IntN(9000))...) // preallocated, as logs are
			if got := damages()[how](bytes.Clone(whole), rnd); bytes.Equal(bytes.TrimRight(got, "\x00"),
				bytes.TrimRight(whole, "\x00")) {
				t.Errorf("%s changes nothing in %d bytes", how, len(whole))
			}
		}
	}
	if len(Damages()) != len(damages()) {
		t.Errorf("%d names for %d ways", len(Damages()), len(damages()))
	}
}

// Every part of a data directory is found with either log store.
func TestPart_IsFoundByItsFiles(t *testing.T) {
	for path, want := range map[string]Part{
		"/d/node.json": IdentityPart, "/d/groups/0/log.db": LogPart,
		"/d/groups/0/wal/00000000000000000001-0000000000000000.wal": LogPart,
		"/d/groups/0/wal/wal-meta.db":                               LogPart, "/d/groups/0/stable.db": VotePart,
		"/d/groups/0/manifest.json":        ManifestPart,
		"/d/groups/0/db-000001/000330.sst": DatabasePart, "/d/groups/0/db-000001/000007.log": DatabasePart,
		"/d/groups/0/db-000001/MANIFEST-000006": DatabasePart,
	} {
		for _, p := range []Part{LogPart, VotePart, ManifestPart, DatabasePart, IdentityPart} {
			if p.has(path) != (p == want) {
				t.Errorf("%s: belongs to %s = %t", path, p, p.has(path))
			}
		}
	}
}

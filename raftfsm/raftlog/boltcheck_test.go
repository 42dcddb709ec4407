package raftlog

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/quorate/quorate/internal/fault"
)

// boltFile returns the content of a log file with entries on many pages. Some entries are larger than a page, and some
// are deleted.
func boltFile(t *testing.T, noFreelistSync bool) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log.db")
	opts := boltOptions()
	opts.NoFreelistSync, opts.NoSync = noFreelistSync, true
	s, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: opts})
	must(t, err)
	for i := uint64(1); i <= 300; i++ {
		must(t, s.StoreLog(&raft.Log{Index: i, Term: 1, Data: bytes.Repeat([]byte("x"), int(i%7)*900)}))
	}
	must(t, s.DeleteRange(1, 100))
	must(t, s.Set(KeyVote, []byte("vote")))
	must(t, s.Close())
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

func TestCheckBolt_AcceptsFilesOfBolt(t *testing.T) {
	for _, noFreelistSync := range []bool{true, false} {
		path := filepath.Join(t.TempDir(), "log.db")
		must(t, os.WriteFile(path, boltFile(t, noFreelistSync), 0o600))
		if holds, err := checkBolt(path); !holds || err != nil {
			t.Errorf("freelist not kept %t: %t, %v", noFreelistSync, holds, err)
		}
	}
}

func TestCheckBolt_EmptyFilesHoldNothing(t *testing.T) {
	for name, content := range map[string][]byte{"empty": {}, "zeros": make([]byte, 16<<10)} {
		path := filepath.Join(t.TempDir(), name)
		must(t, os.WriteFile(path, content, 0o600))
		if holds, err := checkBolt(path); holds || err != nil {
			t.Errorf("%s: %t, %v", name, holds, err)
		}
	}
	if holds, err := checkBolt(filepath.Join(t.TempDir(), "absent")); holds || err != nil {
		t.Errorf("absent: %t, %v", holds, err)
	}
}

func TestCheckBolt_NamesDamage(t *testing.T) {
	whole := boltFile(t, true)
	page := os.Getpagesize()
	for name, c := range map[string]struct {
		harm func(b []byte) []byte
		want string
	}{
		"half of it":  {func(b []byte) []byte { return b[:len(b)/2] }, "it is truncated"},
		"a few bytes": {func(b []byte) []byte { return b[:20] }, "neither of its two headers is valid"},
		"no headers": {func(b []byte) []byte { clear(b[:2*page]); return b },
			"neither of its two headers is valid"},
		"no pages": {func(b []byte) []byte { clear(b[2*page:]); return b }, "is damaged"},
		"another program's": {func([]byte) []byte { return bytes.Repeat([]byte("not bolt"), 4096) },
			"neither of its two headers is valid"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log.db")
			must(t, os.WriteFile(path, c.harm(bytes.Clone(whole)), 0o600))
			_, err := checkBolt(path)
			if !fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), c.want) ||
				!strings.Contains(fault.Text(err), "move its data directory away") {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A file that passes the check must not make bbolt panic, not even on a goroutine of bbolt.
func TestCheckBolt_DamagedFileNeverPanics(t *testing.T) {
	for _, noFreelistSync := range []bool{true, false} {
		whole := boltFile(t, noFreelistSync)
		path := filepath.Join(t.TempDir(), "log.db")
		refused := 0
		for seed := range uint64(100) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			b := bytes.Clone(whole)
			page := os.Getpagesize()
			switch start := rnd.IntN(len(b) / page); seed % 4 {
			case 0: // a copy of another page
				copy(b[start*page:][:page], whole[rnd.IntN(len(b)/page)*page:])
			case 1: // random bytes in a page header or its first elements
				for range 4 {
					b[start*page+rnd.IntN(96)] = byte(rnd.Uint32())
				}
			case 2:
				clear(b[start*page:][:page])
			case 3: // flipped bits anywhere
				for range 20 {
					b[rnd.IntN(len(b))] ^= byte(1 << rnd.IntN(8))
				}
			}
			must(t, os.WriteFile(path, b, 0o600))
			if _, err := checkBolt(path); err != nil {
				refused++
				continue
			}
			useBolt(t, seed, path)
		}
		if refused == 0 {
			t.Error("nothing was refused")
		}
	}
}

// useBolt opens a file with bbolt, reads all of it, and writes to it. It fails the test if bbolt panics.
func useBolt(t *testing.T, seed uint64, path string) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Errorf("seed %d: bbolt panics: %v", seed, p)
		}
	}()
	o := boltOptions()
	o.NoSync = true
	db, err := bbolt.Open(path, 0o600, o)
	if err != nil {
		return
	}
	defer func() { must(t, db.Close()) }()
	err = db.Update(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			n := 0
			if err := b.ForEach(func(_, v []byte) error { n += len(v); return nil }); err != nil {
				return err
			}
			return b.Put([]byte(fmt.Sprint("new", n)), make([]byte, 5000))
		})
	})
	if err != nil {
		t.Logf("seed %d: %v", seed, err)
	}
}

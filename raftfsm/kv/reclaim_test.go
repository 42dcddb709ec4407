package kv_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/kv"
)

// fill stores n values of size random bytes each, so that they do not compress, at the keys k0 and on.
func (r *rig) fill(n, size int) {
	r.t.Helper()
	source := rand.NewChaCha8([32]byte{1})
	value := make([]byte, size)
	for i := range n {
		_, _ = source.Read(value)
		r.one(1, write(set(fmt.Sprint("k", i), string(value))))
	}
}

func (r *rig) deleteFirst(n int) {
	r.t.Helper()
	for i := range n {
		r.one(1, write(del(fmt.Sprint("k", i))))
	}
}

func rigWith(t *testing.T, fs vfs.FS, memTable uint64) *rig {
	t.Helper()
	o := options(t, fs)
	o.MemTable = memTable
	m, err := kv.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return &rig{t: t, Machine: m}
}

func TestReclaim_FreesTheSpaceOfDeletedRecords(t *testing.T) {
	const n, size = 200, 64 << 10
	fs := vfs.NewCrashableMem()
	r := rigWith(t, fs, 1<<20)
	r.fill(n, size)
	if _, err := r.Flush(); err != nil {
		t.Fatal(err)
	}
	full := r.Garbage()
	if full.Total < n*size {
		t.Fatalf("%+v: the values are not on disk", full)
	}
	r.deleteFirst(n - 10)
	if g := r.Garbage(); !g.Unflushed {
		t.Errorf("deletions in memory are not known: %+v", g)
	}
	if err := r.FlushDeletions(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, func() error { // Pebble estimates in the background, and may compact
		if g := r.Garbage(); g.Unflushed || g.Bytes < g.Total/2 && g.Total > full.Total/2 {
			return fmt.Errorf("the garbage is not known: %+v", g)
		}
		return nil
	})
	for _, room := range []uint64{1 << 20, 0} {
		if _, err := r.Reclaim(t.Context(), room); err != nil {
			t.Fatal(err)
		}
	}
	if g := r.Garbage(); g.Total > 12*size || g.Unflushed {
		t.Errorf("%+v is left of %+v", g, full)
	}
	applied := r.Applied()
	left, err := kv.Open(options(t, fs.CrashClone(vfs.CrashCloneCfg{}))) // what is durable
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	for _, m := range []*kv.Machine{r.Machine, left} {
		page, more, err := m.List("s", "", "", 100, 1)
		if err != nil || more || len(page) != 10 || m.Applied() != applied {
			t.Errorf("%d keys at entry %d, want 10 at %d; %v", len(page), m.Applied(), applied, err)
		}
	}
}

func TestReclaim_KeepsWhatAnExportReads(t *testing.T) {
	r := rigWith(t, vfs.NewMem(), 1<<20)
	r.fill(50, 64<<10)
	e, err := r.Export()
	if err != nil {
		t.Fatal(err)
	}
	r.deleteFirst(50)
	if _, err := r.Reclaim(t.Context(), 1<<20); err != nil {
		t.Fatal(err)
	}
	if g := r.Garbage(); g.Total < 50*64<<10 {
		t.Errorf("%+v: records that an export reads are gone", g)
	}
	e.Close()
	testutil.Eventually(t, func() error {
		if _, err := r.Reclaim(t.Context(), 1<<20); err != nil {
			return err
		}
		if g := r.Garbage(); g.Total > 64<<10 {
			return fmt.Errorf("%+v is left", g)
		}
		return nil
	})
}

func TestReclaim_EndsEarly(t *testing.T) {
	r := rigWith(t, vfs.NewMem(), 1<<20)
	r.fill(5, 64<<10)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Reclaim(ctx, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reclaim(t.Context(), 1<<20); !fault.Is(err, fault.Unavailable) {
		t.Errorf("of a closed machine: %v", err)
	}
	if g := r.Garbage(); g != (kv.Garbage{}) {
		t.Errorf("of a closed machine: %+v", g)
	}
}

func TestCut_CoversAllKeysWithoutOverlap(t *testing.T) {
	r := rigWith(t, vfs.NewMem(), 1<<20)
	r.fill(200, 64<<10)
	if _, err := r.Reclaim(t.Context(), 1<<40); err != nil { // so that tables do not overlap
		t.Fatal(err)
	}
	for _, room := range []uint64{0, 1 << 20, 4 << 20, 1 << 40} {
		ranges, first, last := r.CutAt(room)
		for i := range ranges {
			if bytes.Compare(ranges[i][0], ranges[i][1]) >= 0 {
				t.Errorf("room %d: range %d is empty", room, i)
			}
			if i > 0 && !bytes.Equal(ranges[i-1][1], ranges[i][0]) {
				t.Errorf("room %d: a gap before range %d", room, i)
			}
		}
		if !bytes.Equal(ranges[0][0], first) || bytes.Compare(ranges[len(ranges)-1][1], last) <= 0 {
			t.Errorf("room %d: the ranges do not cover the tables", room)
		}
		if room == 1<<40 && len(ranges) != 1 || room == 1<<20 && len(ranges) < 3 {
			t.Errorf("room %d: %d ranges", room, len(ranges))
		}
	}
}

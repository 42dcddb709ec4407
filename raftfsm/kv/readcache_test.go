package kv_test

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// warm reads a key until its record is certainly cached.
func warm(t *testing.T, m *kv.Machine, key string) {
	t.Helper()
	for range 16 {
		if _, err := m.Get("s", key, 0); err != nil {
			t.Fatal(err)
		}
	}
	if kv.CachedReads(m) == 0 {
		t.Fatal("nothing was cached")
	}
}

func TestReadCache_ServesRepeatedReads(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.one(1000, write(set("k", "1")))
	warm(t, r.Machine, "k")
	// A read of this damaged record would fail.
	if err := kv.Put(r.Machine, []byte("\x02s\x00k"), []byte("damage")); err != nil {
		t.Fatal(err)
	}
	r.wantValue("k", "1")
	r.one(1000, write(set("k", "2")))
	r.wantValue("k", "2")
}

func TestReadCache_FollowsWritesExpiryAndRestores(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.one(1000, write(set("changed", "1"), set("deleted", "1"), set("expires", "1", expireAt(2000)), set("kept", "1")))
	for _, key := range []string{"changed", "deleted", "expires", "kept"} {
		warm(t, r.Machine, key)
	}
	r.one(1500, write(set("changed", "2"), del("deleted")))
	r.wantValue("changed", "2")
	r.wantAbsent("deleted")
	r.wantValue("expires", "1")
	r.one(2000, tick())
	r.wantAbsent("expires")
	r.one(2000, expire(10))
	r.wantAbsent("expires")
	r.wantValue("kept", "1")

	source := newRig(t)
	source.one(1000, write(set("kept", "restored")))
	parts, revision := exportAll(t, source.Machine, 1<<20)
	for id := range uint64(2) { // both sets of tables are live in turn
		warm(t, r.Machine, "kept")
		restoreAll(t, r, 2000, 7+id, parts, revision)
		r.wantValue("kept", "restored")
		r.wantAbsent("changed")
		r.one(2000, write(set("kept", "again"), set("changed", "3")))
		r.wantValue("kept", "again")
	}
}

// The cache forgets a record before the batch that changes it is in the database: here the database refuses the batch.
func TestReadCache_ForgetsRecordBeforeItChanges(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.one(1000, write(set("k", "1")))
	warm(t, r.Machine, "k")
	refused := errors.New("refused")
	if err := kv.InstallFailing(r.Machine, r.entry(1000, write(set("k", "2"))), refused); !errors.Is(err, refused) {
		t.Fatal(err)
	}
	if n := kv.CachedReads(r.Machine); n != 0 {
		t.Errorf("%d records are cached, want 0", n)
	}
}

// TestReadCache_ReadsNeverGoBack has one goroutine that raises numbers, and readers that share the highest number that
// any of them has read. No reader may read a lower one afterwards, although records are cached between the writes.
func TestReadCache_ReadsNeverGoBack(t *testing.T) {
	t.Parallel()
	const keys, writes, readers = 4, 3000, 4
	r := newRig(t)
	key := func(i int) string { return "k" + strconv.Itoa(i%keys) }
	ops := make([]command.Op, keys)
	for i := range ops {
		ops[i] = set(key(i), "0")
	}
	r.one(1000, write(ops...))
	var highest [keys]atomic.Int64
	read := func(i int) (seen, got int64) {
		seen = highest[i%keys].Load()
		v, err := r.Get("s", key(i), 0)
		got, bad := strconv.ParseInt(string(v.Value), 10, 64)
		if err != nil || bad != nil {
			t.Errorf("%q: %v, %v", v.Value, err, bad)
		}
		return seen, got
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for id := range readers {
		wg.Go(func() {
			for i := id; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				seen, got := read(i)
				if got < seen {
					t.Errorf("read %d after %d was read", got, seen)
					return
				}
				for got > seen && !highest[i%keys].CompareAndSwap(seen, got) {
					seen = highest[i%keys].Load()
				}
			}
		})
	}
	cached := 0
	for i := 1; i < writes; i++ {
		r.one(1000, write(set(key(i), strconv.Itoa(i))))
		if _, got := read(i); got != int64(i) {
			t.Errorf("read %d after the write of %d", got, i)
		}
		cached += kv.CachedReads(r.Machine)
	}
	close(done)
	wg.Wait()
	if cached == 0 {
		t.Error("nothing was cached")
	}
}

package kv_test

import (
	"fmt"
	"testing"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

func checked(t *testing.T, m *kv.Machine) {
	t.Helper()
	if err := kv.CheckInvariants(m); err != nil {
		t.Fatal(err)
	}
}

func TestRowCache_ServesRepeatedWrites(t *testing.T) {
	r := newRig(t)
	first := r.one(1000, write(set("k", "1")))
	// A read of this damaged record would fail.
	if err := kv.Put(r.Machine, []byte("\x02s\x00k"), []byte("damage")); err != nil {
		t.Fatal(err)
	}
	second := r.one(1000, write(set("k", "2", ifRevision(first.Revisions[0]))))
	if second.Outcome != kv.Applied {
		t.Fatalf("%+v", second)
	}
	checked(t, r.Machine)
}

func TestRowCache_EvictsOldRowsAndKeepsUsedOnes(t *testing.T) {
	r := newRig(t)
	kv.SetRowBytes(r.Machine, 20*250)
	for i := range 200 {
		r.one(1000, write(set(fmt.Sprint("k", i), "v"), set("hot", "v")))
		if n := kv.Remembered(r.Machine); n > 24 { // a row takes 200 bytes plus its key, and the limit is 5,000 bytes
			t.Fatalf("%d rows are remembered", n)
		}
	}
	checked(t, r.Machine)
	for key, remembered := range map[string]bool{"hot": true, "k199": true, "k0": false} {
		if kv.Remembers(r.Machine, "s", key) != remembered {
			t.Errorf("%s is remembered: %t", key, !remembered)
		}
	}
}

func TestRowCache_DoesNotKeepAbsentKeys(t *testing.T) {
	r := newRig(t)
	r.one(1000, write(set("k", "v")))
	r.one(1000, write(del("k"), del("never")))
	r.one(1000, write(set("later", "v", ifRevision(77))))
	for key, remembered := range map[string]bool{"k": true, "never": false, "later": false} {
		if kv.Remembers(r.Machine, "s", key) != remembered {
			t.Errorf("%s is remembered: %t", key, !remembered)
		}
	}
	if res := r.one(1000, write(set("k", "v", ifAbsent))); res.Outcome != kv.Applied {
		t.Errorf("a key that was deleted counts as there: %+v", res)
	}
	checked(t, r.Machine)
}

func TestRowCache_DoesNotAliasEntries(t *testing.T) {
	r := newRig(t)
	e := r.entry(1000, write(set("k1", "v"), set("k2", "v")))
	if res := r.Apply([]kv.Entry{e}); res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	clear(e.Data)
	checked(t, r.Machine)
	if n := kv.Remembered(r.Machine); n != 2 {
		t.Errorf("%d rows are remembered, not 2", n)
	}
}

func TestRowCache_IsEmptyAfterRestore(t *testing.T) {
	source := newRig(t)
	source.one(1000, write(set("kept", "v")))
	parts, revision := exportAll(t, source.Machine, 1<<20)

	r := newRig(t)
	old := r.one(1000, write(set("kept", "old"), set("gone", "old")))
	restoreAll(t, r, 2000, 7, parts, revision)
	checked(t, r.Machine)
	for _, q := range []command.Request{
		write(set("kept", "x", ifRevision(old.Revisions[0]))),
		write(set("gone", "x", ifRevision(old.Revisions[1]))),
	} {
		if res := r.one(2000, q); res.Outcome != kv.Conflict {
			t.Errorf("a write that expects a revision from before the restore: %+v", res)
		}
	}
	r.one(2000, write(set("gone", "new")))
	checked(t, r.Machine)
}

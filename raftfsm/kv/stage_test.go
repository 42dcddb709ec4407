package kv_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

func step(s command.Step, id, part uint64) command.Request {
	return command.Request{Kind: command.KindRestore, Restore: &command.Restore{Step: s, ID: id, Part: part}}
}

func chunk(id, part uint64, e kv.Exported) command.Request {
	r := step(command.StepChunk, id, part)
	r.Ops, r.Restore.Remembered = e.Records, e.Remembered
	return r
}

// exportAll reads a machine in parts of about size bytes.
func exportAll(t testing.TB, m *kv.Machine, size int) (parts []kv.Exported, revision uint64) {
	t.Helper()
	e, err := m.Export()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for more := true; more; {
		var p kv.Exported
		if p, more, err = e.Next(size); err != nil {
			t.Fatal(err)
		}
		parts = append(parts, p)
	}
	return parts, e.Revision
}

// restoreAll replaces all data of r with parts.
func restoreAll(t testing.TB, r *rig, stamp, id uint64, parts []kv.Exported, revision uint64) {
	t.Helper()
	begin := step(command.StepBegin, id, 0)
	begin.Restore.Revision = revision
	requests := []command.Request{begin}
	for i, p := range parts {
		requests = append(requests, chunk(id, uint64(i), p))
	}
	for _, q := range append(requests, step(command.StepCommit, id, uint64(len(parts)))) {
		if res := r.one(stamp, q); res.Outcome != kv.Applied {
			t.Fatalf("step %d part %d: %s", q.Restore.Step, q.Restore.Part, res.Outcome)
		}
	}
}

func TestRestore_ReplacesEverythingWithUnusedRevisions(t *testing.T) {
	source := newRig(t)
	given := map[uint64]bool{}
	note := func(res kv.Result) kv.Result {
		for _, rev := range res.Revisions {
			if rev != 0 && given[rev] {
				t.Errorf("revision %d was given twice", rev)
			}
			given[rev] = true
		}
		return res
	}
	for i := range 50 {
		note(source.one(1000, write(set(fmt.Sprint("k", i), fmt.Sprint("v", i)))))
	}
	note(source.one(1000, write(set("bin", "\x00\xff", func(o *command.Op) { o.ContentType = "a/b" }),
		set("later", "x", expireAt(9000)), set("due", "x", expireAt(1001)))))
	note(source.one(1000, withClient(write(set("c", "1")), "before")))
	source.one(2000, tick())
	parts, revision := exportAll(t, source.Machine, 100)
	if len(parts) < 10 {
		t.Fatalf("%d parts of 100 bytes", len(parts))
	}

	target := newRig(t)
	for i := range 30 {
		note(kv.Result{Revisions: target.one(3000, write(set(fmt.Sprint("k", i), "other"))).Revisions[:0]})
	}
	target.one(3000, write(set("only here", "x", ttl(500))))
	target.one(3000, withClient(write(set("c", "2")), "after"))
	restoreAll(t, target, 3000, 77, parts, revision)
	target.check()
	if at := target.Restored(); at != target.Applied() {
		t.Errorf("Restored() = %d, applied %d", at, target.Applied())
	}
	for i := range 50 {
		target.wantValue(fmt.Sprint("k", i), fmt.Sprint("v", i))
	}
	target.wantAbsent("only here")
	target.wantAbsent("due")
	if v := target.get("bin", 0); string(v.Value) != "\x00\xff" || v.ContentType != "a/b" {
		t.Errorf("binary value: %+v", v)
	}
	if v := target.get("later", 8999); !v.Found || v.ExpireAt != 9000 {
		t.Errorf("expiring value: %+v", v)
	}
	found, _, err := target.List("s", "", "", 1000, 0)
	if err != nil || len(found) != 53 {
		t.Fatalf("%d keys, %v", len(found), err)
	}
	for _, f := range found {
		if f.Revision <= 1<<40 || given[f.Revision] {
			t.Errorf("key %s has revision %d", f.Key, f.Revision)
		}
		given[f.Revision] = true
	}
	note(target.one(3000, write(set("new", "x"))))
	if res := target.one(3000, withClient(write(set("c", "1")), "before")); !res.Replayed || res.Outcome != kv.Applied {
		t.Errorf("a request the backup knows was decided again: %+v", res)
	}
	if res := target.one(3000, withClient(write(set("c", "2")), "after")); res.Replayed || res.Outcome != kv.Applied {
		t.Errorf("a request whose effect is lost counts as done: %+v", res)
	}
	target.check()
	if res := target.one(9500, expire(100)); res.Expired != 1 {
		t.Errorf("%d items were removed, want the one that had become due", res.Expired)
	}
	target.check()
}

func TestRestore_RefusesRetriesOfEarlierRequests(t *testing.T) {
	fs := vfs.NewMem()
	r := rigOn(t, fs)
	r.do(1, write(set("k", "backup")))
	parts, revision := exportAll(t, r.Machine, 1000)
	o := r.register(1, "node/boot")
	if res := r.one(1, withID(write(set("k", "x")), o, 2, 0)); res.Outcome != kv.Applied {
		t.Fatal(res)
	}
	restoreAll(t, r, 1, 5, parts, revision)
	again := func() {
		t.Helper()
		if res := r.one(1, withID(write(set("k", "x")), o, 2, 0)); res.Outcome != kv.Stale {
			t.Errorf("a retry of what was replaced: %s", res.Outcome)
		}
		r.check()
	}
	again()
	flush(t, r.Machine)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := kv.Open(options(t, fs))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r.Machine = m
	again()
	r.wantValue("k", "backup")
	if res := r.one(1, withID(write(set("k", "late")), o, 1, 0)); res.Outcome != kv.Applied {
		t.Errorf("a request in flight during the restore: %s", res.Outcome)
	}
	r.wantValue("k", "late")
}

func TestRestore_StepsAreRepeatableAndOrdered(t *testing.T) {
	r := newRig(t)
	part := kv.Exported{Records: []command.Op{set("a", "1")}}
	for i, c := range []struct {
		stamp uint64
		step  command.Request
		want  kv.Outcome
	}{
		{1, chunk(7, 0, part), kv.Stale},
		{1, step(command.StepCommit, 7, 0), kv.Stale},
		{1, step(command.StepBegin, 7, 0), kv.Applied},
		{1, step(command.StepBegin, 7, 0), kv.Applied},
		{1, step(command.StepBegin, 8, 0), kv.Conflict},
		{1, chunk(7, 1, part), kv.Rejected},
		{1, chunk(7, 0, part), kv.Applied},
		{1, chunk(7, 0, part), kv.Applied},
		{1, step(command.StepCommit, 7, 2), kv.Rejected},
		{kv.StageHold, chunk(8, 0, part), kv.Stale},
		{kv.StageHold + 1, step(command.StepBegin, 8, 0), kv.Applied}, // restore 7 has had no step for StageHold
		{kv.StageHold + 1, step(command.StepCommit, 7, 1), kv.Stale},
		{kv.StageHold + 1, step(command.StepAbort, 7, 0), kv.Stale},
		{kv.StageHold + 1, chunk(8, 0, part), kv.Applied},
		{kv.StageHold + 1, step(command.StepCommit, 8, 1), kv.Applied},
		{kv.StageHold + 1, step(command.StepCommit, 8, 1), kv.Applied},
		{kv.StageHold + 1, step(command.StepBegin, 8, 0), kv.Stale},
	} {
		if got := r.one(c.stamp, c.step); got.Outcome != c.want {
			t.Errorf("step %d: %s, want %s", i, got.Outcome, c.want)
		}
		r.check()
	}
	r.wantValue("a", "1")
	if k := r.Stats().Keys; k != 1 {
		t.Errorf("%d keys", k)
	}
	two := r.do(kv.StageHold+1, write(set("b", "1")), step(command.StepBegin, 9, 0))
	if two[0].Outcome != kv.Applied || two[1].Outcome != kv.Rejected {
		t.Errorf("a step beside another request: %+v", two)
	}
}

// Revisions stay below the bit that marks the last change of a request. So watches and later restores still work.
func TestRestore_BoundsRevision(t *testing.T) {
	for revision, want := range map[uint64]kv.Outcome{
		kv.MaxBackupRevision: kv.Applied,
		3 << 61:              kv.Applied,
		3<<61 + 1:            kv.Rejected,
		1<<63 - 1:            kv.Rejected,
		1<<64 - 1:            kv.Rejected,
	} {
		begin := step(command.StepBegin, 7, 0)
		begin.Restore.Revision = revision
		if res := newRig(t).one(1, begin); res.Outcome != want {
			t.Errorf("revision %d: %s, want %s", revision, res.Outcome, want)
		}
	}
	r := newRig(t)
	parts := []kv.Exported{{Records: []command.Op{set("app||a", "1")}}}
	for id := range uint64(3) {
		restoreAll(t, r, 1, id+1, parts, kv.MaxBackupRevision)
		from := r.one(1, watch("app")).Revisions[0]
		r.one(1, write(set("app||a", "2")))
		if items := r.changes("app", from).Items; len(items) != 1 || !items[0].Last {
			t.Errorf("after restore %d a watcher gets %+v", id+1, items)
		}
		r.check()
	}
}

// replacedTables returns the records of the tables that a restore replaces, of both sets.
func replacedTables(t testing.TB, m *kv.Machine) []string {
	t.Helper()
	lines, err := kv.Dump(m)
	must(t, err)
	return slices.DeleteFunc(lines, func(l string) bool { return !strings.ContainsAny(l[1:2], "2367") })
}

// SystemStore belongs to the cluster and not to the users' data.
func TestRestore_KeepsSystemStore(t *testing.T) {
	system := func(key string, change ...func(*command.Op)) command.Op {
		o := set(key, "{}", change...)
		o.Store = kv.SystemStore
		return o
	}
	source, target := newRig(t), newRig(t)
	source.do(1, write(set("k", "v"), system("removed/theirs")))
	parts, revision := exportAll(t, source.Machine, 1000)
	for _, p := range parts {
		for _, r := range p.Records {
			if r.Store == kv.SystemStore {
				t.Errorf("%s is in the export", r.Key)
			}
		}
	}
	parts[0].Records = append(parts[0].Records, system("removed/forged"))
	target.do(1, write(system("removed/ours"), system("passing", expireAt(9))))
	restoreAll(t, target, 1, 4, parts, revision)
	target.check()
	list, _, err := target.List(kv.SystemStore, "", "", 10, 0)
	if err != nil || len(list) != 2 || list[0].Key != "passing" || list[1].Key != "removed/ours" {
		t.Errorf("%+v, %v", list, err)
	}
	target.wantValue("k", "v")
	target.do(10, expire(10))
	target.check()
	if keys := target.Stats().Keys; keys != 2 {
		t.Errorf("%d keys are stored", keys)
	}
}

func TestRestore_AbandonedIsRemoved(t *testing.T) {
	r := newRig(t)
	r.do(1, write(set("k", "v")))
	before := replacedTables(t, r.Machine)
	r.do(1, step(command.StepBegin, 7, 0))
	r.do(1, chunk(7, 0, kv.Exported{Records: []command.Op{set("a", "1", expireAt(9))}}))
	if due, ok := r.NextDue(); !ok || due != 1+kv.StageLife {
		t.Errorf("next due at %d %t", due, ok)
	}
	if res := r.one(1+kv.StageLife, expire(1)); res.Expired != 1 {
		t.Errorf("%+v", res)
	}
	if d := cmp.Diff(before, replacedTables(t, r.Machine)); d != "" {
		t.Error(d)
	}
	r.wantAbsent("a")
	if _, ok := r.NextDue(); ok {
		t.Error("something is still due")
	}
}

// The state must depend on the entries alone, not on how they are grouped or on restarts.
func TestRestore_StateDoesNotDependOnGrouping(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var entries []kv.Entry
		add := func(r ...command.Request) {
			entries = append(entries, entryOf(t, uint64(len(entries)+1), 1000+uint64(len(entries))*3000, r...))
		}
		add(command.Request{Kind: command.KindRegister, Name: "n"})
		ids, part := uint64(0), uint64(0)
		for range 120 {
			key := fmt.Sprint("k", rnd.IntN(12))
			switch rnd.IntN(10) {
			case 0:
				ids, part = ids+1, 0
				add(step(command.StepBegin, ids+1, 0))
			case 1, 2, 3:
				add(chunk(ids+1, part, kv.Exported{
					Records: []command.Op{set(fmt.Sprint("k", part), fmt.Sprint("restored ", ids, part),
						expireAt(uint64(rnd.IntN(400_000))))},
					Remembered: []command.Remembered{{Key: "\x03app" + strconv.Itoa(int(part)), ExpireAt: 1 << 40,
						Fingerprint: 1, Result: []byte{1, 0, 0, 0}}},
				}))
				part++
			case 4:
				add(step(command.StepCommit, ids+1, part))
			case 5:
				add(expire(3))
			case 6:
				add(withID(write(set(key, "w")), 1, uint64(1+rnd.IntN(9)), 0),
					withClient(write(set(key, "c")), strconv.Itoa(rnd.IntN(3))))
			case 7:
				add(write(set(key, "x", ifAbsent)), write(del(fmt.Sprint("k", rnd.IntN(12)))))
			default:
				add(write(set(key, "y", ttl(uint64(1+rnd.IntN(20_000))))))
			}
		}
		one := newRig(t)
		for _, e := range entries {
			one.Apply([]kv.Entry{e})
		}
		one.check()
		fs := vfs.NewMem()
		m := rigOn(t, fs).Machine
		for rest := entries; len(rest) > 0; {
			n := min(1+rnd.IntN(20), len(rest))
			for _, res := range m.Apply(rest[:n]) {
				if res.Err != nil {
					t.Fatal(res.Err)
				}
			}
			rest = rest[n:]
			if rnd.IntN(4) == 0 {
				flush(t, m)
				must(t, m.Close())
				var err error
				if m, err = kv.Open(options(t, fs)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if d := cmp.Diff(dump(t, one.Machine), dump(t, m)); d != "" {
			t.Fatalf("seed %d: one by one and in groups differ:\n%s", seed, d)
		}
		must(t, m.Close())
	}
}

func must(t testing.TB, err error) { t.Helper(); testutil.Must(t, err) }

func TestRestore_ReadersSeeStateBeforeOrAfter(t *testing.T) {
	r := newRig(t)
	const keys = 40
	full := func(v string) kv.Exported {
		var e kv.Exported
		for i := range keys {
			e.Records = append(e.Records, set(fmt.Sprintf("k%02d", i), v))
		}
		return e
	}
	kept := set("kept", "{}")
	kept.Store = kv.SystemStore
	r.do(1, write(kept))
	restoreAll(t, r, 1, 1, []kv.Exported{full("1")}, 0)
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for i := range 4 {
		readers.Go(func() {
			last := 0
			for {
				select {
				case <-stop:
					return
				default:
				}
				v, err := r.Get("s", fmt.Sprintf("k%02d", i), 0)
				many, err2 := r.GetMany("s", []string{"k00", "k39"}, 0)
				list, _, err3 := r.List("s", "", "", 1000, 0)
				system, err4 := r.Get(kv.SystemStore, kept.Key, 0)
				if err != nil || err2 != nil || err3 != nil || err4 != nil {
					t.Error(err, err2, err3, err4)
					return
				}
				if !system.Found {
					t.Error("a record of the cluster was not found during a restore")
					return
				}
				n, _ := strconv.Atoi(string(v.Value))
				if !v.Found || n < last || len(list) != keys || string(many[0].Value) != string(many[1].Value) ||
					!many[0].Found {
					t.Errorf("%+v after %d, %d keys, %s and %s", v, last, len(list), many[0].Value, many[1].Value)
					return
				}
				last = n
			}
		})
	}
	for i := range uint64(60) {
		restoreAll(t, r, 1, i+2, []kv.Exported{full(fmt.Sprint(i + 2))}, 0)
	}
	close(stop)
	readers.Wait()
}

// A reader may be suspended while two restores run. The first set of tables is the live one again then, and a reader
// that compared only the sets would return what it found in a set that was being replaced.
func TestRestore_NoEraComesBack(t *testing.T) {
	r := newRig(t)
	seen := map[uint64]bool{r.Era(): true}
	for i := range uint64(6) {
		restoreAll(t, r, 1, i+1, []kv.Exported{{Records: []command.Op{set("k", "v")}}}, 0)
		if seen[r.Era()] {
			t.Fatalf("restore %d returned to era %d", i+1, r.Era())
		}
		seen[r.Era()] = true
		if v, err := r.Get("s", "k", 0); err != nil || !v.Found {
			t.Fatalf("after restore %d: %+v, %v", i+1, v, err)
		}
	}
}

func TestExport_IsOneSnapshotAndDoesNotBlock(t *testing.T) {
	r := newRig(t)
	for i := range 100 {
		r.do(1, write(set(fmt.Sprintf("k%03d", i), "old")))
	}
	e, err := r.Export()
	must(t, err)
	defer e.Close()
	if _, more, err := e.Next(50); err != nil || !more {
		t.Fatal(more, err)
	}
	for i := range 100 {
		r.do(1, write(set(fmt.Sprintf("k%03d", i), "new")))
	}
	p, _, err := e.Next(1 << 20)
	must(t, err)
	for _, o := range p.Records {
		if string(o.Value) != "old" {
			t.Fatalf("%s is from after the export began", o.Key)
		}
	}
	if e.Applied != 100 || len(p.Records) < 90 {
		t.Errorf("applied %d, %d records", e.Applied, len(p.Records))
	}
	must(t, r.Close()) // with the export open
	if _, _, err := e.Next(1); !fault.Is(err, fault.Unavailable) {
		t.Errorf("after Close: %v", err)
	}
}

func TestRestore_DatabaseReopens(t *testing.T) {
	fs := vfs.NewMem()
	r := rigOn(t, fs)
	r.do(1, write(set("old", "x")))
	restoreAll(t, r, 1, 3, []kv.Exported{{Records: []command.Op{set("k", "v")}}}, 9)
	r.do(1, step(command.StepBegin, 4, 0))
	flush(t, r.Machine)
	want := dump(t, r.Machine)
	must(t, r.Close())
	m, err := kv.Open(options(t, fs))
	must(t, err)
	defer m.Close()
	if d := cmp.Diff(want, dump(t, m)); d != "" {
		t.Error(d)
	}
	r.Machine = m
	r.wantValue("k", "v")
	r.wantAbsent("old")
	if m.Restored() == 0 {
		t.Error("the restore is forgotten")
	}
}

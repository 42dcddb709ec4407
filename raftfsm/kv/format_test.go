package kv_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The golden file holds every kind of record. Databases on disk have these bytes and all replicas
// must compute this hash. A difference needs a new format version.
func TestTables_MatchGoldenFile(t *testing.T) {
	r := newRig(t)
	o := r.register(1_764_000_000_000, "node-a/boot-1")
	r.do(1_764_000_000_100,
		withID(write(set("k1", `{"n":1}`), set("k2", "2", ttl(60_000)), del("k3")), o, 1, 0),
		withID(write(set("k1", "x", ifAbsent)), o, 3, 0),
		withClient(write(set("k4", "\x00\xff", func(o *command.Op) { o.ContentType = "application/octet-stream" })),
			"client-1"),
		withClient(write(set("k1", "x", ifAbsent)), "client-2"),
	)
	r.do(1_764_000_000_200, withID(expire(0), o, 4, 1), write(set("k5", "v", expireAt(1_764_000_009_999))))
	lines := dump(t, r.Machine)
	index, hash := r.Hash()
	lines = append(lines, fmt.Sprintf("hash %d %016x", index, hash))
	got := strings.Join(lines, "\n") + "\n"
	path := filepath.Join("testdata", "tables.golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (run with -update to write it)", err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Error(d)
	}
}

// Replicas that disagree on one of these numbers reach different states.
func TestFormat_NumbersDoNotChange(t *testing.T) {
	got := map[string]uint64{
		"FormatVersion": kv.FormatVersion, "StageHold": kv.StageHold,
		"StageLife": kv.StageLife, "PebbleFormat": kv.PebbleFormat,
		"MaxOpenSeq": kv.MaxOpenSeq, "MaxOrigins": kv.MaxOrigins, "MaxClientResults": kv.MaxClientResults,
		"MaxExpire": kv.MaxExpire, "MaxTerms": kv.MaxTerms, "OriginLife": kv.OriginLife,
		"OriginRefresh": kv.OriginRefresh,
		"Applied":       uint64(kv.Applied), "Conflict": uint64(kv.Conflict), "Stale": uint64(kv.Stale),
		"Rejected": uint64(kv.Rejected),
	}
	want := map[string]uint64{
		"FormatVersion": 1, "StageHold": 10_000, "StageLife": 600_000, "PebbleFormat": 21,
		"MaxOpenSeq": 65_536, "MaxOrigins": 65_536, "MaxClientResults": 1_000_000,
		"MaxExpire": 65_536, "MaxTerms": 1024, "OriginLife": 86_400_000, "OriginRefresh": 3_600_000,
		"Applied": 1, "Conflict": 2, "Stale": 3, "Rejected": 4,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestMachine_OnRealDiskReopensAndLeavesNoGoroutines(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	o := options(t, nil)
	o.Dir = filepath.Join(t.TempDir(), "a", "db")
	m, err := kv.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, Machine: m}
	r.do(1, write(set("k", "stored")))
	flush(t, m)
	r.do(1, write(set("k", "lost"))) // the log would replay it
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if m, err = kv.Open(o); err != nil {
		t.Fatal(err)
	}
	r = &rig{t: t, Machine: m}
	r.wantValue("k", "stored")
	if r.Applied() != 1 {
		t.Errorf("applied %d, want 1", r.Applied())
	}
	if _, err := kv.Open(o); err == nil {
		t.Error("the directory was opened twice")
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestOutcome_String(t *testing.T) {
	for o, want := range map[kv.Outcome]string{
		kv.Applied: "applied", kv.Conflict: "conflict", kv.Stale: "stale", kv.Rejected: "rejected", 0: "unknown",
	} {
		if got := o.String(); got != want {
			t.Errorf("Outcome(%d) is %q, want %q", o, got, want)
		}
	}
}

package kv_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

const markPeriod = 1000

// marking returns a machine that records its digest for every second of cluster time.
func marking(t *testing.T, fs vfs.FS, open func(kv.Options) (*kv.Machine, error)) *rig {
	t.Helper()
	o := options(t, fs)
	o.MarkPeriod = markPeriod
	m, err := open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return &rig{t: t, Machine: m}
}

func unpaced(int) error { return nil }

func verify(t *testing.T, m *kv.Machine, pace func(int) error) kv.Verified {
	t.Helper()
	v, err := m.Verify(pace)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// someEntries returns n entries with writes and expiries, 300 ms apart.
func someEntries(t *testing.T, n int) (entries []kv.Entry) {
	for i := range n {
		k := fmt.Sprintf("k%d", i%7)
		r := write(set(k, strings.Repeat("v", i), ttl(uint64(i%5)*700)), del(fmt.Sprintf("k%d", (i+3)%11)))
		if i%6 == 5 {
			r = expire(2)
		}
		entries = append(entries, entryOf(t, uint64(i+1), uint64(1_000_000+300*i), r, write(set("fixed", k, ifAbsent))))
	}
	return entries
}

func apply(t *testing.T, m *kv.Machine, entries ...kv.Entry) {
	t.Helper()
	for _, r := range m.Apply(entries) {
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
}

func TestMarks_AreEqualOnAllReplicas(t *testing.T) {
	entries, fs := someEntries(t, 40), vfs.NewMem()
	one, all, restarted := marking(t, vfs.NewMem(), kv.Create), marking(t, vfs.NewMem(), kv.Create), marking(t, fs,
		kv.Create)
	for _, e := range entries {
		apply(t, one.Machine, e)
	}
	apply(t, all.Machine, entries...)
	want := one.Marks()
	if len(want) != 12 || !slices.Equal(want, all.Marks()) {
		t.Errorf("marks %v and, in one Apply, %v; want 12 equal ones", want, all.Marks())
	}
	apply(t, restarted.Machine, entries[:17]...)
	if _, err := restarted.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := restarted.Close(); err != nil {
		t.Fatal(err)
	}
	restarted = marking(t, fs, kv.Open)
	if restarted.Marks() != nil {
		t.Errorf("marks %v right after a start", restarted.Marks())
	}
	apply(t, restarted.Machine, entries...)
	if got := restarted.Marks(); len(got) == 0 || !slices.Equal(got, want[len(want)-len(got):]) {
		t.Errorf("marks %v after a restart, want the last of %v", got, want)
	}
	for range 20 { // only the newest are kept
		one.do(one.Clock(), write(set("more", "x")))
		now := one.Clock() + markPeriod
		if !one.MarkDue(now) || one.MarkDue(one.Clock()) {
			t.Fatal("a mark is due when time has come to the next multiple of the period, and not before")
		}
		one.do(now, tick())
	}
	if got := one.Marks(); len(got) != 16 || got[15].Index != one.Applied() {
		t.Errorf("%d marks, the last at %d, want 16 up to %d", len(got), got[len(got)-1].Index, one.Applied())
	}
	if one.MarkDue(one.Clock() + 10*markPeriod) {
		t.Error("a mark is due although nothing was applied since the last one")
	}
}

// Marks differ if a machine has stored a wrong value, although its log, results and counters are right. Later damage
// of a record on disk does not change marks until a write replaces the record. If the row is still cached, the cache
// has the right hash, and the replacement repairs the damage.
func TestMarks_ShowWrongRecord(t *testing.T) {
	for _, c := range []struct{ replaced, remembered bool }{{}, {replaced: true}, {true, true}} {
		replaced := c.replaced && !c.remembered
		good, bad := marking(t, vfs.NewMem(), kv.Create), marking(t, vfs.NewMem(), kv.Create)
		if !c.remembered {
			kv.SetRowBytes(bad.Machine, 0)
		}
		run := func(stamp uint64, r command.Request) {
			apply(t, good.Machine, good.entry(stamp, r))
			apply(t, bad.Machine, bad.entry(stamp, r))
		}
		run(1_000_000, write(set("a", "1"), set("b", "2")))
		raw := slices.Clone([]byte("\x10\x00\x00\x00\x00\x00\x00\x00\x011"))
		raw[len(raw)-1] ^= 4
		if err := kv.Put(bad.Machine, []byte("\x02s\x00a"), raw); err != nil { // one wrong bit on disk
			t.Fatal(err)
		}
		if v := bad.get("a", 0); string(v.Value) != "5" {
			t.Fatalf("the damage is not where it should be: %+v", v)
		}
		if v := verify(t, bad.Machine, unpaced); !strings.Contains(v.Wrong, "the hash of the stored records is") ||
			v.Keys != 2 {
			t.Errorf("damage at rest verifies as %+v", v)
		}
		if c.replaced {
			run(1_000_100, write(set("a", "3")))
			switch wrong := verify(t, bad.Machine, unpaced).Wrong; {
			case wrong == "" && replaced:
				t.Error("nothing is wrong any more once the damaged record was replaced: the sum took its hash " +
					"for the right one")
			case wrong != "" && !replaced:
				t.Errorf("the row was remembered as it should be, and still: %s", wrong)
			}
		}
		run(1_001_000, tick())
		last := func(r *rig) kv.Mark { m := r.Marks(); return m[len(m)-1] }
		if same := last(good) == last(bad); same == replaced {
			t.Errorf("replaced=%v: marks %v and %v", replaced, last(good), last(bad))
		}
	}
	good, bad := marking(t, vfs.NewMem(), kv.Create), marking(t, vfs.NewMem(), kv.Create)
	for _, r := range []*rig{good, bad} {
		r.do(1_000_000, write(set("a", "1")))
	}
	if err := kv.Slip(bad.Machine, "s", "a", []byte("x")); err != nil { // a valid record, but the wrong value
		t.Fatal(err)
	}
	if v := verify(t, bad.Machine, unpaced); v.Wrong != "" {
		t.Errorf("a slip is not damage at rest: %+v", v)
	}
	for _, r := range []*rig{good, bad} {
		r.do(1_001_000, tick())
	}
	if slices.Equal(good.Marks(), bad.Marks()) {
		t.Error("a machine that stored another value has the same mark")
	}
}

func TestVerify_ReadsOneStateDuringWrites(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	r := newRig(t)
	r.do(1_000_000, write(set("a", big), set("b", big), set("c", big), set("d", "1", ttl(5000))))
	paces := 0
	v := verify(t, r.Machine, func(int) error { // Verify has begun to read
		paces++
		r.do(1_001_100+uint64(paces), write(set(fmt.Sprintf("new%d", paces), "n"),
			set("c", fmt.Sprint(paces)), del("b")))
		return nil
	})
	if v.Wrong != "" || v.Keys != 4 || paces == 0 {
		t.Errorf("verified %+v with %d pauses", v, paces)
	}
	if v := verify(t, r.Machine, unpaced); v.Wrong != "" || v.Keys == 4 {
		t.Errorf("verified %+v after the writes", v)
	}
}

func TestVerify_EndsWithPaceErrorOrClose(t *testing.T) {
	r := newRig(t)
	r.do(1, write(set("a", strings.Repeat("x", 2<<20))))
	enough := errors.New("enough")
	if _, err := r.Verify(func(int) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("got %v, want what pace returned", err)
	}
	closed := make(chan error, 1)
	_, err := r.Verify(func(int) error {
		go func() { closed <- r.Close() }()
		for !fault.Is(r.Wait(t.Context(), 99), fault.Unavailable) { // until Close has begun
			continue
		}
		return nil
	})
	if !fault.Is(err, fault.Unavailable) {
		t.Errorf("got %v, want that the machine is closed", err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if r.fatal.count() != 0 {
		t.Errorf("the machine gave up: %v", r.fatal.told)
	}
}

// BenchmarkApplySums measures the cost of the set hash.
func BenchmarkApplySums(b *testing.B) {
	for _, size := range []int{256, 1024, 65536} {
		for _, off := range []bool{true, false} {
			b.Run(fmt.Sprintf("value=%d/sums=%v", size, !off), func(b *testing.B) {
				m := benchMachine(b)
				fill(b, m)
				if off {
					kv.Unhashed(m)
				}
				n := min(64, 1<<20/size)
				var entries [16][]byte
				for e := range entries {
					entries[e] = encodeSets(b, 1, n,
						func(i int) string { return benchKey((e*97 + i*31) % benchKeys) }, size)
				}
				b.ResetTimer()
				before := cpuTime(b)
				for i := 0; b.Loop(); i++ {
					if r := m.Apply([]kv.Entry{{Index: m.Applied() + 1, Term: 1,
						Data: entries[i%len(entries)]}}); r[0].Err != nil {
						b.Fatal(r[0].Err)
					}
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N*n), "cpu-ns/set")
			})
		}
	}
}

// cpuTime returns the CPU time of this process. Other processes affect CPU time less than wall time.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkMember measures the hash of one record. A write of an existing key computes two.
func BenchmarkMember(b *testing.B) {
	for _, size := range []int{256, 1024, 65536} {
		b.Run(fmt.Sprintf("value=%d", size), func(b *testing.B) {
			key, value := []byte("default/orders\x00shop||customer-00000001"), make([]byte, size)
			before := cpuTime(b)
			for b.Loop() {
				kv.Member(key, value)
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/record")
		})
	}
}

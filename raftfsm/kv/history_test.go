package kv_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

func watch(prefix string, change ...func(*command.Watch)) command.Request {
	w := &command.Watch{Store: "s", Prefix: prefix, Age: 600_000, Bytes: 64 << 20}
	for _, c := range change {
		c(w)
	}
	return command.Request{Kind: command.KindWatch, Watch: w}
}

func (r *rig) changes(prefix string, after uint64) kv.Changes {
	r.t.Helper()
	c, err := r.Changes("s", prefix, after, 1<<20)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// brief describes changes in one line.
func brief(items []kv.Change) string {
	var b strings.Builder
	for _, c := range items {
		what := "=" + string(c.Value)
		if c.Deleted {
			what = " deleted"
		}
		if c.Expired {
			what = " expired"
		}
		fmt.Fprintf(&b, "%d %s%s", c.Revision, c.Key, what)
		if c.Last {
			b.WriteString(".")
		}
		b.WriteString(" ")
	}
	return strings.TrimSpace(b.String())
}

func TestHistory_HasEveryChangeOnceInOrder(t *testing.T) {
	r := newRig(t)
	r.do(1, write(set("p||old", "0")))
	floor := r.one(2, watch("p")).Revisions[0]
	r.do(3, write(set("p||a", "1"), set("p||a", "2"), del("p||old"), del("p||absent")), write(set("q||x", "0")))
	r.do(4, write(set("p||t", "3", ttl(5))), write(set("p||a", "x", ifRevision(1))), write(del("p||t")))
	r.do(5, write(set("p||b", "4", ttl(5)), set("p||c", "5", ttl(5))))
	r.do(20, write(set("p||c", "6", expireAt(7))), expire(100))
	got := r.changes("p", floor)
	want := "3 p||a=1 4 p||a=2 5 p||old deleted. 7 p||t=3. 8 p||t deleted. 9 p||b=4 10 p||c=5. " +
		"12 p||c expired. 13 p||b expired."
	if d := cmp.Diff(want, brief(got.Items)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got.Seen != 13 || got.Revision != 13 || !got.Kept || got.Floor != floor {
		t.Errorf("got %+v", got)
	}
	r.check()
}

func TestHistory_IsAbsentWithoutWatch(t *testing.T) {
	r := newRig(t)
	r.do(1, write(set("p||a", "1")), write(del("p||a")), write(set("p||a", "2", ttl(1))))
	if res := r.one(5, expire(10)); res.Expired != 1 {
		t.Fatalf("got %+v", res)
	}
	if c := r.changes("p", 0); c.Kept || c.Items != nil || c.Revision != 2 {
		t.Errorf("Changes = %+v; removals take no revision without a watch", c)
	}
	for _, line := range dump(t, r.Machine) {
		if strings.HasPrefix(line, "09") || strings.HasPrefix(line, "0a") || strings.HasPrefix(line, "0b") {
			t.Errorf("stored: %s", line)
		}
	}
}

func TestHistory_IsSwitchedOffWhenNobodyWatches(t *testing.T) {
	r := newRig(t)
	r.do(1, watch("p"), write(set("p||a", "1")))
	due := uint64(1 + 600_000) // the change is too old then
	if at, ok := r.NextDue(); !ok || at > due {
		t.Errorf("NextDue = %d, %v, want %d", at, ok, due)
	}
	r.do(due, expire(10))
	if c := r.changes("p", 2); !c.Kept || c.Floor != 2 || c.Items != nil {
		t.Errorf("after the age: %+v", c)
	}
	r.do(due, watch("p"))
	r.do(1+command.WatchLife, expire(10))
	if c := r.changes("p", 2); !c.Kept {
		t.Error("a history that was extended is off")
	}
	if res := r.one(due+command.WatchLife, expire(10)); res.Expired != 1 {
		t.Errorf("got %+v", res)
	}
	if c := r.changes("p", 2); c.Kept {
		t.Error("a history without watchers is still on")
	}
	if n, size := r.Histories(); n != 0 || size != 0 {
		t.Errorf("%d histories of %d bytes", n, size)
	}
	if _, ok := r.NextDue(); ok {
		t.Error("something is due")
	}
	r.check()
}

func TestHistory_IsBoundedInBytes(t *testing.T) {
	r := newRig(t)
	const bound = 64 << 10
	r.do(1, watch("p", func(w *command.Watch) { w.Bytes = bound }))
	for i := range 1000 {
		r.do(uint64(i)+2, write(set("p||a", strings.Repeat("x", 1000))))
		if _, size := r.Histories(); size > bound {
			t.Fatalf("the history has %d bytes", size)
		}
	}
	if _, size := r.Histories(); size < bound*9/10 {
		t.Errorf("only %d bytes are kept", size)
	}
	r.do(2000, write(set("p||a", strings.Repeat("x", 2*bound))))
	if c := r.changes("p", r.Revision()-1); len(c.Items) != 1 {
		t.Errorf("a request above the bound is not kept: %+v", c.Floor)
	}
	r.check()
}

func TestHistory_EndsWithARestore(t *testing.T) {
	r := newRig(t)
	r.do(1, watch("p"), write(set("p||a", "1")))
	for i, s := range []command.Restore{{Step: command.StepBegin}, {Step: command.StepCommit}} {
		s.ID = 7
		res := r.one(uint64(i)+2, command.Request{Kind: command.KindRestore, Restore: &s})
		if res.Outcome != kv.Applied {
			t.Fatalf("step %d: %+v", i, res)
		}
	}
	if c := r.changes("p", 2); c.Kept || c.Restored == 0 {
		t.Errorf("after the restore: %+v", c)
	}
	r.do(9, watch("p"), write(set("p||a", "2")))
	if c := r.changes("p", 2); !c.Kept || c.Items != nil || c.Floor <= 1<<40 {
		t.Errorf("a position from the time before the restore was served: %+v", c)
	}
	r.check()
}

func TestHistory_IsInCheckpoints(t *testing.T) {
	fs := vfs.NewMem()
	r := rigOn(t, fs)
	r.do(1, watch("p", func(w *command.Watch) { w.Bytes = 6400 }))
	for i := range 50 {
		r.do(uint64(i)+2, write(set(fmt.Sprint("p||", i), strings.Repeat("x", 30))))
	}
	if _, err := r.Checkpoint("copy"); err != nil {
		t.Fatal(err)
	}
	o := options(t, fs)
	o.Dir = "copy"
	m, err := kv.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if d := cmp.Diff(dump(t, r.Machine), dump(t, m)); d != "" {
		t.Errorf("the copy differs:\n%s", d)
	}
	next := entryOf(t, r.Applied()+1, 100, write(set("p||n", "1"), del("p||1")), watch("p"))
	for _, one := range []*kv.Machine{r.Machine, m} {
		if out := one.Apply([]kv.Entry{next}); out[0].Err != nil {
			t.Fatal(out[0].Err)
		}
	}
	if d := cmp.Diff(dump(t, r.Machine), dump(t, m)); d != "" {
		t.Errorf("the copy goes on differently:\n%s", d)
	}
}

func TestListen_NotifiesOfItsPrefixOnly(t *testing.T) {
	r := newRig(t)
	r.do(1, watch("p"), watch("q"))
	p, q := r.Listen("s", "p"), r.Listen("s", "q")
	defer p.Stop()
	defer q.Stop()
	r.do(2, write(set("p||a", "1")))
	r.do(3, write(set("p||a", "2"))) // both changes cause only one notification
	select {
	case <-p.C:
	default:
		t.Error("no notification")
	}
	for name, l := range map[string]*kv.Listener{"p": p, "q": q} {
		select {
		case <-l.C:
			t.Errorf("notification of %s without a change", name)
		default:
		}
	}
}

func TestScan_IsOneState(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.do(uint64(i)+1, write(set(fmt.Sprint("p||", i), "1")))
	}
	s, err := r.Scan("s", "p||")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var keys []string
	for more := true; more; {
		r.do(10, write(set("p||9", "late"), del("p||4")))
		var items []kv.Change
		if items, more, err = s.Next(1); err != nil {
			t.Fatal(err)
		}
		for _, c := range items {
			keys = append(keys, c.Key)
		}
	}
	if want := "p||0 p||1 p||2 p||3 p||4"; strings.Join(keys, " ") != want || s.Revision != 5 {
		t.Errorf("got %v at %d", keys, s.Revision)
	}
}

// BenchmarkApply_Watch measures what a history costs, and that it costs nothing without a watch.
func BenchmarkApply_Watch(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(fmt.Sprint("watched=", on), func(b *testing.B) {
			m := benchMachine(b)
			if on {
				on := watch("shop", func(w *command.Watch) { w.Store = "default/orders" })
				m.Apply([]kv.Entry{entryOf(b, 1, 1, on)})
			}
			data := encodeSets(b, 1, 1, benchKey, 100)
			b.ReportAllocs()
			for b.Loop() {
				m.Apply([]kv.Entry{{Index: m.Applied() + 1, Term: 1, Data: data}})
			}
		})
	}
}

package kv_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// nasty returns keys that are close to each other and to the ends of their tables.
func nasty() []string {
	keys := []string{"\x00", "\x00\x00", "\x01", "a", "a\x00", "a\x00\x00", "a\x00b", "aa", "ab", "a\xff",
		"a\xff\x00", "a\xff\xff", "b", "\xff", "\xff\x00", "\xff\xff", strings.Repeat("\xff", 300)}
	slices.Sort(keys)
	return keys
}

func inStore(o command.Op, store string) command.Op {
	o.Store = store
	return o
}

func TestList_ByteOrderWithinOneStore(t *testing.T) {
	r := newRig(t)
	stores := []string{"s", "s\xff", "s1", "s1\x01", "r", "t"}
	for _, store := range stores {
		var ops []command.Op
		for _, k := range nasty() {
			ops = append(ops, inStore(set(k, store), store))
		}
		slices.Reverse(ops)
		r.do(1, write(ops...))
	}
	for _, store := range stores {
		for _, prefix := range append([]string{""}, nasty()...) {
			for limit := 1; limit <= len(nasty())+1; limit += 4 {
				got := r.pages(store, prefix, limit)
				want := slices.DeleteFunc(nasty(), func(k string) bool { return !strings.HasPrefix(k, prefix) })
				if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
					t.Errorf("List(%q, %q) in pages of %d:\n%s", store, prefix, limit, d)
				}
			}
		}
	}
}

// pages lists everything page by page.
func (r *rig) pages(store, prefix string, limit int) []string {
	r.t.Helper()
	var keys []string
	after := ""
	for {
		items, more, err := r.List(store, prefix, after, limit, 0)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(items) > limit || more && len(items) < limit {
			r.t.Fatalf("a page of %d items, more %v, limit %d", len(items), more, limit)
		}
		for _, i := range items {
			keys = append(keys, i.Key)
		}
		if !more {
			return keys
		}
		after = items[len(items)-1].Key
	}
}

func TestList_StartsAfterMissingKey(t *testing.T) {
	r := newRig(t)
	r.do(1, write(set("b1", "v"), set("b3", "v"), set("c", "v")))
	for after, want := range map[string][]string{
		"": {"b1", "b3"}, "a": {"b1", "b3"}, "b": {"b1",
			"b3"}, "b1": {"b3"}, "b2": {"b3"}, "b3": nil, "c": nil, "z": nil,
	} {
		items, more, err := r.List("s", "b", after, 10, 0)
		if err != nil || more {
			t.Fatalf("after %q: more %v, %v", after, more, err)
		}
		var got []string
		for _, i := range items {
			got = append(got, i.Key)
		}
		if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("after %q:\n%s", after, d)
		}
	}
}

func TestList_SkipsExpiredKeysWithoutCountingThem(t *testing.T) {
	r := newRig(t)
	r.do(100, write(set("a", "12", ttl(5)), set("b", "123"), set("c", "v", ttl(5)), set("d", "v", ttl(50))))
	items, more, err := r.List("s", "", "", 2, 105)
	if err != nil {
		t.Fatal(err)
	}
	want := []kv.Listed{{Key: "b", Revision: 2, Size: 3}, {Key: "d", Revision: 4, ExpireAt: 150, Size: 1}}
	if d := cmp.Diff(want, items); d != "" || more {
		t.Errorf("more %v:\n%s", more, d)
	}
}

func TestReads_CheckArguments(t *testing.T) {
	r := newRig(t)
	// Without the check this would be key "b" of store "s".
	r.do(1, write(set("b\x00c", "v")))
	if _, err := r.Get("s\x00b", "c", 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("Get: %v, want %s", err, fault.Invalid)
	}
	if _, err := r.GetMany("s\x00b", []string{"c"}, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("GetMany: %v, want %s", err, fault.Invalid)
	}
	if _, _, err := r.List("s\x00b", "", "", 1, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("List: %v, want %s", err, fault.Invalid)
	}
	if _, _, err := r.List("s", "", "", 0, 0); !fault.Is(err, fault.Invalid) {
		t.Errorf("List of nothing: %v, want %s", err, fault.Invalid)
	}
}

func TestGet_ReturnsACopy(t *testing.T) {
	r := newRig(t)
	r.do(1, write(set("k", "value", func(o *command.Op) { o.ContentType = "application/octet-stream" })))
	v := r.get("k", 0)
	v.Value[0] = 'V'
	if again := r.get("k", 0); string(again.Value) != "value" || again.ContentType != "application/octet-stream" {
		t.Errorf("the machine holds %q of type %q now", again.Value, again.ContentType)
	}
}

func TestApply_DoesNotKeepEntryBytes(t *testing.T) {
	r := newRig(t)
	e := r.entry(1, command.Request{Kind: command.KindRegister, Name: "name"},
		withClient(write(set("key", "value", ttl(5))), "id"), write(set("key", "other", ifAbsent)))
	first := r.Apply([]kv.Entry{e})
	again := entryOf(t, 2, 1, withClient(write(set("key", "value", ttl(5))), "id"))
	clear(e.Data)
	if key := first[0].Results[2].Key; key != "key" {
		t.Errorf("the conflict names key %q now", key)
	}
	if out := r.Apply([]kv.Entry{again}); !out[0].Results[0].Replayed {
		t.Error("the client id was not kept")
	}
	r.wantValue("key", "value")
	r.check()
}

// A batch is in the database a moment before it is published. A reader that finds it there must
// judge values by the time of the batch, not by the published time.
func TestGet_ValueExpiredInUnpublishedBatch(t *testing.T) {
	r := newRig(t)
	r.do(100, write(set("k", "v", ttl(50)), set("l", "v", ttl(500))))
	publish, err := kv.Install(r.Machine, r.entry(200, write(set("m", "v", ttl(50)))))
	if err != nil {
		t.Fatal(err)
	}
	if r.Applied() != 1 || r.Visible() != 2 {
		t.Errorf("applied %d, visible %d, want 1 and 2", r.Applied(), r.Visible())
	}
	for _, when := range []string{"before", "after"} {
		r.wantAbsent("k")
		r.wantValue("l", "v")
		many, err := r.GetMany("s", []string{"l", "k", "m"}, 0)
		if err != nil || !many[0].Found || many[1].Found || !many[2].Found {
			t.Errorf("%s publishing, GetMany: %+v, %v, want l and m", when, many, err)
		}
		items, _, err := r.List("s", "", "", 5, 0)
		if err != nil || len(items) != 2 {
			t.Errorf("%s publishing, List: %+v, %v, want l and m", when, items, err)
		}
		publish()
	}
}

// Each entry sets one of two keys at the stamp at which the other expires, so exactly one of them
// exists in every state. Readers must never see both or none.
func TestReads_TimeAndDataOfSameState(t *testing.T) {
	r := newRig(t)
	key := func(i uint64) string { return fmt.Sprint("k", i%2) }
	step := func(i uint64) kv.Entry {
		return entryOf(t, i, i*10, write(set(key(i), "v", ttl(10)), set("n", fmt.Sprint(i))))
	}
	r.Apply([]kv.Entry{step(1)})
	const last = 900
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				values, err := r.GetMany("s", []string{"k0", "k1"}, 0)
				if err != nil {
					t.Error(err)
					return
				}
				items, _, err := r.List("s", "k", "", 5, 0)
				if err != nil {
					t.Error(err)
					return
				}
				if values[0].Found == values[1].Found || len(items) != 1 {
					t.Errorf("GetMany found %v and %v, List %d, want exactly one", values[0].Found, values[1].Found,
						len(items))
					return
				}
			}
		})
	}
	for i := uint64(2); i < last; i += 3 {
		r.Apply([]kv.Entry{step(i), step(i + 1), step(i + 2)})
	}
	close(stop)
	wg.Wait()
}

func TestReads_DuringApplyFlushAndClose(t *testing.T) {
	r := newRig(t)
	r.do(1, write(set("k", "v")))
	var wg sync.WaitGroup
	started := make(chan struct{}, 4)
	for range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				if i == 10 {
					started <- struct{}{}
				}
				v, err := r.Get("s", "k", 0)
				if fault.Is(err, fault.Unavailable) {
					return
				}
				if err != nil || !v.Found {
					t.Errorf("Get: %+v, %v", v, err)
					return
				}
				if _, err = r.GetMany("s", []string{"k", "x"}, 0); err == nil {
					_, _, err = r.List("s", "", "", 3, 0)
				}
				if err != nil && !fault.Is(err, fault.Unavailable) {
					t.Error(err)
					return
				}
				r.NextDue()
				r.Stats()
				r.Hash()
			}
		})
	}
	for range 4 {
		<-started
	}
	for i := range uint64(200) {
		r.do(i, write(set("k", "v"), set(fmt.Sprint("k", i), "v", ttl(3))), expire(2))
		if i%50 == 0 {
			flush(t, r.Machine)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
}

// inBubble runs f with a machine in a synctest bubble.
func inBubble(t *testing.T, f func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		f(r)
		_ = r.Close()
	})
}

func TestWait_ReturnsWhenIndexIsApplied(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.do(1, tick())
		if err := r.Wait(r.t.Context(), 1); err != nil {
			r.t.Errorf("an index applied already: %v", err)
		}
		var returned [5]atomic.Bool
		for _, index := range []uint64{2, 2, 3, 4} {
			go func() {
				if err := r.Wait(r.t.Context(), index); err != nil {
					r.t.Error(err)
				}
				returned[index].Store(true)
			}()
		}
		for index := uint64(2); index <= 4; index++ {
			synctest.Wait()
			if returned[index].Load() {
				r.t.Errorf("Wait for %d returned at %d", index, r.Applied())
			}
			r.do(1, tick())
			synctest.Wait()
			if !returned[index].Load() {
				r.t.Errorf("Wait for %d did not return at %d", index, r.Applied())
			}
		}
	})
}

func TestWait_EndsWithContextCloseOrBreakage(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*rig, context.CancelFunc)
		code fault.Code
	}{
		"context": {func(_ *rig, cancel context.CancelFunc) { cancel() }, fault.Timeout},
		"close":   {func(r *rig, _ context.CancelFunc) { _ = r.Close() }, fault.Unavailable},
		"halt": {func(r *rig, _ context.CancelFunc) {
			r.Apply([]kv.Entry{{Index: 1, Data: []byte("x")}})
		}, fault.Unavailable},
	} {
		inBubble(t, func(r *rig) {
			ctx, cancel := context.WithCancel(r.t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- r.Wait(ctx, 9) }()
			synctest.Wait()
			c.end(r, cancel)
			if err := <-done; !fault.Is(err, c.code) {
				r.t.Errorf("%s: %v, want %s", name, err, c.code)
			}
		})
	}
}

func TestMachine_RefusesCallsAfterClose(t *testing.T) {
	r := newRig(t)
	e := r.entry(1, tick())
	for range 2 {
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	calls := map[string]func() error{
		"Apply":      func() error { return r.Apply([]kv.Entry{e})[0].Err },
		"Wait":       func() error { return r.Wait(t.Context(), 5) },
		"Get":        func() error { _, err := r.Get("s", "k", 0); return err },
		"GetMany":    func() error { _, err := r.GetMany("s", []string{"k"}, 0); return err },
		"List":       func() error { _, _, err := r.List("s", "", "", 1, 0); return err },
		"Flush":      func() error { _, err := r.Flush(); return err },
		"Checkpoint": func() error { _, err := r.Checkpoint("copy"); return err },
		"Raise":      func() error { return r.Raise(1) },
		"SetApplied": func() error { return r.SetApplied(1, 1) },
	}
	for name, call := range calls {
		if err := call(); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v, want %s", name, err, fault.Unavailable)
		}
	}
	if _, ok := r.NextDue(); ok {
		t.Error("NextDue has something")
	}
	if d := cmp.Diff(kv.Stats{}, r.Stats()); d != "" {
		t.Error(d)
	}
}

package kv_test

import (
	"math"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

func TestConditions_UseStateBeforeRequest(t *testing.T) {
	r := newRig(t)
	r.do(10, write(set("old", "1"), set("gone", "1", ttl(5)))) // revisions 1 and 2
	never := func(o *command.Op) { o.Cond = command.CondNever }
	cases := []struct {
		name     string
		ops      []command.Op
		conflict string // empty = applied
	}{
		{"right revision", []command.Op{set("old", "2", ifRevision(1))}, ""},
		{"previous revision", []command.Op{set("old", "3", ifRevision(1))}, "old"},
		{"future revision", []command.Op{set("old", "3", ifRevision(99))}, "old"},
		{"absent, key exists", []command.Op{set("old", "3", ifAbsent)}, "old"},
		{"absent, key missing", []command.Op{set("new", "1", ifAbsent)}, ""},
		{"revision, key missing", []command.Op{set("none", "1", ifRevision(1))}, "none"},
		{"never, key missing", []command.Op{set("none", "1", never)}, "none"},
		{"never, key exists", []command.Op{del("old", never)}, "old"},
		{"delete of a wrong revision", []command.Op{del("old", ifRevision(1))}, "old"},
		{"one of several fails", []command.Op{set("x", "1"), set("old", "9", ifAbsent), set("y", "1")}, "old"},
		{"set and create the same key", []command.Op{set("twice", "1"), set("twice", "2", ifAbsent)}, ""},
		{"create the same key twice", []command.Op{set("pair", "1", ifAbsent), set("pair", "2", ifAbsent)}, ""},
		{"delete, then expect what was there", []command.Op{del("new"), set("new", "2", ifRevision(4))}, ""},
	}
	for _, c := range cases {
		res := r.one(10, write(c.ops...))
		want := kv.Applied
		if c.conflict != "" {
			want = kv.Conflict
		}
		if res.Outcome != want || res.Key != c.conflict {
			t.Errorf("%s: %v of %q, want %v of %q", c.name, res.Outcome, res.Key, want, c.conflict)
		}
		if want == kv.Conflict && len(res.Revisions) != 0 {
			t.Errorf("%s: a conflict has revisions %v", c.name, res.Revisions)
		}
	}
	r.wantValue("old", "2")
	r.wantAbsent("x")
	r.wantAbsent("y")
	r.wantValue("twice", "2")
	r.wantValue("pair", "2")
	r.wantValue("new", "2")
	r.check()
}

func TestApply_RequestsOfOneEntrySeeEachOther(t *testing.T) {
	r := newRig(t)
	got := r.do(1,
		write(set("a", "1", ifAbsent)),
		write(set("a", "2", ifAbsent)),
		write(set("a", "3", ifRevision(1))),
		write(del("a", ifRevision(2))),
		write(set("a", "4", ifAbsent)),
	)
	var outcomes []kv.Outcome
	for _, res := range got {
		outcomes = append(outcomes, res.Outcome)
	}
	want := []kv.Outcome{kv.Applied, kv.Conflict, kv.Applied, kv.Applied, kv.Applied}
	if d := cmp.Diff(want, outcomes); d != "" {
		t.Error(d)
	}
	r.wantValue("a", "4")
	r.check()
}

func TestRevisions_AreUnique(t *testing.T) {
	r := newRig(t)
	results := r.do(1,
		write(set("a", "1"), del("a"), set("a", "2")),
		write(set("b", "1", expireAt(1))), // due already: the key stays absent, the revision is used
		command.Request{Kind: command.KindRegister, Name: "n"},
		write(set("a", "3"), set("a", "4")),
		write(set("a", "5", ifAbsent)), // a conflict uses none
		write(set("c", "1")),
	)
	var got [][]uint64
	for _, res := range results {
		got = append(got, res.Revisions)
	}
	want := [][]uint64{{1, 0, 2}, {3}, {4}, {5, 6}, nil, {7}}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	if v := r.get("a", 0); v.Revision != 6 {
		t.Errorf("a has revision %d, want that of the last of the duplicates", v.Revision)
	}
	r.wantAbsent("b")
	r.check()
}

func TestExpiry_IsExact(t *testing.T) {
	cases := []struct {
		name string
		op   command.Op
		at   uint64 // first time at which the key is absent; 0 = it never exists
	}{
		{"time to live", set("k", "v", ttl(50)), 1050},
		{"one millisecond", set("k", "v", ttl(1)), 1001},
		{"absolute", set("k", "v", expireAt(1200)), 1200},
		{"absolute wins over time to live", set("k", "v", ttl(5), expireAt(1200)), 1200},
		{"absolute, now", set("k", "v", expireAt(1000)), 0},
		{"absolute, past", set("k", "v", expireAt(1)), 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.do(1000, write(set("k", "old")))
			r.do(1000, write(c.op))
			if c.at == 0 {
				r.wantAbsent("k")
				if s := r.Stats(); s.Keys != 0 {
					t.Errorf("%d keys are stored, want none", s.Keys)
				}
				return
			}
			if v := r.get("k", c.at-1); !v.Found || v.ExpireAt != c.at {
				t.Errorf("a millisecond before: %+v, want it to be there until %d", v, c.at)
			}
			if v := r.get("k", c.at); v.Found || !v.Pending || v.ExpireAt != c.at {
				t.Errorf("at its time, before cluster time: %+v, want it pending", v)
			}
			r.do(c.at-1, tick())
			r.wantValue("k", "v")
			if res := r.one(c.at-1, write(set("k", "x", ifAbsent))); res.Outcome != kv.Conflict {
				t.Errorf("create a millisecond before: %v, want %v", res.Outcome, kv.Conflict)
			}
			r.do(c.at, tick())
			if v := r.get("k", 0); v.Found || v.Pending {
				t.Errorf("at its time: %+v, want nothing", v)
			}
			if res := r.one(c.at, write(del("k", ifRevision(2)))); res.Outcome != kv.Conflict {
				t.Errorf("delete of the expired revision: %v, want %v", res.Outcome, kv.Conflict)
			}
			if res := r.one(c.at, write(set("k", "new", ifAbsent))); res.Outcome != kv.Applied {
				t.Errorf("create at its time: %v, want %v", res.Outcome, kv.Applied)
			}
			r.wantValue("k", "new")
			r.check()
		})
	}
}

func TestTTL_OverflowNeverExpires(t *testing.T) {
	r := newRig(t)
	r.do(1000, write(set("k", "v", ttl(math.MaxUint64))))
	r.do(math.MaxUint64-1, tick())
	r.wantValue("k", "v")
	r.do(math.MaxUint64, expire(10))
	r.wantAbsent("k")
	r.do(math.MaxUint64, write(set("k", "v"), set("l", "v", ttl(5))))
	r.wantValue("k", "v")
	r.wantAbsent("l")
	r.check()
}

func TestClusterTime_NeverGoesBack(t *testing.T) {
	r := newRig(t)
	r.do(1000, write(set("k", "v", ttl(10))))
	r.do(5, write(set("l", "v", ttl(10))))
	if r.Clock() != 1000 {
		t.Errorf("cluster time is %d, want 1000", r.Clock())
	}
	if v := r.get("l", 0); v.ExpireAt != 1010 {
		t.Errorf("the TTL was counted from the old stamp: until %d", v.ExpireAt)
	}
}

func TestApply_EntryWithoutCommandOnlyMovesIndex(t *testing.T) {
	r := newRig(t)
	r.do(1000, write(set("k", "v")))
	_, before := r.Hash()
	out := r.Apply([]kv.Entry{{Index: 7, Term: 3}})
	if out[0].Err != nil || out[0].Skipped || len(out[0].Results) != 0 {
		t.Errorf("result %+v, want an empty one", out[0])
	}
	index, hash := r.Hash()
	if index != 7 || hash != before || r.Clock() != 1000 {
		t.Errorf("index %d, hash %x, clock %d, want 7, %x, 1000", index, hash, r.Clock(), before)
	}
	if s := r.Stats(); s.Term != 3 {
		t.Errorf("term %d, want 3", s.Term)
	}
}

func TestOrigin_RequestIsDecidedOnce(t *testing.T) {
	r := newRig(t)
	o := r.register(1, "node/boot")
	steps := []struct {
		name      string
		seq, done uint64
		key       string
		outcome   kv.Outcome
		replayed  bool
	}{
		{"first", 1, 0, "a", kv.Applied, false},
		{"retry", 1, 0, "a", kv.Applied, true},
		{"out of order", 4, 0, "c", kv.Applied, false},
		{"late", 2, 0, "b", kv.Applied, false},
		{"retry of the late one", 2, 1, "b", kv.Applied, true},
		{"first again, now below the mark", 1, 0, "a", kv.Stale, false},
		{"never used, but below the mark", 5, 4, "d", kv.Applied, false},
		{"skipped number, marked as done", 3, 0, "e", kv.Stale, false},
		{"retry above the mark", 5, 4, "d", kv.Applied, true},
	}
	for _, s := range steps {
		res := r.one(1, withID(write(set(s.key, s.name, ifAbsent)), o, s.seq, s.done))
		if res.Outcome != s.outcome || res.Replayed != s.replayed {
			t.Errorf("%s: %v, replayed %v, want %v, %v", s.name, res.Outcome, res.Replayed, s.outcome, s.replayed)
		}
	}
	r.wantAbsent("e")
	r.check()
}

func TestOrigin_ReplayReturnsFirstResult(t *testing.T) {
	r := newRig(t)
	o := r.register(1, "n")
	requests := map[string]command.Request{
		"applied":  withID(write(set("a", "1"), del("zz"), set("b", "1")), o, 1, 0),
		"conflict": withID(write(set("a", "1", ifAbsent)), o, 2, 0),
		"expiry":   withID(expire(1), o, 3, 0),
		"register": withID(command.Request{Kind: command.KindRegister, Name: "other"}, o, 4, 0),
	}
	r.do(10, write(set("x", "1", ttl(5)), set("y", "1", ttl(5))))
	for _, name := range []string{"applied", "conflict", "expiry", "register"} {
		first := r.one(20, requests[name])
		r.do(20, write(del("a"), set("b", "2")))
		again := r.do(20, requests[name], requests[name])
		first.Replayed = true
		for _, res := range again {
			if d := cmp.Diff(first, res); d != "" {
				t.Errorf("%s (-first +replay):\n%s", name, d)
			}
		}
	}
	r.wantValue("b", "2")
}

func TestOrigin_UnknownIsRefused(t *testing.T) {
	r := newRig(t)
	old := r.register(1, "n")
	fresh := r.register(1, "n")
	if old == fresh {
		t.Fatalf("registering again gave the number %d twice", old)
	}
	for _, origin := range []uint64{old, fresh + 1} {
		if res := r.one(1, withID(write(set("a", "1")), origin, 1, 0)); res.Outcome != kv.Stale {
			t.Errorf("origin %d: %v, want %v", origin, res.Outcome, kv.Stale)
		}
	}
	if res := r.one(1, withID(write(set("a", "1")), fresh, 1, 0)); res.Outcome != kv.Applied {
		t.Errorf("the new number: %v, want %v", res.Outcome, kv.Applied)
	}
	if s := r.Stats(); s.Origins != 1 {
		t.Errorf("%d origins, want the one that has the name", s.Origins)
	}
}

func TestOrigin_ResultsAreBounded(t *testing.T) {
	r := newRig(t)
	kv.SetBounds(r.Machine, 4, 2, 3)
	o := r.register(1, "n")
	for seq := uint64(1); seq <= 6; seq++ {
		r.do(1, withID(write(set("k", "v")), o, seq, 0))
	}
	for seq, want := range map[uint64]kv.Outcome{2: kv.Stale, 3: kv.Applied, 6: kv.Applied} {
		res := r.one(1, withID(write(set("k", "w")), o, seq, 0))
		if res.Outcome != want {
			t.Errorf("retry of %d: %v, want %v", seq, res.Outcome, want)
		}
	}
	if res := r.one(1, withID(write(set("k", "far")), o, math.MaxUint64, 0)); res.Outcome != kv.Applied {
		t.Errorf("a number far ahead: %v, want %v", res.Outcome, kv.Applied)
	}
	if res := r.one(1, withID(write(set("k", "w")), o, 6, 0)); res.Outcome != kv.Stale {
		t.Errorf("a number far behind: %v, want %v", res.Outcome, kv.Stale)
	}
	r.check()
}

func TestOrigins_DropLongestUnseenWhenFull(t *testing.T) {
	r := newRig(t)
	kv.SetBounds(r.Machine, 4, 2, 3)
	a, b := r.register(1, "a"), r.register(2, "b")
	r.do(2+kv.OriginRefresh, withID(write(set("k", "v")), a, 1, 0))
	r.register(2+kv.OriginRefresh, "c")
	if res := r.one(2+kv.OriginRefresh, withID(write(set("k", "v")), b, 1, 0)); res.Outcome != kv.Stale {
		t.Errorf("b: %v, want it to be dropped", res.Outcome)
	}
	if res := r.one(2+kv.OriginRefresh, withID(write(set("k", "v")), a, 2, 0)); res.Outcome != kv.Applied {
		t.Errorf("a: %v, want it to be kept", res.Outcome)
	}
	r.check()
}

func TestOrigins_IdleAreRemovedWhenDue(t *testing.T) {
	r := newRig(t)
	idle, busy := r.register(1000, "idle"), r.register(1000, "busy")
	r.do(1000, withID(write(set("k", "v")), idle, 1, 0))
	r.do(1000+kv.OriginRefresh, withID(write(set("k", "v")), busy, 1, 0))
	due := uint64(1000 + kv.OriginLife)
	if ms, ok := r.NextDue(); !ok || ms != due {
		t.Errorf("NextDue = %d, %v, want %d", ms, ok, due)
	}
	r.do(due-2, withID(tick(), busy, 2, 0))
	if res := r.one(due-1, expire(10)); res.Expired != 0 || res.More {
		t.Errorf("a millisecond before: %+v, want nothing removed", res)
	}
	if res := r.one(due, expire(10)); res.Expired != 1 || res.More {
		t.Errorf("at its time: %+v, want one removed", res)
	}
	if res := r.one(due, withID(write(set("k", "v")), idle, 1, 0)); res.Outcome != kv.Stale {
		t.Errorf("the idle origin: %v, want %v", res.Outcome, kv.Stale)
	}
	if res := r.one(due, withID(write(set("k", "v")), busy, 1, 0)); !res.Replayed {
		t.Errorf("the busy origin: %+v, want the remembered result", res)
	}
	r.check()
}

func TestOrigin_UseDelaysRemoval(t *testing.T) {
	r := newRig(t)
	o := r.register(1000, "n")
	for _, s := range []struct{ at, due uint64 }{
		{1000 + kv.OriginRefresh - 1, 1000 + kv.OriginLife}, // too early to update lastSeen
		{1000 + kv.OriginRefresh, 1000 + kv.OriginRefresh + kv.OriginLife},
	} {
		r.do(s.at, withID(tick(), o, s.at, 0))
		if ms, ok := r.NextDue(); !ok || ms != s.due {
			t.Errorf("after a use at %d NextDue = %d, %v, want %d", s.at, ms, ok, s.due)
		}
	}
}

func TestClientResults_AreRemovedWhenDue(t *testing.T) {
	r := newRig(t)
	r.do(1000, withClient(write(set("a", "1")), "1"), withClient(write(set("a", "1")), "2"),
		withClient(write(set("a", "1")), "3"))
	due := uint64(1000 + command.ClientResultLife)
	if ms, ok := r.NextDue(); !ok || ms != due {
		t.Errorf("NextDue = %d, %v, want %d", ms, ok, due)
	}
	for _, s := range []struct {
		at   uint64
		want kv.Result
	}{
		{due - 1, kv.Result{}}, {due, kv.Result{Expired: 2, More: true}}, {due, kv.Result{Expired: 1}}, {due,
			kv.Result{}},
	} {
		if res := r.one(s.at, expire(2)); res.Expired != s.want.Expired || res.More != s.want.More {
			t.Errorf("at %d: expired %d, more %v, want %d, %v", s.at, res.Expired, res.More, s.want.Expired,
				s.want.More)
		}
		r.check()
	}
	if _, ok := r.NextDue(); ok {
		t.Error("something is due after everything was removed")
	}
}

func TestClientID_RetryIsNotAppliedAgain(t *testing.T) {
	r := newRig(t)
	request := withClient(write(set("a", "1", ifAbsent), set("b", "1")), "id")
	first := r.one(1000, request)
	r.do(1000, write(set("a", "2")))
	again := r.one(1001, request)
	first.Replayed = true
	if d := cmp.Diff(first, again); d != "" {
		t.Errorf("retry (-first +retry):\n%s", d)
	}
	r.wantValue("a", "2")
	other := request
	other.Client.Scope = "another app"
	if res := r.one(1001, other); res.Outcome != kv.Conflict || res.Replayed {
		t.Errorf("the same id of another application: %+v, want a decision of its own", res)
	}
	life := uint64(command.ClientResultLife)
	if res := r.one(1000+life-1, request); !res.Replayed {
		t.Errorf("a millisecond before it is forgotten: %+v, want a replay", res)
	}
	if res := r.one(1000+life, request); res.Replayed || res.Outcome != kv.Conflict {
		t.Errorf("when it is forgotten: %+v, want a decision", res)
	}
	r.check()
}

func TestClientID_OtherRequestIsRejected(t *testing.T) {
	base := set("k", "v", ttl(1000))
	changes := map[string]func(*command.Op){
		"kind":         func(o *command.Op) { *o = del(o.Key) },
		"condition":    ifAbsent,
		"revision":     ifRevision(1),
		"store":        func(o *command.Op) { o.Store = "s2" },
		"key":          func(o *command.Op) { o.Key = "kk" },
		"value":        func(o *command.Op) { o.Value = []byte("vv") },
		"content type": func(o *command.Op) { o.ContentType = "text/plain" },
		"ttl":          ttl(1001),
		"expiry":       expireAt(5000),
	}
	for name, change := range changes {
		r := newRig(t)
		r.do(1000, withClient(write(base), "id"))
		o := base
		change(&o)
		for _, ops := range [][]command.Op{{o}, {base, o}} {
			res := r.one(1000, withClient(write(ops...), "id"))
			if res.Outcome != kv.Rejected || res.Replayed {
				t.Errorf("other %s: %+v, want %v", name, res, kv.Rejected)
			}
		}
		if s := r.Stats(); s.Keys != 1 || s.Revision != 1 {
			t.Errorf("other %s: the rejected request was applied: %+v", name, s)
		}
	}
}

func TestClientResults_AreBounded(t *testing.T) {
	r := newRig(t)
	kv.SetBounds(r.Machine, 4, 2, 3)
	request := func(id string) command.Request { return withClient(write(set("a", "1")), id) }
	// All requests are in one entry, so the results that are forgotten are not in the database yet.
	res := r.do(1000, request("0"), request("1"), request("2"), request("3"), request("0"), request("4"))
	if res[4].Replayed {
		t.Error("the oldest result was still remembered within the entry")
	}
	for id, replayed := range map[string]bool{"3": true, "0": true, "4": true} {
		if res := r.one(1000, withClient(write(set("a", "1")), id)); res.Replayed != replayed {
			t.Errorf("id %s: replayed %v, want %v", id, res.Replayed, replayed)
		}
	}
	if res := r.one(1000, request("2")); res.Replayed {
		t.Error("the oldest result is still remembered")
	}
	if s := r.Stats(); s.ClientResults != 3 {
		t.Errorf("%d results are remembered, want 3", s.ClientResults)
	}
	r.check()
}

func TestExpire_LongestDueFirstUpToLimit(t *testing.T) {
	r := newRig(t)
	r.do(100, write(set("c", "v", ttl(1)), set("b", "v", ttl(2)), set("a", "v", ttl(2)), set("d", "v", ttl(3)),
		set("e", "v", ttl(900))))
	if ms, ok := r.NextDue(); !ok || ms != 101 {
		t.Errorf("NextDue = %d, %v, want 101", ms, ok)
	}
	steps := []struct {
		limit   uint32
		expired int
		more    bool
		keys    uint64
		next    uint64
	}{
		{0, 0, true, 5, 101},
		{2, 2, true, 3, 102}, // c, then a; b comes after a in the index
		{2, 2, false, 1, 1000},
		{2, 0, false, 1, 1000},
	}
	for i, s := range steps {
		res := r.one(103, expire(s.limit))
		if res.Expired != s.expired || res.More != s.more {
			t.Errorf("step %d: expired %d, more %v, want %d, %v", i, res.Expired, res.More, s.expired, s.more)
		}
		if st := r.Stats(); st.Keys != s.keys {
			t.Errorf("step %d: %d keys, want %d", i, st.Keys, s.keys)
		}
		if ms, _ := r.NextDue(); ms != s.next {
			t.Errorf("step %d: NextDue = %d, want %d", i, ms, s.next)
		}
		r.check()
	}
}

func TestExpire_SeesPreviousEntry(t *testing.T) {
	r := newRig(t)
	r.do(100, write(set("renewed", "v", ttl(5)), set("kept", "v", ttl(5)), set("deleted", "v", ttl(5)),
		set("due", "v", ttl(5))))
	res := r.do(110,
		write(set("renewed", "w", ttl(50)), set("kept", "w"), del("deleted")),
		expire(10), expire(10))
	if res[1].Expired != 1 || res[2].Expired != 0 {
		t.Errorf("%d and %d expired, want only the one that was still due", res[1].Expired, res[2].Expired)
	}
	r.wantValue("renewed", "w")
	r.wantValue("kept", "w")
	if floor := kv.DueFloor(r.Machine); floor != 111 {
		t.Errorf("the next search starts at %d, want 111: it would pass over removed items again", floor)
	}
	if ms, ok := r.NextDue(); !ok || ms != 160 {
		t.Errorf("NextDue = %d, %v, want 160", ms, ok)
	}
	r.check()
}

func TestNextDue_EmptyMachine(t *testing.T) {
	r := newRig(t)
	r.do(100, write(set("k", "v")))
	if ms, ok := r.NextDue(); ok {
		t.Errorf("NextDue = %d, want none", ms)
	}
}

func TestApply_StopsAtUndecodableEntry(t *testing.T) {
	for name, c := range map[string]struct {
		damage func([]byte)
		code   fault.Code
	}{
		"newer version": {func(d []byte) { d[1] = command.Version + 1 }, fault.Unimplemented},
		"garbage":       {func(d []byte) { d[0] = 0 }, fault.Corrupt},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			entries := []kv.Entry{
				entryOf(t, 1, 1, write(set("a", "1"))),
				entryOf(t, 2, 2, write(set("b", "1"))),
				entryOf(t, 3, 3, write(set("c", "1"))),
			}
			c.damage(entries[1].Data)
			out := r.Apply(entries)
			if out[0].Err != nil || !fault.Is(out[1].Err, c.code) || !fault.Is(out[2].Err, c.code) {
				t.Fatalf("errors %v, %v, %v, want none and two of %s", out[0].Err, out[1].Err, out[2].Err, c.code)
			}
			if err := <-r.fatal.ch; !fault.Is(err, c.code) {
				t.Errorf("Fatal got %v, want %s", err, c.code)
			}
			r.wantValue("a", "1")
			r.wantAbsent("b")
			r.wantAbsent("c")
			if r.Applied() != 1 || r.Clock() != 1 {
				t.Errorf("applied %d at time %d, want 1 at 1", r.Applied(), r.Clock())
			}
			later := r.Apply([]kv.Entry{entryOf(t, 2, 2, write(set("b", "1")))})
			if !fault.Is(later[0].Err, c.code) || r.Applied() != 1 {
				t.Errorf("a later Apply: %v, applied %d, want the same error and 1", later[0].Err, r.Applied())
			}
			if _, err := r.Flush(); err != nil {
				t.Errorf("a halted machine can still store what it holds: %v", err)
			}
			if n := r.fatal.count(); n != 1 {
				t.Errorf("Fatal was called %d times, want once", n)
			}
		})
	}
}

func TestFatal_MayCloseMachine(t *testing.T) {
	var m *kv.Machine
	closed := make(chan error, 1)
	o := options(t, vfs.NewMem())
	o.Fatal = func(error) { closed <- m.Close() }
	m, err := kv.Create(o)
	if err != nil {
		t.Fatal(err)
	}
	m.Apply([]kv.Entry{{Index: 1, Data: []byte("garbage")}})
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

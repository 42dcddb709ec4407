package kv_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Small bounds, which random batches often exceed.
const (
	testWindow   = 12
	testOrigins  = 4
	testClients  = 6
	testRowBytes = 8 * 250 // some rows
)

// generator makes random batches that often conflict: few keys, few client ids, sequence numbers
// that are repeated, late or far ahead, stamps that jump and go back.
type generator struct {
	*rand.Rand
	now     uint64
	model   *model
	nextSeq map[uint64]uint64
	watches bool // histories are switched on
}

func newGenerator(seed uint64, m *model) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 1)), now: 1000, model: m, nextSeq: map[uint64]uint64{}}
}

func pick[T any](g *generator, choices ...T) T { return choices[g.IntN(len(choices))] }

func (g *generator) batch() command.Batch {
	g.now += pick[uint64](g, 0, 0, 1, 5, 50, 500, command.ClientResultLife/3)
	if g.IntN(60) == 0 {
		g.now += kv.OriginLife / 3
	}
	b := command.Batch{Stamp: g.now - min(g.now, pick[uint64](g, 0, 0, 0, 3))}
	for range g.IntN(5) {
		b.Requests = append(b.Requests, g.request())
	}
	return b
}

func (g *generator) request() command.Request {
	var r command.Request
	switch n := g.IntN(20); {
	case n == 0:
		r = command.Request{Kind: command.KindRegister, Name: pick(g, "a", "b", "c", "d", "e")}
	case n == 1:
		r = tick()
	case n == 4 && g.watches:
		r = command.Request{Kind: command.KindWatch, Watch: &command.Watch{Store: pick(g, "s", "s2"),
			Prefix: pick(g, "", "p"), Age: pick[uint64](g, 600, 100_000, 10_000_000),
			Bytes: pick[uint64](g, 300, 3000, 1<<20)}}
	case n <= 3:
		r = expire(pick[uint32](g, 0, 1, 2, 100))
	default:
		r = g.write()
	}
	if r.Kind != command.KindWatch { // the model does not know its result, which a retry would return
		g.identify(&r)
	}
	return r
}

func (g *generator) write() command.Request {
	var ops []command.Op
	for range 1 + g.IntN(3) {
		ops = append(ops, g.op())
	}
	r := write(ops...)
	if g.IntN(3) == 0 {
		r.Client = command.ClientID{Scope: pick(g, "", "x"), ID: pick(g, "1", "2", "3", "4", "5")}
		if len(g.model.clients) > 0 && g.IntN(2) == 0 {
			c := g.model.clients[g.IntN(len(g.model.clients))]
			r.Client, r.Ops = c.id, c.ops
		}
	}
	return r
}

func (g *generator) op() command.Op {
	o := command.Op{Kind: command.OpSet, Store: pick(g, "s", "s2"),
		Key: pick(g, "a", "b", "c", "a\x00", "\xff", "p||a", "p||b")}
	if row, ok := g.model.rows[[2]string{o.Store, o.Key}]; ok && g.IntN(3) == 0 {
		o.Cond, o.Revision = command.CondRevision, row.revision-pick[uint64](g, 0, 0, 0, 1)
	} else if g.IntN(6) == 0 {
		o.Cond = pick(g, command.CondAbsent, command.CondAbsent, command.CondNever)
	}
	if g.IntN(4) == 0 {
		o.Kind = command.OpDelete
		return o
	}
	o.Value = make([]byte, pick(g, 0, 1, 10, 300))
	for i := range o.Value {
		o.Value[i] = byte(g.Uint32())
	}
	o.ContentType = pick(g, "", "", "application/octet-stream")
	o.TTL = pick[uint64](g, 0, 0, 1, 40, 400, math.MaxUint64)
	o.ExpireAt = pick(g, 0, 0, 0, g.now, g.now+30, g.now-min(g.now, 30))
	return o
}

// identify may give r an origin and a sequence number: a new one, a used one, a skipped one, one far
// ahead, or one of an unknown origin.
func (g *generator) identify(r *command.Request) {
	if len(g.model.origins) == 0 || g.IntN(3) == 0 {
		return
	}
	o := g.model.origins[g.IntN(len(g.model.origins))].number + pick[uint64](g, 0, 0, 0, 0, 0, 0, 0, 1)
	next := g.nextSeq[o] + 1
	seq := pick(g, next, next, next, next-min(next-1, 1), next-min(next-1, 4), next+2,
		next+3*testWindow*uint64(g.IntN(8)/7))
	g.nextSeq[o] = max(g.nextSeq[o], seq)
	r.ID = command.RequestID{Origin: o, Seq: seq, Done: seq - min(seq, pick[uint64](g, 1, 2, 5, 5, 5, 9))}
}

// history is a sequence of entries with their expected results.
type history struct {
	entries []kv.Entry
	results [][]kv.Result
	hashes  []uint64
	dumps   [][]string // after each entry
}

// record applies entries one by one to a machine and to the model and compares them.
func record(t *testing.T, seed uint64, n int) history {
	t.Helper()
	m := newModel(testWindow, testOrigins, testClients)
	g := newGenerator(seed, m)
	r := newRig(t)
	kv.SetBounds(r.Machine, testWindow, testOrigins, testClients)
	kv.SetRowBytes(r.Machine, testRowBytes)
	g.watches = seed%2 == 0
	h := history{hashes: []uint64{0}, dumps: [][]string{dump(t, r.Machine)}}
	for i := range n {
		b := g.batch()
		e := entryOf(t, uint64(i)+1, b.Stamp, b.Requests...)
		if g.IntN(10) == 0 {
			b, e.Data = command.Batch{}, nil
		}
		want := m.apply(e.Index, b)
		out := r.Apply([]kv.Entry{e})
		if out[0].Err != nil {
			t.Fatal(out[0].Err)
		}
		learnFloors(b, want, out[0].Results)
		if d := cmp.Diff(want, out[0].Results, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("seed %d, entry %d, batch %+v (-model +machine):\n%s", seed, e.Index, b, d)
		}
		compareState(t, g, m, r.Machine)
		_, hash := r.Hash()
		h.entries, h.results = append(h.entries, e), append(h.results, want)
		h.hashes, h.dumps = append(h.hashes, hash), append(h.dumps, dump(t, r.Machine))
	}
	return h
}

// learnFloors copies the floors of histories, which the model does not know, to the wanted results. compareHistories
// checks the floors.
func learnFloors(b command.Batch, want, got []kv.Result) {
	for i := range want {
		if i < len(got) && b.Requests[i].Kind == command.KindWatch && want[i].Outcome == kv.Applied {
			want[i].Revisions = got[i].Revisions
		}
	}
}

func compareState(t *testing.T, g *generator, m *model, k *kv.Machine) {
	t.Helper()
	if err := kv.CheckInvariants(k); err != nil {
		t.Fatal(err)
	}
	now := pick(g, 0, m.clock, m.clock+30)
	for _, store := range []string{"s", "s2"} {
		prefix := pick(g, "", "a", "\xff")
		got, more, err := k.List(store, prefix, "", 100, now)
		if err != nil || more {
			t.Fatalf("List: more %v, %v", more, err)
		}
		if d := cmp.Diff(m.list(store, prefix, max(now, m.clock)), got, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("List(%q, %q, now %d) (-model +machine):\n%s", store, prefix, now, d)
		}
		compareValues(t, m, k, store, now)
	}
	wantDue, wantOK := m.nextDue()
	compareHistories(t, g, m, k)
	if due, ok := k.NextDue(); len(m.histories) > 0 {
		if !ok || wantOK && due > wantDue {
			t.Fatalf("NextDue = %d, %v, want at most %d", due, ok, wantDue)
		}
	} else if ok != wantOK || ok && due != wantDue {
		t.Fatalf("NextDue = %d, %v, want %d, %v", due, ok, wantDue, wantOK)
	}
	s := k.Stats()
	if s.Keys != uint64(len(m.rows)) || s.Origins != uint64(len(m.origins)) ||
		s.ClientResults != uint64(len(m.clients)) ||
		s.Revision != m.revision || s.Clock != m.clock {
		t.Fatalf("Stats = %+v, the model has %d keys, %d origins, %d clients, revision %d, clock %d",
			s, len(m.rows), len(m.origins), len(m.clients), m.revision, m.clock)
	}
}

func compareValues(t *testing.T, m *model, k *kv.Machine, store string, now uint64) {
	t.Helper()
	keys := []string{"a", "b", "c", "a\x00", "\xff", "a"}
	many, err := k.GetMany(store, keys, now)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range keys {
		one, err := k.Get(store, key, now)
		if err != nil {
			t.Fatal(err)
		}
		var want kv.Value
		if row, ok := m.get(store, key, max(now, m.clock)); ok {
			want = kv.Value{
				Value: []byte(row.value), ContentType: row.contentType, Revision: row.revision, ExpireAt: row.expireAt,
				Found: true,
			}
		} else if row, ok := m.get(store, key, m.clock); ok {
			want = kv.Value{ExpireAt: row.expireAt, Pending: true}
		}
		if d := cmp.Diff(want, one, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("Get(%q, %q, now %d) (-model +machine):\n%s", store, key, now, d)
		}
		if d := cmp.Diff(one, many[i], cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("GetMany differs from Get of %q:\n%s", key, d)
		}
	}
}

func seeds(t *testing.T) []uint64 {
	if testing.Short() {
		return []uint64{1, 2}
	}
	return []uint64{1, 2, 3, 4}
}

func TestMachine_MatchesModel(t *testing.T) {
	testutil.SkipUnderRace(t, "plays many steps of one goroutine")
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			h := record(t, seed, 400)
			seen := map[kv.Outcome]int{}
			replayed, expired := 0, 0
			for _, results := range h.results {
				for _, r := range results {
					seen[r.Outcome]++
					expired += r.Expired
					if r.Replayed {
						replayed++
					}
				}
			}
			for o := kv.Applied; o <= kv.Rejected; o++ {
				if seen[o] == 0 {
					t.Errorf("no result was %v: the run covers too little", o)
				}
			}
			if replayed == 0 || expired == 0 {
				t.Errorf("%d replayed, %d expired: the run covers too little", replayed, expired)
			}
		})
	}
}

func TestApply_StateDoesNotDependOnGrouping(t *testing.T) {
	testutil.SkipUnderRace(t, "plays many steps of one goroutine")
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			h := record(t, seed, 200)
			g := rand.New(rand.NewPCG(seed, 2))
			r := newRig(t)
			kv.SetBounds(r.Machine, testWindow, testOrigins, testClients)
			for at := 0; at < len(h.entries); {
				// Some entries are applied twice, as after a restart.
				from, to := max(0, at-g.IntN(3)), min(len(h.entries), at+1+g.IntN(30))
				h.applyRun(t, r.Machine, from, to)
				at = to
			}
			if d := cmp.Diff(h.dumps[len(h.entries)], dump(t, r.Machine)); d != "" {
				t.Errorf("the databases differ:\n%s", d)
			}
		})
	}
}

// applyRun applies entries [from, to) in one call, and compares the results with those of the history.
func (h *history) applyRun(t *testing.T, m *kv.Machine, from, to int) {
	t.Helper()
	applied := m.Applied()
	for i, out := range m.Apply(h.entries[from:to]) {
		index := uint64(from+i) + 1
		if out.Err != nil {
			t.Fatal(out.Err)
		}
		if skipped := index <= applied; out.Skipped != skipped {
			t.Fatalf("entry %d: Skipped = %v, want %v", index, out.Skipped, skipped)
		}
		if out.Skipped {
			continue
		}
		if d := cmp.Diff(h.results[index-1], out.Results, cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("entry %d (-alone +grouped):\n%s", index, d)
		}
	}
	if at, hash := m.Hash(); at != uint64(to) || hash != h.hashes[to] {
		t.Fatalf("hash of entry %d is %x, want %x of entry %d", at, hash, h.hashes[to], to)
	}
}

func TestCrash_LeavesEarlierStateAndReplayRestoresIt(t *testing.T) {
	testutil.SkipUnderRace(t, "plays many steps of one goroutine")
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			h := record(t, seed, 200)
			g := rand.New(rand.NewPCG(seed, 3))
			fs := vfs.NewCrashableMem()
			o := options(t, fs)
			m, err := kv.Create(o)
			if err != nil {
				t.Fatal(err)
			}
			crashes, lost := 0, 0
			for at := 0; at < len(h.entries); {
				kv.SetBounds(m, testWindow, testOrigins, testClients)
				to := min(len(h.entries), at+1+g.IntN(20))
				h.applyRun(t, m, at, to)
				at = to
				if g.IntN(3) == 0 {
					flush(t, m)
				}
				if g.IntN(2) == 0 {
					m, fs = crash(t, m, fs, g)
					h.checkAt(t, m)
					crashes++
					lost += at - int(m.Applied())
					at = int(m.Applied())
				}
			}
			if crashes == 0 || lost == 0 {
				t.Errorf("%d crashes lost %d entries: the run covers too little", crashes, lost)
			}
			h.checkAt(t, m)
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// crash opens the database that a power loss at this moment might leave.
func crash(t *testing.T, m *kv.Machine, fs *vfs.MemFS, g *rand.Rand) (*kv.Machine, *vfs.MemFS) {
	t.Helper()
	left := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[g.IntN(3)], RNG: g})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	m, err := kv.Open(options(t, left))
	if err != nil {
		t.Fatal(err)
	}
	return m, left
}

// checkAt compares a machine with the history at its applied index.
func (h *history) checkAt(t *testing.T, m *kv.Machine) {
	t.Helper()
	at, hash := m.Hash()
	if hash != h.hashes[at] {
		t.Fatalf("hash of entry %d is %x, want %x", at, hash, h.hashes[at])
	}
	if d := cmp.Diff(h.dumps[at], dump(t, m)); d != "" {
		t.Fatalf("the database at entry %d (-before +after):\n%s", at, d)
	}
	if err := kv.CheckInvariants(m); err != nil {
		t.Fatal(err)
	}
}

func flush(t *testing.T, m *kv.Machine) {
	t.Helper()
	before := m.Applied()
	applied, err := m.Flush()
	if err != nil {
		t.Fatal(err)
	}
	if applied < before {
		t.Fatalf("Flush wrote up to %d, %d was applied", applied, before)
	}
}

func FuzzApply(f *testing.F) {
	for _, r := range []command.Request{
		write(set("a", "1", ttl(5)), del("b")), withID(write(set("a", "1", ifRevision(3))), 1, 2, 1),
		withClient(write(set("a", "1")), "x"), expire(3), tick(), {Kind: command.KindRegister, Name: "n"},
	} {
		f.Add(entryOf(f, 1, 10, r).Data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := newRig(t)
		origin := r.register(5, "fuzz")
		r.do(5, withClient(withID(write(set("a", "0", ttl(2))), origin, 1, 0), "x"))
		before := dump(t, r.Machine)
		index, hash := r.Hash()
		out := r.Apply([]kv.Entry{{Index: index + 1, Term: 1, Data: data}})
		if err := kv.CheckInvariants(r.Machine); err != nil {
			t.Fatal(err)
		}
		if out[0].Err == nil {
			return
		}
		if !slices.Contains([]fault.Code{fault.Corrupt, fault.Unimplemented}, fault.CodeOf(out[0].Err)) {
			t.Fatalf("refused with %v", out[0].Err)
		}
		if now, h := r.Hash(); now != index || h != hash || !slices.Equal(before, dump(t, r.Machine)) {
			t.Fatal("an undecodable entry changed the state")
		}
	})
}

package group

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
)

// Compare asks the server at the other end of the wire.
func (w *wire) Compare(ctx context.Context, server raft.Server, index uint64) (r Report, err error) {
	err = w.over(server.Address, func(*wire) error {
		g := w.cluster.group(server.ID)
		if g == nil || ctx.Err() != nil {
			return errCut
		}
		r = g.AnswerCompare(index)
		return nil
	})
	return r, err
}

func (w *wire) AskState(_ context.Context, server raft.Server, ask StateRequest) error {
	return w.over(server.Address, func(*wire) error {
		g := w.cluster.group(server.ID)
		if g == nil {
			return errCut
		}
		return g.AnswerState(ask)
	})
}

// doubting is a cluster whose servers compare their states, some of which can be made to
// apply something else than the others.
type doubting struct {
	*cluster
	wrong  map[raft.ServerID]*atomic.Bool
	supply atomic.Bool // states may be asked for
}

// hold is Replicas that refuse to ask for a state as long as they are held.
type hold struct {
	Replicas
	open *atomic.Bool
}

func (h hold) AskState(ctx context.Context, server raft.Server, ask StateRequest) error {
	if !h.open.Load() {
		return errors.New("held by the test")
	}
	return h.Replicas.AskState(ctx, server, ask)
}

func newDoubting(t *testing.T, change func(raft.ServerID, *Options)) *doubting {
	d := &doubting{wrong: map[raft.ServerID]*atomic.Bool{}}
	d.supply.Store(true)
	for _, id := range testIDs {
		d.wrong[id] = &atomic.Bool{}
	}
	d.cluster = newCluster(t, func(id raft.ServerID, o *Options) {
		o.Replicas = hold{o.Transport.(*wire), &d.supply}
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})).With("server", string(id))
		o.Timing.Compare, o.Timing.FirstVerify = 200*time.Millisecond, time.Hour
		wrong := d.wrong[id]
		o.tamper = func(entries []kv.Entry) {
			for i := range entries {
				if wrong.Load() {
					entries[i].Data = bytes.ReplaceAll(entries[i].Data, []byte("true"), []byte("lies"))
				}
			}
		}
		if change != nil {
			change(id, o)
		}
	})
	return d
}

// soon is until for what takes a comparison or two, on a machine that does much else.
func soon(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(90 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not in time: %s", what)
		}
	}
}

// spoil makes a server apply another value than the others.
func (d *doubting) spoil(id raft.ServerID, key string, ask ...raft.ServerID) {
	d.t.Helper()
	d.wrong[id].Store(true)
	d.put(key, "true", ask...)
	soon(d.t.(*testing.T), "the wrong value was not applied", func() bool {
		// Both, for the verdict may be quicker than the look.
		g := d.group(id)
		return peekValue(d.t, g, key) == "lies" || counted(d.t.(*testing.T), g.obs.reinstalled) > 0
	})
	d.wrong[id].Store(false)
}

// serve is a read as the store makes it: a look, and then whether it may be told.
func serve(g *Group, key string) (string, error) {
	for {
		m := g.Machine()
		v, err := m.Get(store, key, 0)
		if fault.Is(err, fault.Unavailable) && m != g.Machine() {
			continue
		}
		if err == nil {
			err = g.Trusted()
		}
		if err == nil && m != g.Machine() {
			continue
		}
		return string(v.Value), err
	}
}

// watch reads from a server until it has said once that it is in doubt and then serves
// again, and fails the test if it tells the wrong value in between or after.
func watch(t *testing.T, g *Group, key string) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	var once sync.Once
	go func() {
		defer close(done)
		doubted := false
		for {
			select {
			case <-ended:
				return
			default:
			}
			v, err := serve(g, key)
			switch {
			case err != nil:
				doubted = doubted || g.Doubt() != nil
			case doubted && v != "true":
				t.Errorf("it served %q after it had found itself in doubt", v)
				return
			}
		}
	}()
	return func() { once.Do(func() { close(ended); <-done }) }
}

func TestAReplicaWithAnotherStateTakesItselfOutAndGetsTheRightOne(t *testing.T) {
	for _, leads := range []bool{false, true} {
		d := newDoubting(t, nil)
		for i := range 50 {
			d.put(key(i), "v")
		}
		bad, g := d.leader(testIDs...)
		if !leads {
			bad = others(bad)[0]
			g = d.group(bad)
		}
		stop := watch(t, g, "k")
		defer stop()
		d.spoil(bad, "k")
		soon(t, "the state was not replaced", func() bool { return counted(t, g.obs.reinstalled) > 0 && g.Doubt() == nil })
		if v, err := serve(g, "k"); v != "true" || err != nil {
			t.Errorf("leads=%v: it serves %q, %v", leads, v, err)
		}
		if n := counted(t, g.obs.doubts(Differs)); n != 1 {
			t.Errorf("leads=%v: it found itself wrong %v times", leads, n)
		}
		d.put("after", "1")
		d.converge() // index and rolling hash
		before := counted(t, g.obs.comparedSame)
		soon(t, "the new state is not compared", func() bool {
			d.put("more", "1")
			return counted(t, g.obs.comparedSame) > before
		})
		stop()
		if m, err := readManifest(g.opts.Dir); err != nil || m.Doubt != nil || len(databases(t, g.opts.Dir)) != 1 {
			t.Errorf("leads=%v: manifest %+v, %v, databases %v", leads, m, err, databases(t, g.opts.Dir))
		}
		for _, id := range others(bad) {
			if d.group(id).Doubt() != nil || counted(t, d.group(id).obs.doubts(Differs)) != 0 {
				t.Errorf("leads=%v: %s is in doubt too", leads, id)
			}
		}
		d.stop(bad) // and what it has now is what it starts with
		g = d.start(bad)
		d.put("again", "1")
		d.converge()
		if v, err := serve(g, "k"); v != "true" || err != nil {
			t.Errorf("leads=%v: after a restart it serves %q, %v", leads, v, err)
		}
	}
}

func databases(t *testing.T, dir string) (out []string) {
	all, err := filepath.Glob(filepath.Join(dir, databasePrefix+"*"))
	must(t, err)
	return all
}

// A doubted replica serves nothing, takes no writes, gives its state to nobody, and stays so
// across a restart.
func TestADoubtOutlivesARestart(t *testing.T) {
	d := newDoubting(t, nil)
	d.supply.Store(false)
	id, _ := d.leader(testIDs...)
	bad := others(id)[0]
	d.spoil(bad, "k")
	soon(t, "it does not find itself wrong", func() bool { return d.group(bad).Doubt() != nil })
	for range 2 {
		g := d.group(bad)
		if _, err := serve(g, "k"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("it serves although its state is wrong: %v", err)
		}
		_, err := g.ProposeRequest(limited(t), setRequest("w", "v"), Committed)
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("it takes writes: %v", err)
		}
		if err := g.AnswerState(StateRequest{To: id}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("it gives its state away: %v", err)
		}
		if r := g.AnswerCompare(g.Doubt().Index); r.Marked || !r.Doubted {
			t.Errorf("it still has a say: %+v", r)
		}
		if g.CaughtUp() {
			t.Error("it is called caught up")
		}
		must(t, g.Snapshot()) // writes the manifest anew
		d.stop(bad)
		d.start(bad)
	}
	d.supply.Store(true)
	soon(t, "it is not replaced after the restart", func() bool { return d.group(bad).Doubt() == nil })
	if v, err := serve(d.group(bad), "k"); v != "true" || err != nil {
		t.Errorf("it serves %q, %v", v, err)
	}
}

// With one of three away, two that differ cannot tell who is right: neither serves. The
// third decides.
func TestTwoThatDifferStopUntilAMajorityAgrees(t *testing.T) {
	d := newDoubting(t, nil)
	id, _ := d.leader(testIDs...)
	bad, away := others(id)[0], others(id)[1]
	d.stop(away)
	d.spoil(bad, "k", id, bad)
	for _, i := range []raft.ServerID{id, bad} {
		soon(t, "it goes on", func() bool { dt := d.group(i).Doubt(); return dt != nil && dt.Cause == Split })
		if _, err := serve(d.group(i), "k"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("%s serves: %v", i, err)
		}
	}
	must(t, d.group(bad).Snapshot()) // what is not on disk is applied again, and right this time
	d.stop(bad)
	d.start(bad)
	if dt := d.group(bad).Doubt(); dt == nil || dt.Cause != Split {
		t.Errorf("after a restart the doubt is %+v", dt)
	}
	d.start(away)
	soon(t, "no majority was found", func() bool {
		for _, i := range testIDs {
			if d.group(i).Doubt() != nil {
				return false
			}
		}
		return true
	})
	soon(t, "the wrong one was not replaced", func() bool { return counted(t, d.group(bad).obs.reinstalled) == 1 })
	if counted(t, d.group(id).obs.reinstalled) != 0 {
		t.Errorf("%s was right and was replaced", id)
	}
	for _, i := range testIDs {
		soon(t, "the right value is not everywhere", func() bool { v, err := serve(d.group(i), "k"); return v == "true" && err == nil })
	}
}

// damage changes a stored value behind the machine's back.
func damage(t *testing.T, dir, key, from, to string) {
	t.Helper()
	man, err := readManifest(dir)
	must(t, err)
	db, err := pebble.Open(filepath.Join(dir, man.Database), &pebble.Options{Logger: silent{}})
	must(t, err)
	k := append([]byte("\x02"+store+"\x00"), key...)
	v, closer, err := db.Get(k)
	must(t, err)
	wrong := bytes.ReplaceAll(v, []byte(from), []byte(to))
	if bytes.Equal(wrong, v) {
		t.Fatal("nothing to damage")
	}
	must(t, errors.Join(closer.Close(), db.Set(k, wrong, pebble.Sync), db.Flush(), db.Close()))
}

type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(string, ...any) {}

// What changes at rest shows in no entry, so no comparison finds it: the check of all
// records does.
func TestDamageAtRestIsFoundAndReplaced(t *testing.T) {
	var soonVerify atomic.Bool
	d := newDoubting(t, func(_ raft.ServerID, o *Options) {
		if soonVerify.Load() {
			o.Timing.FirstVerify = 10 * time.Millisecond
		}
	})
	d.put("k", "true")
	d.converge()
	id, _ := d.leader(testIDs...)
	bad := others(id)[0]
	must(t, d.group(bad).Snapshot()) // so that the value is on disk
	d.stop(bad)
	damage(t, d.nodes[bad].dir, "k", "true", "lies")
	soonVerify.Store(true)
	g := d.start(bad)
	soon(t, "the damage is not mended", func() bool { return counted(t, g.obs.reinstalled) > 0 && g.Doubt() == nil })
	if v, err := serve(g, "k"); v != "true" || err != nil || counted(t, g.obs.doubts(Damaged)) != 1 {
		t.Errorf("it serves %q, %v", v, err)
	}
	d.put("after", "1")
	d.converge()
}

// A server without others has nothing to copy from: it says so and goes on, for a restore
// needs one that runs.
func TestALoneServerSaysThatItsDataAreDamaged(t *testing.T) {
	o := alone(t, t.TempDir())
	g, err := Open(limited(t), o)
	must(t, err)
	put(t, g, "k", "true")
	must(t, g.Snapshot())
	must(t, g.Close())
	damage(t, o.Dir, "k", "true", "lies")
	_, o.Transport = raft.NewInmemTransport("a")
	o.Timing.FirstVerify = time.Millisecond
	g = openGroup(t, o)
	soon(t, "the damage is not found", func() bool { return g.Status().Damaged })
	if g.Trusted() != nil || counted(t, g.obs.verified("wrong")) == 0 {
		t.Errorf("%v", g.Trusted())
	}
}

func TestWhatIsReceivedFromALeaderIsVerified(t *testing.T) {
	d := newDoubting(t, func(_ raft.ServerID, o *Options) { o.Bounds.TrailingEntries = 1 })
	id, _ := d.leader(testIDs...)
	behind := others(id)[0]
	d.stop(behind)
	for i := range 100 {
		d.put(key(i), "v", others(behind)...)
	}
	d.converge()
	for _, i := range others(behind) { // whoever leads from now on has nothing else to send
		must(t, d.group(i).Snapshot())
	}
	f := d.start(behind)
	soon(t, "no snapshot was installed and verified", func() bool {
		return counted(t, f.obs.installed) > 0 && counted(t, f.obs.verified("ok")) > 0
	})
}

func TestTheMajorityOfAllVotersDecidesAndNotTheLeader(t *testing.T) {
	a, b, c := kv.Digest{1}, kv.Digest{2}, kv.Digest{3}
	says := func(d kv.Digest) answer { return answer{report: Report{Marked: true, Digest: d}} }
	mute, behind := answer{err: errCut}, answer{}
	replica := func(x answer) answer { x.server.Suffrage = raft.Nonvoter; return x }
	for name, x := range map[string]struct {
		voter   bool
		answers []answer
		want    finding
		other   kv.Digest
	}{
		"all agree":                               {true, []answer{says(a), says(a)}, agrees, a},
		"two of three agree":                      {true, []answer{says(a), says(b)}, agrees, a},
		"two of three agree, one is away":         {true, []answer{says(a), mute}, agrees, a},
		"two of three agree on something else":    {true, []answer{says(b), says(b)}, outvoted, b},
		"three states":                            {true, []answer{says(b), says(c)}, split, kv.Digest{}},
		"one differs, one is away":                {true, []answer{says(b), mute}, split, b},
		"one differs, one is behind":              {true, []answer{says(b), behind}, split, b},
		"two servers that differ":                 {true, []answer{says(b)}, split, b},
		"nobody answers":                          {true, []answer{mute, behind}, undecided, kv.Digest{}},
		"replicas have no say":                    {true, []answer{replica(says(b)), replica(says(b))}, agrees, a},
		"replicas make no majority":               {true, []answer{says(b), mute, replica(says(b)), replica(says(b))}, split, b},
		"a replica asks":                          {false, []answer{says(b), says(b), mute}, outvoted, b},
		"a replica asks, one answers":             {false, []answer{says(b), mute, mute}, split, b},
		"a replica of a single voter":             {false, []answer{says(b)}, outvoted, b},
		"four voters in two halves":               {true, []answer{says(a), says(b), says(b)}, split, b},
		"five voters, three of them of one state": {true, []answer{says(a), says(b), says(b), says(b)}, outvoted, b},
	} {
		t.Run(name, func(t *testing.T) {
			f, other := compared(a, x.voter, x.answers)
			if name == "three states" && (other == b || other == c) {
				other = kv.Digest{} // either
			}
			if f != x.want || other != x.other {
				t.Errorf("got %d %v, want %d %v", f, other, x.want, x.other)
			}
		})
	}
}

// A rescue is an operator's choice of a state: what the server thought of it is over.
func TestARescueEndsADoubt(t *testing.T) {
	o := alone(t, t.TempDir())
	g, err := Open(limited(t), o)
	must(t, err)
	put(t, g, "k", "true")
	g.distrust(g.Machine(), &Doubt{Cause: Split, Index: 1, Own: "1", Other: "2"})
	g.distrust(g.Machine(), &Doubt{Cause: Split, Index: 9, Own: "3", Other: "4"}) // known already
	if d := g.Doubt(); d == nil || d.Index != 1 || counted(t, g.obs.doubts(Split)) != 1 {
		t.Errorf("the doubt is %+v", d)
	}
	if _, err := g.ProposeRequest(limited(t), setRequest("k", "v"), Committed); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a write gave %v", err)
	}
	must(t, g.Close())
	_, o.Transport = raft.NewInmemTransport("a")
	if m, err := readManifest(o.Dir); err != nil || m.Doubt == nil || m.Doubt.Index != 1 {
		t.Fatalf("the manifest says %+v, %v", m, err)
	}
	_, err = Rescue(o)
	must(t, err)
	_, o.Transport = raft.NewInmemTransport("a")
	o.Metrics = NewMetrics(prometheus.NewRegistry())
	g = openGroup(t, o)
	if v, err := serve(g, "k"); v != "true" || err != nil {
		t.Errorf("after the rescue it serves %q, %v", v, err)
	}
}

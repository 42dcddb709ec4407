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
	"github.com/quorate/quorate/raftfsm/integrity"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// Compare queries the server at the other end of the wire.
func (w *wire) Compare(ctx context.Context, server raft.Server, index uint64) (r integrity.Report, err error) {
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

func (w *wire) AskState(_ context.Context, server raft.Server, ask integrity.StateRequest) error {
	return w.over(server.Address, func(*wire) error {
		g := w.cluster.group(server.ID)
		if g == nil {
			return errCut
		}
		return g.AnswerState(ask)
	})
}

// doubting is a cluster whose servers compare their states. A test can make some servers apply different
// values.
type doubting struct {
	*cluster
	wrong  map[raft.ServerID]*atomic.Bool
	supply atomic.Bool // transfers of state are allowed
}

// hold implements integrity.Replicas. It refuses requests for a state while open is false.
type hold struct {
	integrity.Replicas
	open *atomic.Bool
}

func (h hold) AskState(ctx context.Context, server raft.Server, ask integrity.StateRequest) error {
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
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})).With("server",
			string(id))
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

// soon is like until, with a limit of 90 s, for conditions that need one or two state comparisons on a busy machine.
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

// spoil makes a server apply a different value for key than the other servers. The leader must be one of the servers
// in ask; none = any server.
func (d *doubting) spoil(id raft.ServerID, key string, ask ...raft.ServerID) {
	d.t.Helper()
	d.wrong[id].Store(true)
	d.put(key, "true", ask...)
	soon(d.t.(*testing.T), "the wrong value was not applied", func() bool {
		// Wait for the wrong value or for its repair, because the repair may come before the value is read.
		g := d.group(id)
		return peekValue(d.t, g, key) == "lies" || counted(d.t.(*testing.T), g.obs.reinstalled) > 0
	})
	d.wrong[id].Store(false)
}

// serve reads a key like the store does: it reads the machine, then calls Trusted.
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

// watch reads a key from a server in the background until stop is called. It fails the test if a read returns a wrong
// value after the server has reported its first doubt.
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
				t.Errorf("the server returned %q after its doubt began", v)
				return
			}
		}
	}()
	return func() { once.Do(func() { close(ended); <-done }) }
}

func TestDoubt_DivergedReplicaIsReinstalled(t *testing.T) {
	t.Parallel()
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
		soon(t, "the state was not replaced", func() bool {
			return counted(t, g.obs.reinstalled) > 0 && g.Doubt() == nil
		})
		if v, err := serve(g, "k"); v != "true" || err != nil {
			t.Errorf("leads=%v: the server returned %q, %v", leads, v, err)
		}
		if n := counted(t, g.obs.doubts(snapshot.Differs)); n != 1 {
			t.Errorf("leads=%v: the server found its state wrong %v times", leads, n)
		}
		d.put("after", "1")
		d.converge() // compares the applied indexes and the hashes of the states
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
			if d.group(id).Doubt() != nil || counted(t, d.group(id).obs.doubts(snapshot.Differs)) != 0 {
				t.Errorf("leads=%v: %s is in doubt too", leads, id)
			}
		}
		d.stop(bad) // the installed state survives a restart
		g = d.start(bad)
		d.put("again", "1")
		d.converge()
		if v, err := serve(g, "k"); v != "true" || err != nil {
			t.Errorf("leads=%v: after a restart the server returned %q, %v", leads, v, err)
		}
	}
}

func databases(t *testing.T, dir string) (out []string) {
	all, err := filepath.Glob(filepath.Join(dir, snapshot.DatabasePrefix+"*"))
	must(t, err)
	return all
}

// A replica in doubt serves no reads, accepts no writes, sends its state to no other server, and stays in doubt
// after a restart.
func TestDoubt_SurvivesRestart(t *testing.T) {
	t.Parallel()
	d := newDoubting(t, nil)
	d.supply.Store(false)
	id, _ := d.leader(testIDs...)
	bad := others(id)[0]
	d.spoil(bad, "k")
	soon(t, "the wrong state is not found", func() bool { return d.group(bad).Doubt() != nil })
	for range 2 {
		g := d.group(bad)
		if _, err := serve(g, "k"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a read of the wrong state gave %v", err)
		}
		_, err := g.ProposeRequest(limited(t), setRequest("w", "v"), Committed)
		if !fault.Is(err, fault.Unavailable) {
			t.Errorf("a write in doubt gave %v", err)
		}
		if err := g.AnswerState(integrity.StateRequest{To: id}); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a request for the doubted state gave %v", err)
		}
		if r := g.AnswerCompare(g.Doubt().Index); r.Marked || !r.Doubted {
			t.Errorf("the doubted replica still takes part in comparisons: %+v", r)
		}
		if g.CaughtUp() {
			t.Error("a replica in doubt reports that it is caught up")
		}
		must(t, g.Snapshot()) // writes a new manifest, which must keep the doubt
		d.stop(bad)
		d.start(bad)
	}
	d.supply.Store(true)
	soon(t, "the state is not replaced after the restart", func() bool { return d.group(bad).Doubt() == nil })
	if v, err := serve(d.group(bad), "k"); v != "true" || err != nil {
		t.Errorf("the server returned %q, %v", v, err)
	}
}

// While one of three servers is away, the other two have different states. They cannot decide which state is right, so
// neither serves. The third server decides.
func TestDoubt_TwoDifferentStatesStopUntilMajorityAgrees(t *testing.T) {
	t.Parallel()
	d := newDoubting(t, nil)
	id, _ := d.leader(testIDs...)
	bad, away := others(id)[0], others(id)[1]
	d.stop(away)
	d.spoil(bad, "k", id, bad)
	for _, i := range []raft.ServerID{id, bad} {
		soon(t, "a server with a different state does not stop", func() bool {
			dt := d.group(i).Doubt()
			return dt != nil && dt.Cause == snapshot.Split
		})
		if _, err := serve(d.group(i), "k"); !fault.Is(err, fault.Unavailable) {
			t.Errorf("a read at %s gave %v", i, err)
		}
	}
	must(t, d.group(bad).Snapshot()) // otherwise the restart would apply the entries again, this time correctly
	d.stop(bad)
	d.start(bad)
	if dt := d.group(bad).Doubt(); dt == nil || dt.Cause != snapshot.Split {
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
	soon(t, "the wrong state was not replaced", func() bool { return counted(t, d.group(bad).obs.reinstalled) == 1 })
	if counted(t, d.group(id).obs.reinstalled) != 0 {
		t.Errorf("the state of %s was right and was replaced", id)
	}
	for _, i := range testIDs {
		soon(t, "not every server returns the right value", func() bool {
			v, err := serve(d.group(i), "k")
			return v == "true" && err == nil
		})
	}
}

// damage changes a stored value on disk, without the machine.
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

// Damage on disk changes no entry, so no state comparison finds it. The verification of all records does.
func TestVerify_FindsAndReplacesDamageOnDisk(t *testing.T) {
	t.Parallel()
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
	must(t, d.group(bad).Snapshot()) // moves the value to disk
	d.stop(bad)
	damage(t, d.nodes[bad].dir, "k", "true", "lies")
	soonVerify.Store(true)
	g := d.start(bad)
	soon(t, "the damaged state is not replaced", func() bool {
		return counted(t, g.obs.reinstalled) > 0 && g.Doubt() == nil
	})
	if v, err := serve(g, "k"); v != "true" || err != nil || counted(t, g.obs.doubts(snapshot.Damaged)) != 1 {
		t.Errorf("the server returned %q, %v", v, err)
	}
	d.put("after", "1")
	d.converge()
}

// A server without other servers has no state to copy. It reports the damage and continues, because a restore
// needs a running server.
func TestVerify_SingleServerReportsDamage(t *testing.T) {
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

func TestVerify_ChecksReceivedSnapshot(t *testing.T) {
	t.Parallel()
	d := newDoubting(t, func(_ raft.ServerID, o *Options) { o.Bounds.TrailingEntries = 1 })
	id, _ := d.leader(testIDs...)
	behind := others(id)[0]
	d.stop(behind)
	for i := range 100 {
		d.put(key(i), "v", others(behind)...)
	}
	d.converge()
	for _, i := range others(behind) { // every later leader has to send a snapshot
		must(t, d.group(i).Snapshot())
	}
	f := d.start(behind)
	soon(t, "no snapshot was installed and verified", func() bool {
		return counted(t, f.obs.installed) > 0 && counted(t, f.obs.verified("ok")) > 0
	})
}

func TestRescue_EndsDoubt(t *testing.T) {
	o := alone(t, t.TempDir())
	g, err := Open(limited(t), o)
	must(t, err)
	put(t, g, "k", "true")
	g.integrity.Distrust(g.Machine(), &snapshot.Doubt{Cause: snapshot.Split, Index: 1, Own: "1", Other: "2"})
	// a second doubt with the same cause is ignored
	g.integrity.Distrust(g.Machine(), &snapshot.Doubt{Cause: snapshot.Split, Index: 9, Own: "3", Other: "4"})
	if d := g.Doubt(); d == nil || d.Index != 1 || counted(t, g.obs.doubts(snapshot.Split)) != 1 {
		t.Errorf("the doubt is %+v", d)
	}
	if _, err := g.ProposeRequest(limited(t), setRequest("k", "v"), Committed); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a write gave %v", err)
	}
	must(t, g.Close())
	_, o.Transport = raft.NewInmemTransport("a")
	if m, err := readManifest(o.Dir); err != nil || m.Doubt == nil || m.Doubt.Index != 1 {
		t.Fatalf("the manifest has the doubt %+v, %v", m, err)
	}
	_, err = Rescue(o)
	must(t, err)
	_, o.Transport = raft.NewInmemTransport("a")
	o.Metrics = NewMetrics(prometheus.NewRegistry())
	g = openGroup(t, o)
	if v, err := serve(g, "k"); v != "true" || err != nil {
		t.Errorf("after the rescue the server returned %q, %v", v, err)
	}
}

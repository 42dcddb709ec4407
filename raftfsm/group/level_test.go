package group

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/raftlog"
)

// newForm returns a request that needs the second version.
func newForm() *command.Request {
	return &command.Request{Kind: command.KindRestore, Restore: &command.Restore{Step: command.StepBegin, ID: 7}}
}

// versions says which version each server understands, and records what was raised on each.
type versions struct {
	mu     sync.Mutex
	newest map[raft.ServerID]uint8
	raised map[raft.ServerID]uint8
}

func newVersions(newest uint8, ids ...raft.ServerID) *versions {
	v := &versions{newest: map[raft.ServerID]uint8{}, raised: map[raft.ServerID]uint8{}}
	for _, id := range ids {
		v.newest[id] = newest
	}
	return v
}

func (v *versions) set(id raft.ServerID, newest uint8) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.newest[id] = newest
}

func (v *versions) forget(id raft.ServerID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.newest, id)
}

func (v *versions) of(id raft.ServerID) uint8 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.raised[id]
}

func (v *versions) options(id raft.ServerID, o *Options) {
	o.Level, o.Server = v.of(id), versioned{versions: v, id: id}
}

// versioned is the server with the given id.
type versioned struct {
	NoServer
	*versions
	id raft.ServerID
}

func (v versioned) Newest(server raft.ServerID) (uint8, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, known := v.newest[server]
	return n, known
}

func (v versioned) Raise(version uint8) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.raised[v.id] = version
	return nil
}

// raiser has a function for Raise.
type raiser struct {
	NoServer
	raise func(version uint8) error
}

func (r raiser) Raise(version uint8) error { return r.raise(version) }

func TestLevel_WaitsUntilEveryServerUnderstandsIt(t *testing.T) {
	t.Parallel()
	v := newVersions(2, testIDs...)
	v.set("c", 1)
	c := newCluster(t, v.options)
	a := c.group("a")

	last := a.LastIndex()
	_, err := a.ProposeRequest(limited(t), newForm(), Committed)
	wantCode(t, err, fault.Invalid)
	for _, w := range []string{"format 2", "server c understands up to 1", "upgrade that server"} {
		if !strings.Contains(fault.Text(err), w) {
			t.Errorf("%q does not contain %q", fault.Text(err), w)
		}
	}
	v.forget("c")
	_, err = a.ProposeRequest(limited(t), newForm(), Committed)
	wantCode(t, err, fault.Unavailable)
	if a.Level() != command.First || a.LastIndex() != last || v.of("a") != 0 {
		t.Fatalf("level %d, log up to %d, raised to %d: a refused request has changed something", a.Level(),
			a.LastIndex(), v.of("a"))
	}
	put(t, a, "old", "form") // requests of the old version still work

	v.set("c", 2)
	if _, err := a.ProposeRequest(limited(t), newForm(), Committed); err != nil {
		t.Fatal(err)
	}
	for _, id := range testIDs {
		until(t, "the level is not raised on "+string(id), func() bool { return c.group(id).Level() == 2 })
		if got := v.of(id); got != 2 {
			t.Errorf("%s recorded format %d", id, got)
		}
	}
	v.set("c", 1) // no effect: the level never decreases
	if _, err := a.ProposeRequest(limited(t), &command.Request{Kind: command.KindRestore,
		Restore: &command.Restore{Step: command.StepAbort, ID: 7}}, Committed); err != nil {
		t.Fatal(err)
	}
}

// A reader of the log finds the entry that raises the level before every entry that needs it.
func TestLevel_PrecedesEntriesThatNeedItInTheLog(t *testing.T) {
	engines(t, func(t *testing.T, e raftlog.Engine) {
		o := alone(t, t.TempDir())
		o.Engine = e
		g := openGroup(t, o)
		put(t, g, "a", "1")
		if _, err := g.ProposeRequest(limited(t), newForm(), Committed); err != nil {
			t.Fatal(err)
		}
		put(t, g, "a", "2")
		var seen []uint8
		for i := uint64(1); i <= g.LastIndex(); i++ {
			var l raft.Log
			must(t, g.disk.logs.GetLog(i, &l))
			if l.Type != raft.LogCommand {
				continue
			}
			b, err := command.Decode(l.Data)
			must(t, err)
			if v := command.VersionOf(l.Data); v > 1 {
				seen = append(seen, uint8(b.Requests[0].Kind))
			}
		}
		if string(seen) != string([]uint8{uint8(command.KindFormat), uint8(command.KindRestore)}) {
			t.Errorf("entries of version 2 are of kinds %v", seen)
		}
	})
}

// A crash right after Raise leaves a recorded version that is too high, never one that is too low.
func TestLevel_IsDurableBeforeItsFirstEntry(t *testing.T) {
	t.Parallel()
	o := alone(t, t.TempDir())
	var g atomic.Pointer[Group]
	noted := uint64(0)
	o.Server = raiser{raise: func(version uint8) error {
		if noted != 0 {
			t.Errorf("raised again, to %d", version)
		}
		_, last, err := g.Load().disk.logs.Ends()
		noted = last
		return err
	}}
	g.Store(openGroup(t, o))
	before := put(t, g.Load(), "a", "1")
	if _, err := g.Load().ProposeRequest(limited(t), newForm(), Committed); err != nil {
		t.Fatal(err)
	}
	if noted != before.Index {
		t.Errorf("when the level was recorded the log ended at %d, want %d", noted, before.Index)
	}
}

func TestAddNonvoter_RefusesServerBelowLevel(t *testing.T) {
	v := newVersions(2, "a")
	o := alone(t, t.TempDir())
	v.options("a", &o)
	g := openGroup(t, o)
	_, prev := g.Servers()
	if _, err := g.ProposeRequest(limited(t), newForm(), Committed); err != nil {
		t.Fatal(err)
	}
	v.set("b", 1)
	wantCode(t, g.AddNonvoter(limited(t), "b", prev), fault.Invalid)
	wantCode(t, g.AddNonvoter(limited(t), "x", prev), fault.Unavailable)
	if servers, _ := g.Servers(); len(servers) != 1 {
		t.Fatalf("the group has %d servers", len(servers))
	}
	v.set("b", 2)
	must(t, g.AddNonvoter(limited(t), "b", prev))
}

func TestLevel_SurvivesRestartsAndSnapshots(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		v := newVersions(2, "a")
		o := alone(t, t.TempDir())
		o.Engine = e
		v.options("a", &o)
		g := openGroup(t, o)
		if _, err := g.ProposeRequest(limited(t), newForm(), Committed); err != nil {
			t.Fatal(err)
		}
		must(t, g.Snapshot())
		closeGroup(t, g)
		v.mu.Lock()
		v.raised = map[raft.ServerID]uint8{} // like a directory whose recorded version is older than its data
		v.mu.Unlock()
		_, o.Transport = raft.NewInmemTransport("a")
		v.options("a", &o)
		o.Metrics = NewMetrics(prometheus.NewRegistry())
		g = openGroup(t, o)
		if g.Level() != 2 || v.of("a") != 2 {
			t.Errorf("the level is %d, recorded %d", g.Level(), v.of("a"))
		}
	})
}

func TestLevel_ArrivesWithSnapshot(t *testing.T) {
	t.Parallel()
	v := newVersions(2, testIDs...)
	c := newCluster(t, func(id raft.ServerID, o *Options) {
		v.options(id, o)
		o.Bounds.TrailingEntries = 1
	})
	c.stop("c")
	a := c.group("a")
	if _, err := a.ProposeRequest(limited(t), newForm(), Committed); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		put(t, a, key(i), "v")
	}
	must(t, a.Snapshot())
	if v.of("c") != 0 {
		t.Fatal("c is stopped and has recorded a level")
	}
	g := c.start("c")
	until(t, "the level is not raised on c", func() bool { return g.Level() == 2 })
	if got := v.of("c"); got != 2 {
		t.Errorf("c recorded format %d", got)
	}
}

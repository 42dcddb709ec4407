package group

import (
	"os"
	"slices"
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

// These tests simulate builds that understand format 2. Only the request of newForm needs this format.

// newForm returns a request that needs the second version.
func newForm() *command.Request { return &command.Request{Kind: command.KindFormat, Limit: 2} }

// versions defines which version each server understands, and records which version was raised on each server.
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

func (v *versions) version(id raft.ServerID) uint8 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.raised[id]
}

func (v *versions) options(id raft.ServerID, o *Options) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o.newest, o.Level, o.Server = v.newest[id], v.raised[id], versioned{versions: v, id: id}
}

// versioned implements Server for the server with the id in it, according to versions.
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

// raiser is a Server whose method Raise calls a function of the test.
type raiser struct {
	NoServer
	raise func(version uint8) error
}

func (r raiser) Raise(version uint8) error { return r.raise(version) }

// Servers are upgraded one at a time to a build that understands format 2.
func TestLevel_WaitsUntilEveryServerUnderstandsIt(t *testing.T) {
	t.Parallel()
	v := newVersions(1, testIDs...)
	c := newCluster(t, v.options)
	upgrade := func(id raft.ServerID) {
		c.stop(id)
		v.set(id, 2)
		c.start(id)
	}
	upgrade("a")
	upgrade("b")
	c.transfer("a")
	a := c.group("a")

	last := a.LastIndex()
	_, err := a.ProposeRequest(limited(t), newForm(), Committed)
	wantCode(t, err, fault.FormatBlocked)
	for _, w := range []string{"format 2", "server c understands up to 1", "upgrade that server"} {
		if !strings.Contains(fault.Text(err), w) {
			t.Errorf("%q does not contain %q", fault.Text(err), w)
		}
	}
	if err := a.FormatBlocked(); !fault.Is(err, fault.FormatBlocked) ||
		!strings.Contains(fault.Text(err), "server c understands up to 1") {
		t.Errorf("before the first request that needs it, the group does not say that it would be refused: %v", err)
	}
	v.forget("c")
	_, err = a.ProposeRequest(limited(t), newForm(), Committed)
	wantCode(t, err, fault.FormatBlocked)
	if a.Level() != command.First || a.LastIndex() != last || v.version("a") != 0 {
		t.Fatalf("level %d, log up to %d, raised to %d: a refused request has changed something", a.Level(),
			a.LastIndex(), v.version("a"))
	}
	put(t, a, "old", "form") // requests of the old version still work

	upgrade("c")
	c.transfer("a")
	if _, err := a.ProposeRequest(limited(t), newForm(), Committed); err != nil {
		t.Fatal(err)
	}
	for _, id := range testIDs {
		until(t, "the level is not raised on "+string(id), func() bool { return c.group(id).Level() == 2 })
		if got := v.version(id); got != 2 {
			t.Errorf("%s recorded format %d", id, got)
		}
	}
	if err := a.FormatBlocked(); err != nil {
		t.Errorf("nothing is refused any more: %v", err)
	}
	v.set("c", 1) // no effect: the level never decreases
	if _, err := a.ProposeRequest(limited(t), newForm(), Committed); err != nil {
		t.Fatal(err)
	}
}

// In a new cluster no request waits for a server that is down: the group has the newest format from the start.
func TestLevel_NewGroupBeginsWithNewest(t *testing.T) {
	t.Parallel()
	v := newVersions(2, testIDs...)
	c := newCluster(t, v.options)
	c.stop("c")
	v.forget("c")
	eventually(t, func() error {
		_, g := c.leader("a", "b")
		if got := g.Level(); got != 2 {
			t.Fatalf("the level is %d", got)
		}
		_, err := g.ProposeRequest(limited(t), newForm(), Committed)
		return err
	})
	if got := v.version("a"); got != 2 {
		t.Errorf("a recorded format %d", got)
	}
	v.set("c", 2)
	g := c.start("c")
	until(t, "the level is not raised on c", func() bool { return g.Level() == 2 })
}

func TestForm_BeginsWithNewestLevel(t *testing.T) {
	t.Parallel()
	o := alone(t, t.TempDir())
	o.Bootstrap, o.newest = false, 2
	g := openGroup(t, o)
	must(t, g.Form(limited(t)))
	if got := g.Level(); got != 2 {
		t.Errorf("the level is %d", got)
	}
}

// A reader of the log finds the entry that raises the level before every entry that needs it.
func TestLevel_PrecedesEntriesThatNeedItInTheLog(t *testing.T) {
	engines(t, func(t *testing.T, e raftlog.Engine) {
		g := openUpgraded(t, func(o *Options) { o.Engine = e })
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
			seen = append(seen, command.VersionOf(l.Data))
		}
		if !slices.Equal(seen, []uint8{1, 2, 2, 1}) {
			t.Errorf("the entries are of versions %v; the first of version 2 raises the level", seen)
		}
	})
}

// A crash right after Raise leaves a recorded version that is too high, never one that is too low.
func TestLevel_IsDurableBeforeItsFirstEntry(t *testing.T) {
	t.Parallel()
	var g atomic.Pointer[Group]
	noted := uint64(0)
	g.Store(openUpgraded(t, func(o *Options) {
		o.Server = raiser{raise: func(version uint8) error {
			if noted != 0 {
				t.Errorf("raised again, to %d", version)
			}
			_, last, err := g.Load().disk.logs.Ends()
			noted = last
			return err
		}}
	}))
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
	v.set("b", 1)
	wantCode(t, g.AddNonvoter(limited(t), "b", prev), fault.FormatBlocked)
	wantCode(t, g.AddNonvoter(limited(t), "x", prev), fault.FormatBlocked)
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
		must(t, g.Snapshot())
		closeGroup(t, g)
		_, o.Transport = raft.NewInmemTransport("a")
		v.options("a", &o)
		o.Metrics = NewMetrics(prometheus.NewRegistry())
		g = openGroup(t, o)
		if g.Level() != 2 || v.version("a") != 2 {
			t.Errorf("the level is %d, recorded %d", g.Level(), v.version("a"))
		}
	})
}

// openUpgraded creates a group with a build that knows only the first version, and writes one command. It then opens
// the group with a build that knows the second version.
func openUpgraded(t *testing.T, change func(*Options)) *Group {
	t.Helper()
	o := alone(t, t.TempDir())
	change(&o)
	server := o.Server
	o.Server = nil
	g := openGroup(t, o)
	put(t, g, "a", "1")
	closeGroup(t, g)
	_, o.Transport = raft.NewInmemTransport("a")
	o.Bootstrap, o.newest, o.Server, o.Metrics = false, 2, server, NewMetrics(prometheus.NewRegistry())
	g = openGroup(t, o)
	if g.Level() != command.First {
		t.Fatalf("the build has raised the level to %d without need", g.Level())
	}
	return g
}

func TestLevel_ArrivesWithSnapshot(t *testing.T) {
	t.Parallel()
	v := newVersions(2, testIDs...)
	c := newCluster(t, func(id raft.ServerID, o *Options) {
		v.options(id, o)
		o.Bounds.TrailingEntries = 1
	})
	c.stop("c")
	must(t, os.RemoveAll(c.nodes["c"].dir)) // an empty server gets the state, and not the first entries
	v.forget("c")
	delete(v.raised, "c")
	for i := range 20 {
		c.put(key(i), "v", "a", "b")
	}
	must(t, c.group("a").Snapshot())
	must(t, c.group("b").Snapshot())
	v.set("c", 2)
	g := c.start("c")
	until(t, "the level is not raised on c", func() bool { return g.Level() == 2 })
	if got := v.version("c"); got != 2 {
		t.Errorf("c recorded format %d", got)
	}
}

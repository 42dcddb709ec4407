package group

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// counted returns the value of a counter.
func counted(t testing.TB, c prometheus.Counter) int {
	t.Helper()
	reg := prometheus.NewRegistry()
	must(t, reg.Register(c))
	families, err := reg.Gather()
	must(t, err)
	return int(families[0].GetMetric()[0].GetCounter().GetValue())
}

// large is a value of 2000 bytes. 40 entries with such values need several of raft-wal's segments in these tests.
var large = strings.Repeat("v", 2000)

// manual disables automatic snapshots, and keeps only 5 entries in the log after a snapshot.
func manual(o *Options) {
	o.Bounds.SnapshotEntries, o.Bounds.SnapshotLogBytes, o.Bounds.TrailingEntries = 1<<40, 1<<40, 5
}

// installed returns a cluster led by a, in which c has just installed a snapshot.
func installed(t *testing.T, e raftlog.Engine) (*cluster, *Group, *Group) {
	t.Helper()
	c := newCluster(t, func(id raft.ServerID, o *Options) {
		slowLeader(id, o)
		manual(o)
		o.Engine = e
	})
	a := c.group("a")
	c.isolate("c")
	for i := range 40 {
		put(t, a, key(i), large)
	}
	must(t, a.Snapshot())
	c.heal()
	c.converge()
	follower := c.group("c")
	until(t, "no snapshot was installed", func() bool { return counted(t, follower.obs.installed) > 0 })
	return c, a, follower
}

// stranger returns a transport of an unknown server, which reaches only server c.
func stranger(c *cluster) *raft.InmemTransport {
	_, tr := raft.NewInmemTransportWithTimeout("stranger", patience)
	c.mu.Lock()
	defer c.mu.Unlock()
	tr.Connect("c", c.nodes["c"].wire.InmemTransport)
	return tr
}

func header(from raft.ServerID) raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(from), Addr: []byte(from)}
}

// The placeholder for the last entry of a snapshot serves only the consistency check of appends.
func TestInstall_SnapshotEntryIsNeverSent(t *testing.T) {
	c, _, follower := installed(t, raftlog.BoltDB)
	snap := follower.disk.snaps.Position()
	var l raft.Log
	must(t, follower.disk.logs.GetLog(snap.Index, &l))
	if l.Index != snap.Index || l.Term != snap.Term {
		t.Errorf("got entry %d of term %d for the snapshot's %d of term %d", l.Index, l.Term, snap.Index, snap.Term)
	}
	if err := raftlog.Verify(&l); err == nil {
		t.Error("another server would accept it as an entry")
	}
	c.transfer("c")
	err := follower.disk.logs.GetLog(snap.Index, &l)
	if err != raft.ErrLogNotFound { //nolint:errorlint // raft compares with != as well
		t.Errorf("GetLog of the snapshot's entry on a leader returned %v", err)
	}
}

// installRequest returns the install request that the server from would send now, and its data.
func installRequest(t *testing.T, from *Group) (*raft.InstallSnapshotRequest, []byte) {
	t.Helper()
	list, err := from.disk.snaps.List()
	must(t, err)
	meta, r, err := from.disk.snaps.Open(list[0].ID)
	must(t, err)
	b, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	if int64(len(b)) != meta.Size {
		t.Fatalf("the stream has %d bytes, %d were announced", len(b), meta.Size)
	}
	return &raft.InstallSnapshotRequest{
		RPCHeader: header("a"), SnapshotVersion: raft.SnapshotVersionMax, Term: from.Term(), LastLogIndex: meta.Index,
		LastLogTerm:   meta.Term,
		Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex,
		Size: meta.Size,
	}, b
}

func TestInstall_SkipsSnapshotWithNothingNew(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		c, a, follower := installed(t, e)
		for i := range 10 {
			put(t, a, key(100+i), "v")
		}
		c.converge()
		database, last := follower.disk.snaps.LiveDatabase(), follower.LastIndex()
		before := counted(t, follower.obs.installed)
		same, data := installRequest(t, a)
		if same.LastLogIndex >= last {
			t.Fatal("the test shows nothing")
		}
		check := func(what string, success bool) {
			t.Helper()
			var resp raft.InstallSnapshotResponse
			must(t, stranger(c).InstallSnapshot("c", "c", same, &resp, bytes.NewReader(data)))
			if resp.Success != success {
				t.Fatalf("%s: %+v", what, resp)
			}
			if n := counted(t, follower.obs.installed); n != before || follower.disk.snaps.LiveDatabase() != database ||
				follower.LastIndex() != last {
				t.Fatalf("%s: %d installs, database %s, last entry %d; want %d, %s, %d", what, n,
					follower.disk.snaps.LiveDatabase(), follower.LastIndex(), before, database, last)
			}
		}
		check("the one it was made from", true)
		must(t, follower.Snapshot()) // entries up to here are in the database
		check("one below its own, but in its log", false)
		must(t, a.Snapshot())
		same, data = installRequest(t, a)
		check("one in its log", true)
		put(t, a, "more", "v")
		c.converge()
	})
}

// A received database may contain more entries than its snapshot covers. The next snapshot then ends later, but its
// database may contain fewer entries than the live database. It must not replace a trusted database.
func TestInstall_DoesNotMoveTrustedMachineBack(t *testing.T) {
	t.Parallel()
	for name, doubted := range map[string]bool{"trusted": false, "doubted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, func(id raft.ServerID, o *Options) {
				slowLeader(id, o)
				manual(o)
			})
			a, follower := c.group("a"), c.group("c")
			c.put("k", "v0")
			c.converge()
			c.isolate("c")
			state := func(value string) (*raft.InstallSnapshotRequest, []byte) {
				put(t, a, "k", value)
				must(t, a.Snapshot())
				return installRequest(t, a)
			}
			first, _ := state("v1")
			second, older := state("v2")
			_, newer := state("v3")
			install := func(req *raft.InstallSnapshotRequest, data []byte, want string) {
				t.Helper()
				req.Size = int64(len(data))
				var resp raft.InstallSnapshotResponse
				must(t, stranger(c).InstallSnapshot("c", "c", req, &resp, bytes.NewReader(data)))
				got, end := peekValue(t, follower, "k"), follower.disk.snaps.Index()
				if !resp.Success || got != want || end != req.LastLogIndex || follower.LastIndex() != end {
					t.Fatalf("%+v, k = %q, the snapshot ends at %d, raft's log at %d; want %q and %d", resp, got, end,
						follower.LastIndex(), want, req.LastLogIndex)
				}
			}
			install(first, newer, "v3")
			m, want := follower.Machine(), "v3"
			if doubted {
				follower.integrity.Distrust(m, &snapshot.Doubt{Cause: snapshot.Split, Index: 1, Own: "1", Other: "2"})
				want = "v2"
			}
			install(second, older, want)
			if kept := follower.Machine() == m; kept == doubted || follower.Doubt() != nil {
				t.Errorf("the machine was kept: %t; doubt %+v", kept, follower.Doubt())
			}
			for _, dir := range names(t, follower.opts.Dir) {
				if strings.HasPrefix(dir, snapshot.DatabasePrefix) && dir != follower.disk.snaps.LiveDatabase() {
					t.Errorf("%s is left behind", dir)
				}
			}
			c.stop("c")
			follower = c.start("c")
			if got := peekValue(t, follower, "k"); got != want {
				t.Errorf("after a restart, k = %q, want %q", got, want)
			}
			c.heal()
			c.put("k", "v4")
			c.converge()
			if got := peekValue(t, follower, "k"); got != "v4" {
				t.Errorf("at the end, k = %q", got)
			}
		})
	}
}

func TestInstall_LeaderWithOlderSnapshotTakesNewerOne(t *testing.T) {
	c := newCluster(t, func(id raft.ServerID, o *Options) {
		slowLeader(id, o)
		manual(o)
	})
	a := c.group("a")
	put(t, a, "k", "v")
	must(t, a.Snapshot())
	for i := range 20 {
		put(t, a, key(i), "v")
	}
	c.converge()
	follower := c.group("c")
	must(t, follower.Snapshot())
	old := a.disk.snaps.Index()
	if old >= follower.disk.snaps.Index() {
		t.Fatal("the test shows nothing")
	}
	req, data := installRequest(t, a)
	var resp raft.InstallSnapshotResponse
	must(t, a.guard.InstallSnapshot("c", "c", req, &resp, bytes.NewReader(data)))
	if resp.Success {
		t.Fatal("an older snapshot was installed")
	}
	until(t, "the leader takes no newer snapshot", func() bool { return a.disk.snaps.Index() > old })
}

// onlyBySnapshot waits until no other server has the entry in its log that the isolated server behind needs next. Raft
// compacts a log some time after the snapshot, and an append that was sent before the isolation may still arrive.
func (c *cluster) onlyBySnapshot(behind raft.ServerID) {
	c.t.Helper()
	for _, id := range others(behind) {
		g, f := c.group(id), c.group(behind)
		until(c.t, string(id)+" keeps the next entry", func() bool {
			next := f.LastIndex() + 1
			first, err := g.disk.logs.FirstIndex()
			must(c.t, err)
			return first > next && errors.Is(g.disk.logs.GetLog(next, &raft.Log{}), raft.ErrLogNotFound)
		})
	}
}

func TestInstall_LaggingFollowerCatchesUpUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a cluster under load for many seconds")
	}
	engines(t, func(t *testing.T, e raftlog.Engine) {
		c := newCluster(t, func(_ raft.ServerID, o *Options) {
			o.Engine = e
			o.Bounds.SnapshotEntries, o.Bounds.TrailingEntries, o.Bounds.EntryCount = 40, 10, 4
		})
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for w := range 3 {
			wg.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
						c.put(fmt.Sprintf("w%d-%d", w, i%50), large)
					}
				}
			})
		}
		for range 3 {
			lead, _ := c.leader(testIDs...)
			behind := others(lead)[0]
			f := c.group(behind)
			before := counted(t, f.obs.installed)
			installed := func() bool { return counted(t, f.obs.installed) > before }
			until(t, "no snapshot is installed", func() bool {
				c.isolate(behind)
				c.onlyBySnapshot(behind)
				last := f.LastIndex()
				c.heal()
				until(t, "the follower does not catch up", func() bool { return installed() || f.LastIndex() > last })
				return installed() // not if an append that was sent before the isolation arrived after onlyBySnapshot
			})
			c.stop(behind) // the follower starts again from the installed state
			c.start(behind)
			until(t, "the leader still keeps entries for the follower", func() bool { // it keeps them up to a minute
				_, g := c.leader(testIDs...)
				return g.disk.logs.Retained().Oldest() == 0
			})
		}
		close(stop)
		wg.Wait()
		c.put("last", "v")
		c.converge()
		for id, g := range c.running() {
			// a replaced database is removed when no reader uses it any more
			until(t, string(id)+" keeps a database that was replaced", func() bool {
				for _, name := range names(t, g.opts.Dir) {
					if strings.HasPrefix(name, snapshot.DatabasePrefix) && name != g.disk.snaps.LiveDatabase() {
						return false
					}
				}
				return true
			})
		}
	})
}

func TestInstall_SurvivesCrashAtAnyStep(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		var step func(string)
		var images func() map[string]string
		c := newCluster(t, func(id raft.ServerID, o *Options) {
			slowLeader(id, o)
			manual(o)
			o.Engine = e
			if id == "c" && step == nil {
				step, images = imaging(t, o.Dir)
				o.Step = func(s string) {
					if s != "log-append" && s != "log-appended" {
						step(s)
					}
				}
			}
		})
		a := c.group("a")
		put(t, a, "k", "old")
		c.converge()
		made := len(images())
		c.isolate("c")
		for i := range 40 {
			put(t, a, key(i), large)
		}
		put(t, a, "k", "new")
		must(t, a.Snapshot())
		put(t, a, "above", "v")
		c.heal()
		until(t, "the log does not continue above the snapshot", func() bool {
			return c.group("c").disk.logs.Last() == a.LastIndex()
		})
		c.stop("c")
		all := images()
		if len(all)-made < 5 {
			t.Fatalf("only %d steps of an install were seen: %v", len(all)-made, all)
		}
		for name, dir := range all {
			t.Run(name, func(t *testing.T) {
				if _, err := os.Stat(filepath.Join(dir, raftlog.StableName)); err != nil {
					t.Skip("the group was still being made")
				}
				c.nodes["c"].dir = dir
				g := c.start("c")
				if s := g.disk.snaps.Info(); g.Machine().Applied() < s.Applied {
					t.Errorf("opened at %d below its snapshot's %d", g.Machine().Applied(), s.Applied)
				}
				put(t, a, "k", name)
				c.converge()
				c.stop("c")
			})
		}
	})
}

// receive writes the snapshot of from to a new sink of to, as raft would. The function alter may change the data.
func receive(t *testing.T, from *Group, to *snapshot.Store, alter func([]byte) []byte) (raft.SnapshotSink, error) {
	t.Helper()
	req, data := installRequest(t, from)
	sink, err := to.Create(raft.SnapshotVersionMax, req.LastLogIndex, req.LastLogTerm,
		raft.DecodeConfiguration(req.Configuration), req.ConfigurationIndex, nil)
	must(t, err)
	_, err = io.Copy(sink, bytes.NewReader(alter(bytes.Clone(data))))
	return sink, err
}

func whole(b []byte) []byte { return b }

// pair returns a group with a snapshot and an idle group that can receive it.
func pair(t *testing.T, change ...func(*Options)) (from, to *Group) {
	t.Helper()
	from = openGroup(t, alone(t, t.TempDir()))
	for i := range 20 {
		put(t, from, key(i), "v")
	}
	must(t, from.Snapshot())
	o := alone(t, t.TempDir())
	o.Bootstrap = false
	for _, f := range change {
		f(&o)
	}
	return from, openGroup(t, o)
}

func TestInstall_DamagedOrCancelledTransferChangesNothing(t *testing.T) {
	t.Parallel()
	from, to := pair(t)
	before, dirs := to.disk.snaps.LiveDatabase(), names(t, to.opts.Dir)
	check := func(what string) {
		t.Helper()
		if d := cmp.Diff(dirs, names(t, to.opts.Dir)); d != "" || to.disk.snaps.LiveDatabase() != before ||
			to.disk.snaps.Index() != 0 {
			t.Errorf("%s: database %s, snapshot %d, %s", what, to.disk.snaps.LiveDatabase(), to.disk.snaps.Index(), d)
		}
	}
	for name, alter := range map[string]func([]byte) []byte{
		"flipped":  func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"cut":      func(b []byte) []byte { return b[:len(b)-1] },
		"too long": func(b []byte) []byte { return append(b, 0) },
		"empty":    func([]byte) []byte { return []byte("x") },
	} {
		sink, err := receive(t, from, to.disk.snaps, alter)
		if err == nil {
			err = sink.Close()
		}
		if !fault.Is(err, fault.Corrupt) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, sink.Cancel())
		must(t, sink.Close())
		check(name)
	}
	sink, err := receive(t, from, to.disk.snaps, func(b []byte) []byte { return b[:len(b)/2] })
	must(t, err)
	must(t, sink.Cancel())
	check("cancelled midway")
	empty, err := to.disk.snaps.Create(raft.SnapshotVersionMax, 1, 1, raft.Configuration{}, 0, nil)
	must(t, err)
	if err := empty.Close(); err == nil {
		t.Error("an empty snapshot was accepted")
	}
	check("nothing at all")
}

func TestInstall_RestoreReplacesDatabase(t *testing.T) {
	from, to := pair(t)
	old := to.disk.snaps.LiveDatabase()
	sink, err := receive(t, from, to.disk.snaps, whole)
	must(t, err)
	must(t, sink.Close())
	if got := peekValue(t, to, key(0)); got != "" {
		t.Error("the machine was replaced before Restore")
	}
	meta, token, err := to.disk.snaps.Open(sink.ID())
	must(t, err)
	if meta.Index != from.disk.snaps.Index() {
		t.Errorf("the snapshot has index %d, want %d", meta.Index, from.disk.snaps.Index())
	}
	reader := to.Machine()
	must(t, to.disk.fsm.Restore(token))
	if got := peekValue(t, to, key(0)); got != "v" {
		t.Errorf("after the swap %s = %q", key(0), got)
	}
	if _, err := reader.Get(store, key(0), 0); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a read of the replaced machine gave %v", err)
	}
	if _, err := os.Stat(filepath.Join(to.opts.Dir, old)); err == nil {
		t.Error("the replaced database is still there")
	}
	i, h := to.Machine().Hash()
	if j, k := from.Machine().Hash(); i != j || h != k {
		t.Errorf("the states differ: %d %x and %d %x", i, h, j, k)
	}
	if _, err := to.disk.snaps.Take(sink.ID()); err == nil {
		t.Error("a received database was returned twice")
	}
}

func TestInstall_DropsLocalSnapshotThatEndsLater(t *testing.T) {
	from, to := pair(t)
	local, err := to.disk.snaps.Create(raft.SnapshotVersionMax, 5, 1, raft.Configuration{}, 0, nil)
	must(t, err)
	snap, err := to.disk.fsm.Snapshot()
	must(t, err)
	must(t, snap.Persist(local)) // a snapshot of the live database
	sink, err := receive(t, from, to.disk.snaps, whole)
	must(t, err)
	must(t, sink.Close())
	wantCode(t, local.Close(), fault.Unavailable)
	man, err := readManifest(to.opts.Dir)
	must(t, err)
	if man.Snapshot.Index != from.disk.snaps.Index() {
		t.Errorf("the manifest names the snapshot at %d, want the received one at %d", man.Snapshot.Index,
			from.disk.snaps.Index())
	}
	// A local snapshot that begins before the received one is restored still uses the old machine.
	late, err := to.disk.snaps.Create(raft.SnapshotVersionMax, 1<<40, 1, raft.Configuration{}, 0, nil)
	must(t, err)
	snap, err = to.disk.fsm.Snapshot()
	must(t, err)
	must(t, snap.Persist(late))
	if err := late.Close(); !fault.Is(err, fault.Unavailable) {
		t.Errorf("the old machine became a snapshot of the new database: %v", err)
	}
}

func TestInstall_SecondTransferWaitsForFirst(t *testing.T) {
	t.Parallel()
	from, to := pair(t)
	sink, err := receive(t, from, to.disk.snaps, whole)
	must(t, err)
	must(t, sink.Close())
	again, err := receive(t, from, to.disk.snaps, whole)
	must(t, err)
	wantCode(t, again.Close(), fault.Unavailable)
}

func TestInstall_KeepsDatabaseThatManifestMayName(t *testing.T) {
	var armed atomic.Bool
	var dir string
	from, to := pair(t, func(o *Options) {
		dir = o.Dir
		o.Step = func(step string) {
			if step == "manifest-renamed" && armed.Load() { // then the directory cannot be synced
				must(t, os.Rename(dir, dir+".gone"))
			}
		}
	})
	armed.Store(true)
	must(t, to.disk.stable.SetUint64([]byte("CurrentTerm"), from.Term())) // raft stores the term first
	sink, err := receive(t, from, to.disk.snaps, whole)
	must(t, err)
	err = sink.Close()
	armed.Store(false)
	must(t, os.Rename(dir+".gone", dir))
	if err == nil {
		t.Fatal("the failure was not noticed")
	}
	man, err := readManifest(dir)
	must(t, err)
	if _, err := os.Stat(filepath.Join(dir, man.Database, "CURRENT")); err != nil && !os.IsNotExist(err) {
		must(t, err)
	}
	if len(names(t, filepath.Join(dir, man.Database))) == 0 {
		t.Errorf("the manifest names %s, which was removed", man.Database)
	}
	closeGroup(t, to)
	o := alone(t, dir)
	o.Bootstrap = false
	openGroup(t, o)
}

func TestCheckpoint_IsSharedAndExpires(t *testing.T) {
	t.Parallel()
	g := openGroup(t, alone(t, t.TempDir()))
	g.disk.snaps.CheckpointLife = 50 * time.Millisecond
	put(t, g, "k", "v")
	must(t, g.Snapshot())
	open := func() io.ReadCloser {
		t.Helper()
		list, err := g.disk.snaps.List()
		must(t, err)
		_, r, err := g.disk.snaps.Open(list[0].ID)
		must(t, err)
		return r
	}
	checkpoints := func() (n int) {
		for _, name := range names(t, g.opts.Dir) {
			if len(name) > len(snapshot.CheckpointPrefix) &&
				name[:len(snapshot.CheckpointPrefix)] == snapshot.CheckpointPrefix {
				n++
			}
		}
		return n
	}
	first, second := open(), open()
	if n := checkpoints(); n != 1 {
		t.Fatalf("two transfers at a time made %d checkpoints", n)
	}
	must(t, first.Close())
	must(t, first.Close()) // a second Close is harmless
	timer := time.NewTimer(3 * g.disk.snaps.CheckpointLife)
	<-timer.C
	if n := checkpoints(); n != 1 {
		t.Fatalf("a checkpoint in use expired (%d left)", n)
	}
	if b, err := io.ReadAll(second); err != nil || len(b) == 0 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	must(t, second.Close())
	must(t, open().Close()) // a retry of a transfer uses the same checkpoint
	until(t, "an unused checkpoint does not expire", func() bool { return checkpoints() == 0 })

	g.disk.snaps.CheckpointLife = time.Hour
	must(t, open().Close())
	put(t, g, "k", "v2")
	must(t, g.Snapshot())
	busy := open() // of the newer snapshot
	if n := checkpoints(); n != 1 {
		t.Errorf("the checkpoint of an older snapshot is kept: %d", n)
	}
	put(t, g, "k", "v3")
	must(t, g.Snapshot())
	newest := open()
	if n := checkpoints(); n != 2 {
		t.Errorf("%d checkpoints, want the busy one and the newest", n)
	}
	must(t, busy.Close()) // closed in the middle of its stream
	if n := checkpoints(); n != 1 {
		t.Errorf("an outdated checkpoint was kept after its last reader: %d", n)
	}
	must(t, newest.Close())
	closeGroup(t, g)
	if n := checkpoints(); n != 0 {
		t.Errorf("%d checkpoints after closing", n)
	}
}

func TestOpen_RemovesLeftoversOfCrash(t *testing.T) {
	o := alone(t, t.TempDir())
	g := openGroup(t, o)
	put(t, g, "k", "v")
	closeGroup(t, g)
	for _, name := range []string{"db-000007", "ckpt-000009"} {
		must(t, os.MkdirAll(filepath.Join(o.Dir, name, "sub"), 0o700))
	}
	must(t, os.WriteFile(filepath.Join(o.Dir, snapshot.ManifestName+".tmp"), []byte("half"), 0o600))
	g = openGroup(t, alone(t, o.Dir))
	for _, name := range names(t, o.Dir) {
		if name == "db-000007" || name == "ckpt-000009" {
			t.Errorf("%s is still there", name)
		}
	}
	if got := g.disk.snaps.FreeName(snapshot.DatabasePrefix); got != "db-000010" {
		t.Errorf("the next directory is %s", got)
	}
	if got := peekValue(t, g, "k"); got != "v" {
		t.Errorf("k = %q", got)
	}
}

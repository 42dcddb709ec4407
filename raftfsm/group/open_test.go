package group

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// imaging returns a function for Options.Step. It copies dir at every step, in the state in which a crash at that
// moment would leave dir. The function images returns the copies, by step.
func imaging(t testing.TB, dir string) (step func(string), images func() map[string]string) {
	var mu sync.Mutex
	made, seen := map[string]string{}, map[string]int{}
	return func(step string) {
			mu.Lock()
			defer mu.Unlock()
			seen[step]++
			name := fmt.Sprintf("%s#%d", step, seen[step])
			made[name] = filepath.Join(t.TempDir(), "g")
			copySteady(t, dir, made[name])
		}, func() map[string]string {
			mu.Lock()
			defer mu.Unlock()
			return made
		}
}

func TestOpen_SurvivesCrashAtAnyStepOfCreation(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		o := alone(t, filepath.Join(t.TempDir(), "g"))
		o.Engine = e
		var images func() map[string]string
		o.Step, images = imaging(t, o.Dir)
		g := openGroup(t, o)
		put(t, g, "k", "v")
		closeGroup(t, g)
		if n := len(images()); n < 8 {
			t.Fatalf("only %d steps were seen", n)
		}
		for name, dir := range images() {
			t.Run(name, func(t *testing.T) {
				again := alone(t, dir)
				again.Engine = e
				g := openGroup(t, again)
				put(t, g, "k", "v2")
			})
		}
	})
}

func TestOpen_WithoutBootstrapWaitsForOthers(t *testing.T) {
	o := alone(t, t.TempDir())
	o.Bootstrap = false
	g := openGroup(t, o)
	if g.Leading() {
		t.Fatal("a group without servers leads")
	}
	_, err := g.ProposeRequest(limited(t), setRequest("k", "v"), Committed)
	wantCode(t, err, fault.NotLeader)
	_, err = g.ReadIndex(limited(t))
	wantCode(t, err, fault.NotLeader)
	if g.CaughtUp() {
		t.Error("an empty group reports that it is caught up")
	}
	// A later bootstrap is allowed, because the group has received no message yet.
	closeGroup(t, g)
	o = alone(t, o.Dir)
	put(t, openGroup(t, o), "k", "v")
}

func TestOpen_DoesNotBootstrapOverExistingGroup(t *testing.T) {
	o := alone(t, t.TempDir())
	o.Bootstrap = false
	g := openGroup(t, o)
	must(t, g.disk.stable.SetUint64([]byte("CurrentTerm"), 1))
	castVote(t, g.disk.stable, 1, "somebody")
	closeGroup(t, g)
	o = alone(t, o.Dir)
	if g := openGroup(t, o); g.lone() {
		t.Error("a server that has voted for another bootstrapped a group of its own")
	}
}

func TestOpen_RefusesInvalidOptions(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no directory":     func(o *Options) { o.Dir = "" },
		"no server id":     func(o *Options) { o.ServerID = "" },
		"no transport":     func(o *Options) { o.Transport = nil },
		"no fatal":         func(o *Options) { o.Fatal = nil },
		"unknown engine":   func(o *Options) { o.Engine = "paper" },
		"lease too long":   func(o *Options) { o.Timing.Lease = 2 * time.Second },
		"lease too short":  func(o *Options) { o.Timing.Heartbeat = 10 * time.Second },
		"directory a file": func(o *Options) { o.Dir = filepath.Join(o.Dir, "f"); _ = os.WriteFile(o.Dir, nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			o := alone(t, t.TempDir())
			change(&o)
			g, err := Open(limited(t), o)
			if err == nil {
				closeGroup(t, g)
				t.Fatal("accepted")
			}
			if _, ok := fault.As(err); !ok {
				t.Errorf("an error without a code: %v", err)
			}
		})
	}
}

func TestOpen_RefusesLogOfOtherEngineWithHint(t *testing.T) {
	o := alone(t, t.TempDir())
	closeGroup(t, openGroup(t, o))
	o = alone(t, o.Dir)
	o.Engine = raftlog.WAL
	_, err := Open(limited(t), o)
	wantCode(t, err, fault.Invalid)
}

func TestWaitReady_TimesOutWithoutLeader(t *testing.T) {
	o := alone(t, t.TempDir())
	// No server answers: the second voter of this group does not exist.
	o.Step = func(string) {}
	g := openGroup(t, o)
	f := g.raft.AddVoter("b", "b", 0, 0)
	eventually(t, func() error {
		if g.lone() {
			return fmt.Errorf("b is not in the configuration")
		}
		return nil
	})
	closeGroup(t, g)
	_ = f
	o = alone(t, o.Dir)
	g = openGroup(t, o) // does not wait for leadership, because the group has two voters
	ctx := within(t, 50*time.Millisecond)
	wantCode(t, g.WaitReady(ctx), fault.Timeout)
}

func TestClose_IsIdempotent(t *testing.T) {
	o := alone(t, t.TempDir())
	g := openGroup(t, o)
	put(t, g, "k", "v")
	for range 3 {
		must(t, g.Close())
	}
	_, err := g.ProposeRequest(limited(t), setRequest("k", "v"), Committed)
	wantCode(t, err, fault.Unavailable)
	_, err = g.ReadIndex(limited(t))
	if !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.NotLeader) {
		t.Errorf("a read index of a closed group gave %v", err)
	}
	wantCode(t, g.AnswerConfirm(1<<40), fault.Unavailable)
	wantCode(t, g.WaitReady(limited(t)), fault.Unavailable)
}

// chain makes a group directory with a snapshot, and with entries in the log above and below the end of the snapshot.
// It returns options to open the group.
func chain(t *testing.T, e raftlog.Engine, entries int) Options {
	o := alone(t, t.TempDir())
	o.Engine = e
	o.Bounds.TrailingEntries = 5
	g := openGroup(t, o)
	for i := range entries {
		put(t, g, key(i), "v")
	}
	must(t, g.Snapshot())
	put(t, g, "after", "v")
	closeGroup(t, g)
	again := alone(t, o.Dir)
	again.Engine, again.Bounds = e, o.Bounds
	return again
}

func TestOpen_RefusesLogThatEndsBelowDatabase(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		o := chain(t, e, 10)
		man, err := readManifest(o.Dir)
		must(t, err)
		man.Snapshot = nil // as with an older manifest
		must(t, snapshot.StoreManifest(raftlog.OSVolume{}, o.Dir, man, process{Options{Step: func(string) {}}}))
		_, err = Open(limited(t), o)
		wantCode(t, err, fault.Corrupt)
	})
}

func TestOpen_ReplaysOnlyEntriesAboveDatabaseIndex(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		o := chain(t, e, 200)
		g := openGroup(t, o)
		if got := peekValue(t, g, "after"); got != "v" {
			t.Errorf("an entry above the snapshot is missing after the restart: %q", got)
		}
		if got := g.Machine().Stats().Keys; got != 201 {
			t.Errorf("%d keys, want 201", got)
		}
		first, err := g.disk.logs.FirstIndex()
		must(t, err)
		if first < 100 {
			t.Errorf("the snapshot left %d as the first entry of the log", first)
		}
	})
}

// This test makes a directory whose log contradicts the snapshot, or ends before the end of the snapshot. A crash
// between the switch to a received database and the truncation of the log has the same effect.
func TestOpen_DropsLogBelowReceivedSnapshot(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		for name, snap := range map[string]struct{ index, term uint64 }{
			"the log ends below the snapshot":          {1000, 7},
			"another term at the snapshot's index":     {8, 7},
			"another term at the newest entry's index": {12, 7},
		} {
			t.Run(name, func(t *testing.T) {
				o := alone(t, t.TempDir())
				o.Engine = e
				g := openGroup(t, o)
				for i := range 9 {
					put(t, g, key(i), "stale")
				}
				if last := g.LastIndex(); last != 12 {
					t.Fatalf("the log ends at %d, the cases assume 12", last)
				}
				// raft stores the term before it receives a snapshot
				must(t, g.disk.stable.SetUint64([]byte("CurrentTerm"), snap.term))
				closeGroup(t, g)

				man, err := readManifest(o.Dir)
				must(t, err)
				m, err := g.disk.snaps.OpenDatabase(filepath.Join(o.Dir, man.Database))
				must(t, err)
				must(t, m.SetApplied(snap.index, snap.term))
				must(t, m.Close())
				conf := raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}}
				man.Snapshot = &snapshot.Info{Index: snap.index, Term: snap.term,
					Configuration: raft.EncodeConfiguration(conf), ConfigurationIndex: 1, Applied: snap.index}
				must(t, snapshot.StoreManifest(raftlog.OSVolume{}, o.Dir, man, process{Options{Step: func(string) {}}}))

				again := alone(t, o.Dir)
				again.Engine = e
				g = openGroup(t, again)
				if first, err := g.disk.logs.FirstIndex(); err != nil || first <= snap.index {
					t.Errorf("entries from %d on are still in the log below a snapshot they do not belong to (%v)",
						first, err)
				}
				a := put(t, g, "k", "new")
				if a.Index <= snap.index {
					t.Errorf("the new entry has index %d", a.Index)
				}
				closeGroup(t, g)
				again = alone(t, o.Dir)
				again.Engine = e
				if got := peekValue(t, openGroup(t, again), "k"); got != "new" {
					t.Errorf("k = %q", got)
				}
			})
		}
	})
}

// databaseAhead makes a group in dir whose database contains four more entries than its snapshot covers. A server that
// has received a snapshot can have such a database. The log keeps the given number of entries after the end of the
// snapshot. The configuration has a second voter, b.
func databaseAhead(t *testing.T, dir string, e raftlog.Engine, kept uint64) {
	t.Helper()
	o := alone(t, dir)
	o.Engine = e
	g := openGroup(t, o)
	for i := range 9 {
		put(t, g, key(i), "v")
	}
	must(t, g.Snapshot())
	applied, term, last := g.Machine().Applied(), g.Term(), g.LastIndex()
	end := applied - 4
	must(t, g.disk.logs.DeleteRange(end+kept+1, last))
	if kept == 0 {
		must(t, g.disk.logs.DeleteRange(1, end))
	}
	closeGroup(t, g)
	man, err := readManifest(dir)
	must(t, err)
	man.Snapshot.Configuration = raft.EncodeConfiguration(raft.Configuration{Servers: []raft.Server{{ID: "a",
		Address: "a"}, {ID: "b", Address: "b"}}})
	man.Snapshot.Index, man.Snapshot.Term, man.Snapshot.Applied = end, term, applied
	must(t, snapshot.StoreManifest(raftlog.OSVolume{}, dir, man, process{Options{Step: func(string) {}}}))
	must(t, os.Remove(filepath.Join(dir, raftlog.FloorName))) // the floor names the later snapshot
}

func TestOpen_DatabaseAheadOfReceivedSnapshot(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		o := alone(t, t.TempDir())
		o.Engine = e
		databaseAhead(t, o.Dir, e, 0)
		openGroup(t, o)
	})
}

func TestRescue_DatabaseAheadOfLog(t *testing.T) {
	t.Parallel()
	for _, kept := range []uint64{0, 2} {
		t.Run(fmt.Sprint(kept, " entries in the log"), func(t *testing.T) {
			engines(t, func(t *testing.T, e raftlog.Engine) {
				o := alone(t, t.TempDir())
				o.Engine = e
				databaseAhead(t, o.Dir, e, kept)
				s, err := Rescue(o)
				must(t, err)
				if voters := s.Voters(); len(voters) != 1 || s.LastIndex != s.Applied || s.Keys != 9 {
					t.Errorf("rescued %+v", s)
				}
				g := openGroup(t, o)
				for i := range 9 {
					if got := peekValue(t, g, key(i)); got != "v" {
						t.Errorf("after the rescue, %s = %q", key(i), got)
					}
				}
				if a := put(t, g, key(0), "new"); a.Index <= s.Applied || peekValue(t, g, key(0)) != "new" {
					t.Errorf("the entry %d of a new write was not applied", a.Index)
				}
			})
		})
	}
}

package group

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/testutil"
	"github.com/quorate/quorate/raftfsm/raftlog"
	"github.com/quorate/quorate/raftfsm/snapshot"
)

// deposed returns a cluster in which c is cut off and still considers itself the leader, like a leader whose
// process was paused. The other servers have elected another leader.
func deposed(t *testing.T, change func(*Options)) (c *cluster, old, lead *Group) {
	t.Helper()
	c = newCluster(t, func(id raft.ServerID, o *Options) {
		if id == "c" {
			slowLeader("a", o)
		}
		o.Bounds.Window = 64 // room for entries that no other server confirms
		change(o)
	})
	c.put("k", "v")
	c.converge()
	c.transfer("c")
	c.put("k", "v", "c")
	c.converge()
	c.isolate("c")
	_, lead = c.leader("a", "b")
	return c, c.group("c"), lead
}

// lose appends entries to the log of the deposed leader old, until its log ends at index.
func lose(t *testing.T, old *Group, index uint64) {
	t.Helper()
	for old.LastIndex() < index {
		_, err := old.ProposeRequest(limited(t), setRequest("k", "of a deposed leader"), Durable)
		must(t, err)
	}
}

// contradicted returns a cluster with an isolated server c, whose log contradicts a snapshot of the leader. The log
// has the given number of entries beyond the end of the snapshot. contradicted also returns the groups of c and of the
// leader. The function install sends c the newest snapshot of a server.
func contradicted(t *testing.T, e raftlog.Engine, beyond uint64) (c *cluster, follower, lead *Group,
	install func(*Group) raft.InstallSnapshotResponse) {
	t.Helper()
	c, old, lead := deposed(t, func(o *Options) { manual(o); o.Engine = e })
	put(t, lead, "k", "v2")
	must(t, lead.Snapshot())
	snap := lead.disk.snaps.Position()
	lose(t, old, snap.Index+beyond)
	if old.LastIndex() != snap.Index+beyond {
		t.Fatalf("the log ends at %d, the snapshot at %d: the test needs %d entries beyond", old.LastIndex(),
			snap.Index, beyond)
	}
	return c, old, lead, func(from *Group) raft.InstallSnapshotResponse {
		t.Helper()
		req, data := installRequest(t, from)
		req.RPCHeader = header(from.opts.ServerID)
		var resp raft.InstallSnapshotResponse
		must(t, stranger(c).InstallSnapshot("c", "c", req, &resp, bytes.NewReader(data)))
		return resp
	}
}

func TestConflictingSnapshot_FollowerContinuesAfterInstall(t *testing.T) {
	t.Parallel()
	for _, beyond := range []uint64{0, 1, 5} {
		t.Run(fmt.Sprint(beyond, " entries beyond"), func(t *testing.T) {
			if testing.Short() && beyond != 1 {
				t.Skip("starts two clusters for each number")
			}
			engines(t, func(t *testing.T, e raftlog.Engine) {
				c, follower, lead, install := contradicted(t, e, beyond)
				if resp := install(lead); !resp.Success {
					t.Fatalf("refused: %+v", resp)
				}
				if n := counted(t, follower.obs.installed); n != 1 {
					t.Fatalf("%d installs", n)
				}
				c.heal()
				c.put("k", "new")
				c.converge()
				if got := peekValue(t, follower, "k"); got != "new" {
					t.Errorf("k = %q", got)
				}
				if n := counted(t, follower.obs.installed); n != 1 {
					t.Errorf("%d installs, the log should continue after the first", n)
				}
				c.stop("c")
				c.start("c")
				c.put("k", "newer")
				c.converge()
			})
		})
	}
}

// Before new entries arrive, a second snapshot is installed that ends where the old log ended. Raft still compares the
// end of that snapshot with its old last entry.
func TestConflictingSnapshot_SecondSnapshotEndsAtOldLastEntry(t *testing.T) {
	t.Parallel()
	c, follower, lead, install := contradicted(t, raftlog.BoltDB, 2)
	install(lead)
	for end := follower.raft.LastIndex(); lead.disk.snaps.Index() < end; {
		// The number of writes is not known, because on a busy machine the leader changes. A new leader begins its
		// term with an entry that moves the end of the log, but not the end of raft's snapshots.
		c.put("k", "v3", "a", "b")
		_, lead = c.leader("a", "b")
		must(t, lead.Snapshot())
	}
	install(lead)
	snap := follower.disk.snaps.Position()
	if n := counted(t, follower.obs.installed); n != 2 || snap.Index != follower.raft.LastIndex() {
		t.Fatalf("%d installs, the snapshot ends at %d, raft's log at %d", n, snap.Index, follower.raft.LastIndex())
	}
	c.put("k", "new", "a", "b") // both store it, because the third server is isolated
	req := appendOf(t, lead, snap, lead.LastIndex())
	req.RPCHeader = header(lead.opts.ServerID)
	var resp raft.AppendEntriesResponse
	must(t, stranger(c).AppendEntries("c", "c", req, &resp))
	if !resp.Success {
		t.Errorf("the entries after the second snapshot were refused: %+v", resp)
	}
	c.heal()
	c.converge()
}

// Without the placeholders for discarded entries (see raftlog.Discarded), raft refuses every append of the leader,
// even after it has installed the snapshot again.
func TestConflictingSnapshot_BlocksRaftWithoutGuard(t *testing.T) {
	testutil.SkipUnderRace(t, "plays many steps of one goroutine")
	if testing.Short() {
		t.Skip("runs many schedules")
	}
	for _, beyond := range []uint64{1, 5} {
		t.Run(fmt.Sprint(beyond, " entries beyond"), func(t *testing.T) {
			c, follower, lead, install := contradicted(t, raftlog.BoltDB, beyond)
			install(lead)
			follower.disk.logs.Discarded().End() // disables the guard
			snap := follower.disk.snaps.Position()
			next := &raft.Log{Index: snap.Index + 1, Term: follower.Term(), Type: raft.LogNoop}
			raftlog.Seal(next)
			for range 3 {
				req := &raft.AppendEntriesRequest{RPCHeader: header("b"), Term: follower.Term(),
					PrevLogEntry: snap.Index, PrevLogTerm: snap.Term, Entries: []*raft.Log{next}}
				var resp raft.AppendEntriesResponse
				must(t, stranger(c).AppendEntries("c", "c", req, &resp))
				if resp.Success {
					t.Fatal("raft continues without the guard: the test shows nothing")
				}
				if again := install(lead); !again.Success {
					t.Fatalf("the same snapshot again: %+v", again)
				}
			}
		})
	}
}

// The entries of the snapshot have arrived after Judge has passed the request to raft.
func TestInstall_RefusesSnapshotBelowLog(t *testing.T) {
	from := openGroup(t, alone(t, t.TempDir()))
	put(t, from, "k", "v")
	must(t, from.Snapshot())
	req, data := installRequest(t, from)
	sink, err := from.disk.snaps.Create(raft.SnapshotVersionMax, req.LastLogIndex, req.LastLogTerm,
		raft.Configuration{}, 0, nil)
	must(t, err)
	before := names(t, from.opts.Dir)
	_, err = sink.Write(data)
	wantCode(t, err, fault.Unavailable)
	must(t, sink.Cancel())
	if d := cmp.Diff(before, names(t, from.opts.Dir)); d != "" {
		t.Errorf("left behind: %s", d)
	}
}

// The receiver has taken a newer snapshot itself, and compacted its log, after Judge has passed the request to raft.
func TestInstall_RefusesSnapshotBelowNewerLocalOne(t *testing.T) {
	t.Parallel()
	from, to := pair(t)
	sink, err := receive(t, from, to.disk.snaps, whole)
	must(t, err)
	must(t, to.disk.snaps.CommitLocal(to.disk.snaps.LiveDatabase(), &snapshot.Info{Index: from.disk.snaps.Index(),
		Term: 2}))
	database := to.disk.snaps.LiveDatabase()
	wantCode(t, sink.Close(), fault.Unavailable)
	if got := to.disk.snaps.LiveDatabase(); got != database {
		t.Errorf("the live database is %s, was %s", got, database)
	}
}

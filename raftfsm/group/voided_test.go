package group

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
)

// deposed is a cluster in which c is cut off and still takes itself for the leader, as one
// whose process was paused would. The others have another leader since.
func deposed(t *testing.T, change func(*Options)) (c *cluster, old, lead *Group) {
	t.Helper()
	c = newCluster(t, func(id raft.ServerID, o *Options) {
		if id == "c" {
			slowLeader("a", o)
		}
		o.Bounds.Window = 64 // entries that nobody confirms
		change(o)
	})
	c.put("k", "v")
	c.converge()
	must(t, c.group("a").raft.LeadershipTransferToServer("c", "c").Error())
	c.leader("c")
	c.put("k", "v", "c")
	c.converge()
	c.isolate("c")
	_, lead = c.leader("a", "b")
	return c, c.group("c"), lead
}

// lose writes entries to the log of a deposed leader, up to index.
func lose(t *testing.T, old *Group, index uint64) {
	t.Helper()
	for old.LastIndex() < index {
		_, err := old.ProposeRequest(limited(t), setRequest("k", "of a deposed leader"), Durable)
		must(t, err)
	}
}

// contradicted is a cluster whose server c, cut off, has a log that is contradicted by a
// snapshot of the leader's, and goes on for some entries beyond its end. The function sends c
// that snapshot.
func contradicted(t *testing.T, e LogEngine, beyond uint64) (*cluster, *Group, func() raft.InstallSnapshotResponse) {
	t.Helper()
	c, old, lead := deposed(t, func(o *Options) { manual(o); o.Engine = e })
	put(t, lead, "k", "v2")
	must(t, lead.Snapshot())
	snap := lead.disk.snaps.position()
	lose(t, old, snap.Index+beyond)
	if old.LastIndex() != snap.Index+beyond {
		t.Fatalf("the log ends at %d, the snapshot at %d: the test is made for %d entries beyond", old.LastIndex(), snap.Index, beyond)
	}
	return c, old, func() raft.InstallSnapshotResponse {
		t.Helper()
		req, data := installRequest(t, lead)
		req.RPCHeader = header(lead.opts.ServerID)
		var resp raft.InstallSnapshotResponse
		must(t, stranger(c).InstallSnapshot("c", "c", req, &resp, bytes.NewReader(data)))
		return resp
	}
}

func TestAFollowerGoesOnFromASnapshotThatContradictsItsLog(t *testing.T) {
	for _, beyond := range []uint64{0, 1, 5} {
		t.Run(fmt.Sprint(beyond, " entries beyond"), func(t *testing.T) {
			engines(t, func(t *testing.T, e LogEngine) {
				c, follower, install := contradicted(t, e, beyond)
				if resp := install(); !resp.Success {
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
					t.Errorf("%d installs, the log was to go on after the first", n)
				}
				c.stop("c")
				c.start("c")
				c.put("k", "newer")
				c.converge()
			})
		})
	}
}

// Without the rebasing and the void entries raft refuses whatever a leader sends it.
func TestWithoutTheMendingRaftNeverGoesOnFromSuchASnapshot(t *testing.T) {
	for _, beyond := range []uint64{0, 1, 5} {
		t.Run(fmt.Sprint(beyond, " entries beyond"), func(t *testing.T) {
			c, follower, install := contradicted(t, BoltDB, beyond)
			install()
			follower.disk.logs.void.end() // takes the guard away
			snap := follower.disk.snaps.position()
			next := &raft.Log{Index: snap.Index + 1, Term: follower.Term(), Type: raft.LogNoop}
			seal(next)
			for range 3 {
				req := &raft.AppendEntriesRequest{RPCHeader: header("b"), Term: follower.Term(), PrevLogEntry: snap.Index, PrevLogTerm: snap.Term, Entries: []*raft.Log{next}}
				var resp raft.AppendEntriesResponse
				must(t, stranger(c).AppendEntries("c", "c", req, &resp))
				if resp.Success {
					t.Fatal("raft goes on by itself: the test shows nothing")
				}
				if again := install(); !again.Success {
					t.Fatalf("the same snapshot again: %+v", again)
				}
			}
		})
	}
}

func TestAnAppendIsRebasedToTheSnapshotThatVoidedTheLog(t *testing.T) {
	entries := func(lo, hi uint64) (out []*raft.Log) {
		for i := lo; i <= hi; i++ {
			out = append(out, &raft.Log{Index: i, Term: 3})
		}
		return out
	}
	request := func(prev, term, last uint64) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: prev, PrevLogTerm: term, Entries: entries(prev+1, last), LeaderCommitIndex: 9}
	}
	var v voided
	v.begin(Position{Term: 2, Index: 10}, 12)
	for name, c := range map[string]struct{ in, want *raft.AppendEntriesRequest }{
		"at the snapshot":     {request(10, 2, 12), &raft.AppendEntriesRequest{Term: 3, Entries: entries(11, 12), LeaderCommitIndex: 9}},
		"below it, across":    {request(7, 1, 12), &raft.AppendEntriesRequest{Term: 3, Entries: entries(11, 12), LeaderCommitIndex: 9}},
		"below it":            {request(7, 1, 9), &raft.AppendEntriesRequest{Term: 3, Entries: entries(1, 0), LeaderCommitIndex: 9}},
		"above it":            {request(11, 3, 12), request(11, 3, 12)},
		"of another history":  {request(10, 1, 12), request(10, 1, 12)},
		"without entries, at": {request(10, 2, 10), &raft.AppendEntriesRequest{Term: 3, Entries: entries(1, 0), LeaderCommitIndex: 9}},
	} {
		got := v.rebase(c.in)
		if len(got.Entries) == 0 {
			got.Entries = nil
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	if v.covers(10) || !v.covers(11) || !v.covers(12) || v.covers(13) {
		t.Error("entries 11 and 12 are void, no others")
	}
	v.end()
	if r := request(10, 2, 12); v.rebase(r) != r || v.covers(11) {
		t.Error("a log that goes on is taken for void")
	}
}

// The request was judged while the entries were on their way.
func TestASnapshotThatTheLogHasOvertakenIsNotReceived(t *testing.T) {
	from := openGroup(t, alone(t, t.TempDir()))
	put(t, from, "k", "v")
	must(t, from.Snapshot())
	req, data := installRequest(t, from)
	sink, err := from.disk.snaps.Create(raft.SnapshotVersionMax, req.LastLogIndex, req.LastLogTerm, raft.Configuration{}, 0, nil)
	must(t, err)
	before := names(t, from.opts.Dir)
	_, err = sink.Write(data)
	wantCode(t, err, fault.Unavailable)
	must(t, sink.Cancel())
	if d := cmp.Diff(before, names(t, from.opts.Dir)); d != "" {
		t.Errorf("left behind: %s", d)
	}
}

// And so was this one, while the receiver took a snapshot of its own and compacted its log.
func TestASnapshotBelowOneTakenMeanwhileIsNotInstalled(t *testing.T) {
	from, to := pair(t)
	sink, err := receive(t, from, to.disk.snaps, whole)
	must(t, err)
	must(t, to.disk.snaps.commitLocal(to.disk.snaps.database(), &snapshotInfo{Index: from.disk.snaps.index(), Term: 2}))
	database := to.disk.snaps.database()
	wantCode(t, sink.Close(), fault.Unavailable)
	if got := to.disk.snaps.database(); got != database {
		t.Errorf("the live database is %s, was %s", got, database)
	}
}

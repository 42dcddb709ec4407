package group

import (
	"bytes"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm/raftlog"
)

// A leader that missed the response to its first append after a snapshot sends the append again. The follower must
// then find the last entry of the snapshot, although its log does not contain this entry.
func TestInstall_FirstAppendCanBeRepeated(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		c, a, follower := installed(t, e)
		snap := follower.disk.snaps.Position()
		for i := range 3 {
			put(t, a, key(100+i), "v")
		}
		c.converge()
		req := appendOf(t, a, snap, a.LastIndex())
		if len(req.Entries) < 3 {
			t.Fatalf("only %d entries above the snapshot", len(req.Entries))
		}
		var resp raft.AppendEntriesResponse
		must(t, stranger(c).AppendEntries("c", "c", req, &resp))
		if !resp.Success {
			t.Errorf("the repeated append was refused: %+v", resp)
		}
		put(t, a, "more", "v")
		c.converge()
	})
}

// appendOf returns the append that the server from would send with the entries after prev, up to index last.
func appendOf(t *testing.T, from *Group, prev raftlog.Position, last uint64) *raft.AppendEntriesRequest {
	t.Helper()
	req := &raft.AppendEntriesRequest{RPCHeader: header("a"), Term: from.Term(), PrevLogEntry: prev.Index,
		PrevLogTerm: prev.Term, LeaderCommitIndex: from.raft.CommitIndex()}
	for i := prev.Index + 1; i <= last; i++ {
		var l raft.Log
		must(t, from.disk.logs.GetLog(i, &l))
		req.Entries = append(req.Entries, &l)
	}
	return req
}

// The first append to a new server names no previous entry, so raft compares it with nothing. If it arrives after a
// snapshot, its entries must not get into the log: the next entries would leave a gap.
func TestInstall_FirstAppendAfterSnapshotStoresNothing(t *testing.T) {
	t.Parallel()
	engines(t, func(t *testing.T, e raftlog.Engine) {
		_, inner := raft.NewInmemTransport("b")
		from, to := pair(t, func(o *Options) { o.ServerID, o.Transport, o.Engine = "b", inner, e })
		_, sender := raft.NewInmemTransportWithTimeout("a", patience)
		sender.Connect("b", inner)
		send := func(req *raft.AppendEntriesRequest) bool {
			t.Helper()
			var resp raft.AppendEntriesResponse
			must(t, sender.AppendEntries("b", "b", req, &resp))
			return resp.Success
		}
		install, data := installRequest(t, from)
		var resp raft.InstallSnapshotResponse
		must(t, sender.InstallSnapshot("b", "b", install, &resp, bytes.NewReader(data)))
		if !resp.Success {
			t.Fatalf("the snapshot was refused: %+v", resp)
		}
		send(appendOf(t, from, raftlog.Position{}, 5))
		if last := to.disk.logs.Last(); last != 0 {
			t.Errorf("entries that the snapshot contains were stored: the log ends at %d", last)
		}
		put(t, from, "k", "after the snapshot")
		snap := to.disk.snaps.Position()
		if !send(appendOf(t, from, snap, from.LastIndex())) {
			t.Error("the entries after the snapshot were refused")
		}
		if first, last, err := to.disk.logs.Ends(); err != nil || first != snap.Index+1 || last != from.LastIndex() {
			t.Errorf("the log has entries %d to %d (%v), the snapshot ends at %d", first, last, err, snap.Index)
		}
		until(t, "the new entries are applied", func() bool { return peekValue(t, to, "k") == "after the snapshot" })
	})
}

// A repeated append that was damaged on its way must not delete entries that the follower has acknowledged. Raft would
// delete them before the log refuses the damaged entry, and would keep its old last index.
func TestAppend_DamagedEntryDeletesNothing(t *testing.T) {
	t.Parallel()
	_, inner := raft.NewInmemTransport("b")
	from, to := pair(t, func(o *Options) { o.ServerID, o.Transport = "b", inner })
	_, sender := raft.NewInmemTransportWithTimeout("a", patience)
	sender.Connect("b", inner)
	send := func(req *raft.AppendEntriesRequest) bool {
		var resp raft.AppendEntriesResponse
		return sender.AppendEntries("b", "b", req, &resp) == nil && resp.Success
	}
	held := from.disk.snaps.Index() + 2
	for from.LastIndex() < held+2 {
		put(t, from, "k", "v")
	}
	install, data := installRequest(t, from)
	var resp raft.InstallSnapshotResponse
	must(t, sender.InstallSnapshot("b", "b", install, &resp, bytes.NewReader(data)))
	snap := to.disk.snaps.Position()
	if !send(appendOf(t, from, snap, held)) {
		t.Fatal("an append was refused")
	}
	damaged := appendOf(t, from, snap, held)
	damaged.Entries[0].Term++
	if send(damaged) {
		t.Error("a damaged entry was accepted")
	}
	if _, last, err := to.disk.logs.Ends(); err != nil || last != held {
		t.Errorf("the log ends at %d (%v), want %d", last, err, held)
	}
	if !send(appendOf(t, from, snap, from.LastIndex())) {
		t.Error("the intact append was refused")
	}
}

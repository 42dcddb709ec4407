package raftlog

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
)

func TestDiscarded_RebasesAppendToSnapshot(t *testing.T) {
	entries := func(lo, hi uint64) (out []*raft.Log) {
		for i := lo; i <= hi; i++ {
			out = append(out, &raft.Log{Index: i, Term: 3})
		}
		return out
	}
	request := func(prev, term, last uint64) *raft.AppendEntriesRequest {
		return &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: prev, PrevLogTerm: term,
			Entries: entries(prev+1, last), LeaderCommitIndex: 9}
	}
	snap := Position{Term: 2, Index: 10}
	for name, c := range map[string]struct{ in, want *raft.AppendEntriesRequest }{
		"at the snapshot": {request(10, 2, 12),
			&raft.AppendEntriesRequest{Term: 3, Entries: entries(11, 12), LeaderCommitIndex: 9}},
		"below it, across": {request(7, 1, 12),
			&raft.AppendEntriesRequest{Term: 3, Entries: entries(11, 12), LeaderCommitIndex: 9}},
		"below it": {request(7, 1, 9), &raft.AppendEntriesRequest{Term: 3, Entries: entries(1, 0),
			LeaderCommitIndex: 9}},
		"above it":           {request(11, 3, 12), request(11, 3, 12)},
		"of another history": {request(10, 1, 12), request(10, 1, 12)},
		"without entries, at": {request(10, 2, 10),
			&raft.AppendEntriesRequest{Term: 3, Entries: entries(1, 0), LeaderCommitIndex: 9}},
	} {
		got := rebase(c.in, snap)
		if len(got.Entries) == 0 {
			got.Entries = nil
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	var v Discarded
	v.begin(snap, 12)
	if v.covers(10) || !v.covers(11) || !v.covers(12) || v.covers(13) {
		t.Error("only entries 11 and 12 are discarded")
	}
	v.End()
	if v.covers(11) {
		t.Error("entries are discarded after End")
	}
}

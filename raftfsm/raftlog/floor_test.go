package raftlog

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/fault"
)

func TestFloor_ChecksEachPart(t *testing.T) {
	f := Floor{
		Owner: Owner{Cluster: "c", Epoch: 3}, Group: 1, Server: "a", Engine: BoltDB, Term: 5, VoteTerm: 4, Vote: "b",
		First: 10, Last: 20, LastTerm: 5, Snapshot: 12, Applied: 11,
	}
	for name, c := range map[string]struct {
		change func(id *Identity, h *found)
		wrong  string // part of the error; empty = accepted
	}{
		"the same": {func(*Identity, *found) {}, ""},
		"more of all": {func(_ *Identity, h *found) {
			h.Term, h.VoteTerm, h.vote, h.Last.Index = 9, 9, "c",
				30
		}, ""},
		"a later epoch": {func(id *Identity, _ *found) { id.Owner = Owner{"c", 4} }, ""},
		"snapshot over the log": {func(_ *Identity, h *found) { h.Snapshot.Index, h.first, h.Last.Index = 25, 0, 0 },
			""},
		"another server": {func(id *Identity, _ *found) { id.Server = "z" }, "belongs to group 1 of server a"},
		"another group":  {func(id *Identity, _ *found) { id.Group = 2 }, "belongs to group 1"},
		"another cluster": {func(id *Identity, _ *found) { id.Owner = Owner{"d", 3} },
			"node.json is an older copy"},
		"no cluster": {func(id *Identity, _ *found) { id.Owner = Owner{} }, "node.json is an older copy"},
		"an earlier epoch": {func(id *Identity, _ *found) { id.Owner = Owner{"c", 2} },
			"node.json is an older copy"},
		"a lower term":      {func(_ *Identity, h *found) { h.Term = 4 }, "stable.db"},
		"an older vote":     {func(_ *Identity, h *found) { h.VoteTerm = 3 }, "stable.db"},
		"another vote":      {func(_ *Identity, h *found) { h.vote = "c" }, "stable.db"},
		"a shorter log":     {func(_ *Identity, h *found) { h.Last.Index = 19 }, "log.db"},
		"compacted entries": {func(_ *Identity, h *found) { h.first = 9 }, "log.db"},
		"another entry": {func(_ *Identity,
			h *found) {
			h.termAt = func(uint64) (uint64, error) { return 6, nil }
		}, "log.db"},
		"an older snapshot": {func(_ *Identity, h *found) { h.Snapshot.Index = 11 }, "manifest.json"},
		"an older database": {func(_ *Identity, h *found) { h.Applied = 10 }, "manifest.json"},
	} {
		t.Run(name, func(t *testing.T) {
			id := Identity{Group: 1, Server: "a", Engine: BoltDB, Owner: Owner{"c", 3}}
			h := found{Term: 5, VoteTerm: 4, vote: "b", first: 10, Last: Position{5, 20},
				Snapshot: Position{Index: 12}, Applied: 11, Manifest: "manifest.json", termAt: func(uint64) (uint64,
					error) {
					return 5, nil
				}}
			c.change(&id, &h)
			switch err := f.Check(id, h); {
			case c.wrong == "" && err != nil:
				t.Error(err)
			case c.wrong != "" && (!fault.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), c.wrong)):
				t.Errorf("got %v", err)
			}
		})
	}
}

package clusterctl

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/raftfsm"
)

func votersAt(number int, revision uint64) raftfsm.Note {
	return raftfsm.Note{Value: fmt.Appendf(nil, `{"voters":%d}`, number), Revision: revision}
}

// A note from the replica of a node may be older than the note of an earlier write or linearizable read.
func TestVoterCount_IgnoresOlderNote(t *testing.T) {
	const flag = 1
	servers := []raft.Server{{ID: "n1.a"}, {ID: "n2.a"}, {ID: "n3.a"}} // all vote
	for name, c := range map[string]struct {
		notes []raftfsm.Note
		want  int
	}{
		"not read yet":       {nil, 3},
		"none":               {[]raftfsm.Note{{}}, flag},
		"one":                {[]raftfsm.Note{votersAt(5, 7)}, 5},
		"a newer one":        {[]raftfsm.Note{votersAt(5, 7), votersAt(3, 9)}, 3},
		"an older one":       {[]raftfsm.Note{votersAt(5, 7), votersAt(3, 4)}, 5},
		"none any more":      {[]raftfsm.Note{votersAt(5, 7), {}}, 5},
		"one that is broken": {[]raftfsm.Note{votersAt(5, 7), {Value: []byte("{"), Revision: 8}}, 5},
	} {
		v := newVoterCount(parts{log: slog.New(slog.DiscardHandler)})
		for _, n := range c.notes {
			v.take(n)
		}
		if got := v.wanted(servers, flag); got != c.want {
			t.Errorf("%s: %d voters are wanted, not %d", name, got, c.want)
		}
	}
}

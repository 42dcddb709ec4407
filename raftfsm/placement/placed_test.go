package placement_test

import (
	"testing"
	"time"

	"github.com/quorate/quorate/raftfsm/placement"
)

func TestMissing_UntilServerHasItsVote(t *testing.T) {
	for _, row := range []struct {
		name   string
		in     placement.Input
		server string
		want   string // empty = the server has its vote, or needs none
	}{
		{"the first voter of a new cluster", group("n1", "n2 n3"), "n1.a", ""},
		{"a non-voter of a new cluster", group("n1", "n2 n3"), "n3.a", "n3 does not vote yet: 1 of 3 votes are given"},
		{"a server that the group does not know", group("n1 n2", "", arrives("n3", "a")), "n3.a",
			"n3 does not vote yet: 2 of 3 votes are given"},
		{"a server that knows no group", group("", "", arrives("n3", "a")), "n3.a",
			"n3 does not vote yet: 0 of 1 votes are given"},
		{"the second of two", group("n1", "n2"), "n2.a", "n2 does not vote yet: 1 of 2 votes are given"},
		{"a voter", group("n1 n2 n3", ""), "n2.a", ""},
		{"a voter without a leader", group("n1 n2 n3", "", noLeader()), "n2.a", ""},
		{"one server more than voters are wanted", group("n1 n2 n3", "n4"), "n4.a", ""},
		{"the fourth of five, while there is no fifth", group("n1 n2 n3", "n4", want(5)), "n4.a", ""},
		{"the fourth of five", group("n1 n2 n3", "n4 n5", want(5)), "n4.a",
			"n4 does not vote yet: 3 of 5 votes are given"},
		{"beside a voter that has just gone", group("n1 n2 n3", "n4", failed("n3", time.Second)), "n4.a", ""},
		{"beside a voter that stopped for a moment", group("n1 n2 n3", "n4", stopped("n3", time.Second)), "n4.a", ""},
		{"in the place of a voter that is lost", group("n1 n2 n3", "n4", failed("n3", time.Hour)), "n4.a",
			"n4 does not vote yet: 2 of 3 votes are given"},
		{"in the place of a voter that was never seen", group("n1 n2 n3", "n4", unseen("n3")), "n4.a",
			"n4 does not vote yet: 2 of 3 votes are given"},
		{"in the place of its own old disk", group("n1 n2 n3", "", wiped("n3")), "n3.b",
			"n3 does not vote yet: 2 of 3 votes are given"},
		{"beside a removed voter", group("n1 n2 n3", "n4", removed("n3.a")), "n4.a",
			"n4 does not vote yet: 2 of 3 votes are given"},
		{"beside a removed non-voter", group("n1 n2", "n3", removed("n3.a")), "n2.a", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := placement.Missing(row.in, row.server); got != row.want {
				t.Errorf("%q, want %q", got, row.want)
			}
		})
	}
}

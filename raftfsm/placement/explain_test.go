package placement_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/placement"
)

func TestExplain_EveryServer(t *testing.T) {
	for _, row := range []struct {
		name string
		in   placement.Input
		want string // one line each
	}{
		{"at rest", group("n1 n2 n3", "n4", arrives("s1", "")), `
			n1 is a voter and leads
			n2 is a voter
			n3 is a voter
			n4 is not a voter: it is ready and takes over when a voter is lost; there are 3 voters, and 3 are wanted`},
		{"behind", group("n1", "n2 n3", lag("n2", 1204), lagUnknown("n3")), `
			n1 is a voter and leads
			n2 is not a voter: it is 1,204 entries behind, and 100 is the limit
			n3 is not a voter: it has not reported yet how far it has caught up`},
		{"just caught up", group("n1", "n2 n3", lag("n2", 1), steadyFor("n3", 4*time.Second)), `
			n1 is a voter and leads
			n2 is not a voter: it has only just caught up
			n3 is not a voter: it caught up 4s ago and must keep up for 10s`},
		{"about to be promoted", group("n1", "n2 n3"), `
			n1 is a voter and leads
			n2 is not a voter: it becomes one next
			n3 is not a voter: n2 becomes one first`},
		{"a fourth", group("n1 n2 n3", "n4", want(5)), `
			n1 is a voter and leads
			n2 is a voter
			n3 is a voter
			n4 is not a voter: it is ready, but 4 voters survive no more failures than 3; one more server would make 5
		`},
		{"four wanted", group("n1 n2 n3", "n4", want(4)), `
			n1 is a voter and leads
			n2 is a voter
			n3 is a voter
			n4 is not a voter: it is ready and takes over when a voter is lost; there are 3 voters, and 4 are wanted, of which 3 count because an even number survives no more failures
		`},
		{"just failed", group("n1 n2 n3", "n4", failed("n3", 12*time.Second)), `
			n1 is a voter and leads
			n2 is a voter
			n3 is a voter: it failed 12s ago and keeps its vote for 48s more, in case it comes back
			n4 is not a voter: it is ready and takes over when a voter is lost; there are 3 voters, and 3 are wanted`},
		{"failed for long", group("n1 n2 n3", "n4", failed("n3", 5*time.Minute)), `
			n1 is a voter and leads
			n2 is a voter
			n3 is still a voter: it failed 5m0s ago, and n4 takes its place
			n4 is not a voter: it becomes one next`},
		{"failed and replaced", group("n1 n2 n3 n4", "", failed("n3", 5*time.Minute)), `
			n1 is a voter and leads
			n2 is a voter
			n3 is still a voter: it failed 5m0s ago, and loses the vote next
			n4 is a voter`},
		{"failed without a successor", group("n1 n2 n3", "", failed("n3", 5*time.Minute)), `
			n1 is a voter and leads
			n2 is a voter
			n3 is still a voter: it failed 5m0s ago, and no non-voter that keeps up can take its place`},
		{"no majority", group("n1 n2 n3", "n4",
			failed("n2", time.Hour), failed("n3", 5*time.Second), arrives("n5", "a")), `
			n1 is a voter and leads
			n2 is still a voter: it failed 1h0m0s ago, and nothing can change without a majority: 1 of 3 voters alive
			n3 is a voter: it failed 5s ago and keeps its vote for 55s more, in case it comes back
			n4 is not a voter: nothing can change without a majority: 1 of 3 voters alive
			n5 is not a voter: it is not in the group yet, and nothing can change without a majority: 1 of 3 voters alive
		`},
		{"no leader", group("n1", "n2", noLeader()), `
			n1 is a voter
			n2 is not a voter: the group has no leader now`},
		{"gone non-voters", group("n1 n2 n3", "n4 n5 n6 n7",
			failed("n4", time.Minute), stopped("n5", time.Minute),
			unseen("n6"), demotedToSidecar("n7", 2*time.Second)), `
			n1 is a voter and leads
			n2 is a voter
			n3 is a voter
			n4 is not a voter: it failed 1m0s ago
			n5 is not a voter: it stopped 1m0s ago
			n6 is not a voter: it has not been seen for 1h0m0s
			n7 is not a voter: it has run as a sidecar for 2s`},
		{"another data directory", group("n1 n2 n3", "", wiped("n3")), `
			n1 is a voter and leads
			n2 is a voter
			n3 is still a voter: it came back 5s ago with another data directory, and no non-voter that keeps up can take its place
			n3 is not a voter: it is not in the group yet; the leader adds it next`},
		{"removed", group("n1 n2 n3", "n4", removed("n2.a"), removed("n4.a"), removed("n5.a"), arrives("n5", "a")), `
			n1 is a voter and leads
			n2 is still a voter: it was removed by an operator, and loses the vote next
			n3 is a voter
			n4 is not a voter: it was removed by an operator
			n5 is not a voter: it was removed by an operator; empty its data directory to let it join as a new server`},
		{"removed and needed", group("n1 n2 n3", "", removed("n2.a"), failed("n3", time.Second)), `
			n1 is a voter and leads
			n2 is still a voter: it was removed by an operator, and the majority needs its vote until another server can take it
			n3 is a voter: it failed 1s ago and keeps its vote for 59s more, in case it comes back`},
		{"a removed leader with a successor", group("n1 n2", "", removed("n1.a")), `
			n1 is a voter and leads: it was removed by an operator and hands over to n2 first
			n2 is a voter`},
		{"a removed leader without a successor", group("n1", "", removed("n1.a")), `
			n1 is a voter and leads: it was removed by an operator and waits for another voter that is alive and keeps up
		`},
		{"too many voters", group("n1 n2 n3 n4 n5", ""), `
			n1 is a voter and leads
			n2 is a voter
			n3 is a voter
			n4 is a voter
			n5 is still a voter: it becomes a non-voter, because 3 are wanted`},
		{"lag of one", group("n1", "n2", lag("n2", 1), func(in *placement.Input) { in.Limits.MaxLag = 0 }), `
			n1 is a voter and leads
			n2 is not a voter: it has only just caught up`},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got, want []string
			for _, v := range placement.Explain(row.in) {
				got = append(got, v.Reason)
			}
			for line := range strings.Lines(strings.TrimSpace(row.want)) {
				want = append(want, strings.TrimSpace(line))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExplain_NamesServerNodeAndVote(t *testing.T) {
	want := []placement.Verdict{
		{Server: "n1.a", Node: "n1", Voter: true, Reason: "n1 is a voter and leads"},
		{Server: "n2.a", Node: "n2", Reason: "n2 is not a voter: it is 1,000,000 entries behind, and 100 is the limit"},
	}
	if diff := cmp.Diff(want, placement.Explain(group("n1", "n2", lag("n2", 1_000_000)))); diff != "" {
		t.Error(diff)
	}
}

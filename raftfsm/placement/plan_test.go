package placement_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/placement"
)

// policy returns the test table of the policy. Each row has a situation, and the change that Plan returns for it;
// empty = no change.
func policy() []struct {
	name, want string
	in         placement.Input
} {
	const minute = time.Minute
	return []struct {
		name, want string
		in         placement.Input
	}{
		// At rest.
		{"a lone server is at rest", "", group("n1", "")},
		{"two servers are two voters, and at rest", "", group("n1 n2", "")},
		{"three voters are at rest", "", group("n1 n2 n3", "")},
		{"non-voters beyond the wanted voters stay non-voters", "", group("n1 n2 n3", "n4 n5")},
		{"five voters are at rest where five are wanted", "", group("n1 n2 n3 n4 n5", "", want(5))},
		{"a sidecar is never added", "", group("n1", "", arrives("s1", ""))},

		// Growing.
		{"a new server is added as a non-voter", "add n2.a: n2 joins the group as a non-voter and catches up",
			group("n1", "", arrives("n2", "a"))},
		{"new servers are added one at a time, by id", "add n2.a: n2 joins the group as a non-voter and catches up",
			group("n1", "", arrives("n3", "a"), arrives("n2", "a"))},
		{"a fourth server is added although the votes are given",
			"add n4.a: n4 joins the group as a non-voter and catches up", group("n1 n2 n3", "", arrives("n4", "a"))},
		{"a new server that is no longer alive is not added", "", group("n1", "", arrives("n2", "a"), failed("n2", 0))},
		{"a non-voter that keeps up becomes the second voter",
			"promote n2.a: n2 becomes a voter: it is 3 entries behind and has kept up for 20s", group("n1", "n2")},
		{"the second voter does not wait for the third",
			"promote n2.a: n2 becomes a voter: it is 3 entries behind and has kept up for 20s", group("n1", "n2 n3",
				lag("n3", 5000))},
		{"the third voter follows", "promote n3.a: n3 becomes a voter: it is 3 entries behind and has kept up for 20s",
			group("n1 n2", "n3")},
		{"a non-voter far behind waits", "", group("n1", "n2", lag("n2", 101))},
		{"a non-voter that has only just caught up waits", "", group("n1", "n2", steadyFor("n2", 9*time.Second))},
		{"a non-voter at the limit of lag and time is promoted",
			"promote n2.a: n2 becomes a voter: it is 100 entries behind and has kept up for 10s",
			group("n1", "n2", lag("n2", 100), steadyFor("n2", 10*time.Second))},
		{"a non-voter whose lag is unknown waits", "", group("n1", "n2", lagUnknown("n2"))},
		{"a non-voter that stopped answering waits", "", group("n1", "n2", failed("n2", time.Second))},
		{"promotion comes before adding",
			"promote n2.a: n2 becomes a voter: it is 3 entries behind and has kept up for 20s", group("n1", "n2",
				arrives("n3", "a"))},
		{"a good disk is promoted before a slow one",
			"promote n3.a: n3 becomes a voter: it is 3 entries behind and has kept up for 20s", group("n1", "n2 n3",
				slow("n2"))},
		{"a slow disk is promoted where there is no other",
			"promote n2.a: n2 becomes a voter: it is 3 entries behind and has kept up for 20s", group("n1", "n2",
				slow("n2"))},

		// Even numbers.
		{"a fourth voter waits for a fifth", "", group("n1 n2 n3", "n4", want(5))},
		{"a fourth voter waits for a fifth that still catches up", "",
			group("n1 n2 n3", "n4 n5", want(5), lag("n5", 5000))},
		{"two non-voters make three voters five",
			"promote n4.a: n4 becomes a voter: it is 3 entries behind and has kept up for 20s", group("n1 n2 n3",
				"n4 n5", want(5))},
		{"and the fifth follows the fourth",
			"promote n5.a: n5 becomes a voter: it is 3 entries behind and has kept up for 20s", group("n1 n2 n3 n4",
				"n5", want(5))},
		{"four wanted voters count as three", "", group("n1 n2 n3", "n4 n5", want(4))},
		{"two wanted voters are two", "", group("n1 n2", "n3", want(2))},
		{"four voters without a fifth become three",
			"demote n4.a: n4 becomes a non-voter: 4 voters survive no more failures than 3", group("n1 n2 n3 n4", "",
				want(5))},
		{"four voters wait while a fifth catches up", "", group("n1 n2 n3 n4", "n5", want(5), lag("n5", 5000))},
		{"four voters wait while a fifth may come back", "",
			group("n1 n2 n3 n4", "n5", want(5), failed("n5", 10*time.Second))},
		{"four voters do not wait for a fifth that is gone",
			"demote n4.a: n4 becomes a non-voter: 4 voters survive no more failures than 3",
			group("n1 n2 n3 n4", "n5", want(5), failed("n5", 2*minute))},
		{"four voters with a dead one give up the dead one", "remove n2.a: n2 leaves the group: failed 2m0s ago",
			group("n1 n2 n3 n4", "", want(5), failed("n2", 2*minute))},

		// Dead voters.
		{"a voter that has just failed keeps its vote", "", group("n1 n2 n3", "n4", failed("n3", 59*time.Second))},
		{"a voter dead for the settling time gets a successor",
			"promote n4.a: n4 becomes a voter in place of n3, which failed 1m0s ago", group("n1 n2 n3", "n4",
				failed("n3", minute))},
		{"a dead voter with a successor is removed", "remove n3.a: n3 leaves the group: failed 2m0s ago",
			group("n1 n2 n3 n4", "", failed("n3", 2*minute))},
		{"a dead voter without a non-voter keeps its vote", "", group("n1 n2 n3", "", failed("n3", time.Hour))},
		{"a dead voter keeps its vote while the non-voter is behind", "",
			group("n1 n2 n3", "n4", failed("n3", time.Hour), lag("n4", 5000))},
		{"a dead voter keeps its vote while the non-voter is dead too", "",
			group("n1 n2 n3", "n4", failed("n3", 2*minute), failed("n4", 2*minute))},
		{"a non-voter is still added while a dead voter waits",
			"add n4.a: n4 joins the group as a non-voter and catches up", group("n1 n2 n3", "",
				failed("n3", time.Hour), arrives("n4", "a"))},
		{"two dead voters of five are replaced one at a time",
			"promote n6.a: n6 becomes a voter in place of n4, which failed 2m0s ago",
			group("n1 n2 n3 n4 n5", "n6 n7", want(5), failed("n4", 2*minute), failed("n5", 2*minute))},
		{"five voters of which two are dead are never shrunk", "",
			group("n1 n2 n3 n4 n5", "", want(5), failed("n4", time.Hour), failed("n5", time.Hour))},
		{"without a majority alive nothing changes", "",
			group("n1 n2 n3", "n4", failed("n2", time.Hour), failed("n3", time.Hour))},
		{"one of two dead is no majority", "", group("n1 n2", "n3", failed("n2", time.Hour))},
		{"without a leader nothing changes", "", group("n1", "n2", noLeader())},
		{"a leader without a vote changes nothing", "", group("n1 n2", "n3", leader("n3"), arrives("n4", "a"))},
		{"a voter never seen counts from when this leader began to watch", "",
			group("n1 n2 n3", "n4", unseen("n3"), watchingFor(59*time.Second))},
		{"a voter not seen for the settling time is replaced",
			"promote n4.a: n4 becomes a voter in place of n3, which has not been seen for 1m0s",
			group("n1 n2 n3", "n4", unseen("n3"), watchingFor(minute))},
		{"a leader without a start of watching has just begun", "",
			group("n1 n2 n3", "n4", unseen("n3"), func(in *placement.Input) { in.Watching = time.Time{} })},
		{"the leader counts as alive whatever gossip says",
			"promote n3.a: n3 becomes a voter: it is 3 entries behind and has kept up for 20s", group("n1 n2", "n3",
				failed("n1", time.Hour))},

		// Graceful stops.
		{"a voter that stopped gracefully keeps its vote at first", "",
			group("n1 n2 n3", "n4", stopped("n3", 30*time.Second))},
		{"the vote of a voter that stopped for long moves",
			"promote n4.a: n4 becomes a voter in place of n3, which stopped 2m0s ago", group("n1 n2 n3", "n4",
				stopped("n3", 2*minute))},
		{"a voter that stopped for long stays as a non-voter", "demote n3.a: n3 gives up its vote: stopped 2m0s ago",
			group("n1 n2 n3 n4", "", stopped("n3", 2*minute))},
		{"without a successor a stopped voter keeps its vote", "", group("n1 n2 n3", "", stopped("n3", 100*time.Hour))},
		{"a stopped non-voter is never removed", "", group("n1 n2 n3", "n4", stopped("n4", 100*time.Hour))},

		// Non-voters that are gone.
		{"a failed non-voter stays for a while", "", group("n1 n2 n3", "n4", failed("n4", 59*minute))},
		{"a non-voter that failed long ago is forgotten", "remove n4.a: n4 leaves the group: failed 1h0m0s ago",
			group("n1 n2 n3", "n4", failed("n4", time.Hour))},
		{"a non-voter never seen is forgotten too", "remove n4.a: n4 leaves the group: has not been seen for 1h0m0s",
			group("n1 n2 n3", "n4", unseen("n4"))},

		// Other data directories.
		{"a wiped voter first joins again", "add n3.b: n3 joins the group as a non-voter and catches up",
			group("n1 n2 n3", "", wiped("n3"))},
		{"its old vote waits until the new server keeps up", "",
			group("n1 n2 n3", "", wiped("n3"), replacement("n3", false))},
		{"the new server takes the old one's vote without a settling time",
			"promote n3.b: n3 becomes a voter in place of its former server n3.a: the node came back 5s ago with " +
				"another data directory",
			group("n1 n2 n3", "", wiped("n3"), replacement("n3", true))},
		{"the old server of a wiped voter is removed",
			"remove n3.a: n3 leaves the group: came back 5s ago with another data directory",
			group("n1 n2 n3", "", wiped("n3"), replacement("n3", true), voting("n3.b"))},
		{"a vote goes back to the node that had it before it goes to another",
			"promote n4.b: n4 becomes a voter in place of its former server n4.a: the node came back 5s ago with " +
				"another data directory",
			group("n1 n2 n4", "n3", wiped("n4"), replacement("n4", true))},
		{"a node takes its own vote back, not another's",
			"promote n4.b: n4 becomes a voter in place of its former server n4.a: the node came back 5s ago with " +
				"another data directory",
			group("n1 n2 n3 n4 n5", "", want(5), failed("n3", 2*minute), wiped("n4"), replacement("n4", true))},
		{"another non-voter takes the vote where the new server is behind",
			"promote n4.a: n4 becomes a voter in place of n3, which came back 5s ago with another data directory",
			group("n1 n2 n3", "n4", wiped("n3"), replacement("n3", false))},
		{"the old server of a wiped non-voter is removed at once",
			"remove n4.a: n4 leaves the group: came back 5s ago with another data directory", group("n1 n2 n3", "n4",
				wiped("n4"))},
		{"a wiped voter of two leaves no majority", "", group("n1 n2", "", wiped("n2"))},
		{"a wiped server that failed again waits like any other", "",
			group("n1 n2 n3", "n4", wiped("n3"), failed("n3", 5*time.Second))},
		{"a voter whose node is a sidecar now is replaced after the settling time",
			"promote n4.a: n4 becomes a voter in place of n3, which has run as a sidecar for 1m0s",
			group("n1 n2 n3", "n4", demotedToSidecar("n3", minute))},
		{"not before", "", group("n1 n2 n3", "n4", demotedToSidecar("n3", 30*time.Second))},
		{"a non-voter whose node is a sidecar now is removed",
			"remove n4.a: n4 leaves the group: has run as a sidecar for 1m0s", group("n1 n2 n3", "n4",
				demotedToSidecar("n4", minute))},

		// Removed by an operator.
		{"a removed non-voter goes", "remove n4.a: n4 leaves the group: was removed by an operator",
			group("n1 n2 n3", "n4", removed("n4.a"))},
		{"a removed voter is replaced first where a non-voter keeps up",
			"promote n4.a: n4 becomes a voter in place of n2, which was removed by an operator", group("n1 n2 n3",
				"n4", removed("n2.a"))},
		{"a removed voter goes once it is replaced", "remove n2.a: n2 leaves the group: was removed by an operator",
			group("n1 n2 n3 n4", "", removed("n2.a"))},
		{"a removed voter goes without a successor too",
			"remove n2.a: n2 leaves the group: was removed by an operator", group("n1 n2 n3", "", removed("n2.a"))},
		{"a removed voter does not wait for a non-voter that is behind",
			"remove n2.a: n2 leaves the group: was removed by an operator", group("n1 n2 n3", "n4", removed("n2.a"),
				lag("n4", 5000))},
		{"a removed voter stays while the majority needs it", "",
			group("n1 n2 n3", "", removed("n2.a"), failed("n3", 10*time.Second))},
		{"a removed voter that is dead goes at once", "remove n2.a: n2 leaves the group: was removed by an operator",
			group("n1 n2 n3", "", removed("n2.a"), failed("n2", time.Second))},
		{"a removed server that stopped gracefully goes too",
			"remove n2.a: n2 leaves the group: was removed by an operator", group("n1 n2 n3", "", removed("n2.a"),
				stopped("n2", time.Hour))},
		{"a removed server is not added again", "", group("n1 n2 n3", "", arrives("n4", "a"), removed("n4.a"))},
		{"the node of a removed server is added with another data directory",
			"add n4.b: n4 joins the group as a non-voter and catches up", group("n1 n2 n3", "", arrives("n4", "b"),
				removed("n4.a"))},
		{"a removed leader hands over first", "transfer n2.a: n2 takes over as leader: n1 was removed by an operator",
			group("n1 n2 n3", "", removed("n1.a"))},
		{"a removed leader does not hand over to a slow disk where there is another",
			"transfer n3.a: n3 takes over as leader: n1 was removed by an operator", group("n1 n2 n3", "",
				removed("n1.a"), slow("n2"))},
		{"a removed leader does not hand over to a voter that is behind",
			"transfer n3.a: n3 takes over as leader: n1 was removed by an operator", group("n1 n2 n3", "",
				removed("n1.a"), lag("n2", 5000))},
		{"a removed leader hands over to a disk that is nearly full where there is no other",
			"transfer n2.a: n2 takes over as leader: n1 was removed by an operator", group("n1 n2 n3", "",
				removed("n1.a"), low("n2"), lag("n3", 5000))},
		{"a leader whose disk is nearly full hands over",
			"transfer n2.a: n2 takes over as leader: the disk of n1 is nearly full", group("n1 n2 n3", "", low("n1"))},
		{"a leader whose disk is nearly full hands over to one whose disk is not",
			"transfer n3.a: n3 takes over as leader: the disk of n1 is nearly full", group("n1 n2 n3", "", low("n1"),
				low("n2"))},
		{"a slow disk leads rather than one that is nearly full",
			"transfer n2.a: n2 takes over as leader: the disk of n1 is nearly full", group("n1 n2 n3", "", low("n1"),
				slow("n2"), low("n3"))},
		{"a leader whose disk is nearly full stays while the others are behind or nearly full too", "",
			group("n1 n2 n3", "", low("n1"), low("n2"), lag("n3", 5000))},
		{"a leader stays if only other disks are nearly full", "", group("n1 n2 n3", "", low("n2"), low("n3"))},
		{"a removed leader stays while no other voter keeps up", "",
			group("n1 n2", "", removed("n1.a"), lagUnknown("n2"))},
		{"a removed lone leader promotes a successor first",
			"promote n2.a: n2 becomes a voter in place of n1, which was removed by an operator", group("n1", "n2",
				removed("n1.a"), want(1))},
		{"a removed lone leader keeps its successor",
			"transfer n2.a: n2 takes over as leader: n1 was removed by an operator", group("n1 n2", "",
				removed("n1.a"), want(1))},
		{"a removed lone leader waits while the successor cannot lead yet", "",
			group("n1 n2", "", removed("n1.a"), want(1), lagUnknown("n2"))},
		{"a removed lone leader without a non-voter stays", "", group("n1", "", removed("n1.a"))},

		// Fewer voters wanted.
		{"voters beyond the wanted number become non-voters, the highest id first",
			"demote n5.a: n5 becomes a non-voter: there are 5 voters, and 3 are wanted", group("n1 n2 n3 n4 n5", "")},
		{"the leader is never demoted", "demote n4.a: n4 becomes a non-voter: there are 5 voters, and 3 are wanted",
			group("n1 n2 n3 n4 n5", "", leader("n5"))},
		{"a voter that is not alive goes before one that is",
			"demote n2.a: n2 becomes a non-voter: there are 5 voters, and 3 are wanted", group("n1 n2 n3 n4 n5", "",
				failed("n2", time.Second))},
		{"a voter that is behind goes before one that is not",
			"demote n2.a: n2 becomes a non-voter: there are 5 voters, and 3 are wanted", group("n1 n2 n3 n4 n5", "",
				lag("n2", 5000))},
		{"a voter stays as long as the others would have no majority that keeps up", "", group("n1 n2 n3 n4", "",
			want(3), lag("n2", 5000), lag("n3", 5000), lag("n4", 5000))},
		{"a voter dead for long is removed instead", "remove n2.a: n2 leaves the group: failed 2m0s ago",
			group("n1 n2 n3 n4 n5", "", failed("n2", 2*minute))},
		{"four voters become three where four are wanted",
			"demote n4.a: n4 becomes a non-voter: there are 4 voters, and 4 are wanted, of which 3 count because " +
				"an even number survives no more failures",
			group("n1 n2 n3 n4", "", want(4))},
		{"one wanted voter is the leader", "demote n2.a: n2 becomes a non-voter: there are 2 voters, and 1 is wanted",
			group("n1 n2", "", want(1))},
		{"no wanted voters are one", "", group("n1", "n2", want(0))},
	}
}

func TestPlan_Policy(t *testing.T) {
	seen := map[string]bool{}
	for _, row := range policy() {
		if seen[row.name] {
			t.Errorf("two cases are called %q", row.name)
		}
		seen[row.name] = true
		t.Run(row.name, func(t *testing.T) {
			got := ""
			for _, c := range placement.Plan(row.in) {
				got += c.Op.String() + " " + c.Server + ": " + c.Reason
				if c.Node != placement.NodeOf(c.Server) {
					t.Errorf("node %q of server %q", c.Node, c.Server)
				}
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	if len(seen) < 40 {
		t.Errorf("only %d rows", len(seen))
	}
}

func TestOp_String(t *testing.T) {
	for op, want := range map[placement.Op]string{placement.Add: "add", placement.Promote: "promote",
		placement.Demote: "demote",
		placement.Remove: "remove", placement.Transfer: "transfer", 0: "op(0)", 9: "op(9)"} {
		if op.String() != want {
			t.Errorf("%d: %q", op, op.String())
		}
	}
}

func TestLimits_WithDefaults(t *testing.T) {
	want := placement.Limits{MaxLag: 256, Stable: 5 * time.Second, Settle: time.Minute, Forget: 24 * time.Hour}
	if diff := cmp.Diff(want, placement.Limits{}.WithDefaults()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(limits(), limits().WithDefaults()); diff != "" {
		t.Error("defaults replaced what was set:", diff)
	}
}

func TestSteady_FromFirstReportWithinLimit(t *testing.T) {
	at := func(s int) time.Time { return start().Add(time.Duration(s) * time.Second) }
	var since time.Time
	for i, step := range []struct {
		lag  uint64
		want time.Time
	}{{101, time.Time{}}, {100, at(1)}, {0, at(1)}, {101, time.Time{}}, {5, at(4)}} {
		if since = placement.Steady(since, step.lag, 100, at(i)); !since.Equal(step.want) {
			t.Errorf("answer %d: steady since %v, want %v", i, since, step.want)
		}
	}
}

func TestNodeOf_KeepsDotsOfNodeID(t *testing.T) {
	for id, want := range map[string]string{"n1.ab": "n1", "host.example.com.ab": "host.example.com",
		"plain": "plain", "": ""} {
		if got := placement.NodeOf(id); got != want {
			t.Errorf("NodeOf(%q) = %q, want %q", id, got, want)
		}
	}
}

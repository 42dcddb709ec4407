package placement_test

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/raftfsm/placement"
)

func TestRemovable_AsLongAsRestIsMajority(t *testing.T) {
	for _, row := range []struct {
		name string
		in   placement.Input
		want string // part of the reason against the removal; empty = the server may be removed
	}{
		{"one of three", group("n1 n2 n3", ""), ""},
		{"a dead one of three", group("n1 n2 n3", "", failed("n2", time.Second)), ""},
		{"a living one while another is dead", group("n1 n2 n3", "", failed("n3", time.Second)),
			"only 1 of 2 voters would be alive"},
		{"a living one while another does not answer", group("n1 n2 n3", "", lagUnknown("n3")),
			"n3 did not answer the leader just now, and without n2 only 1 of 2 voters would keep up"},
		{"a living one while another is behind", group("n1 n2 n3", "", lag("n3", 5000)), "n3 is 5,000 entries behind"},
		{"one of five while another is dead and a third does not answer", group("n1 n2 n3 n4 n5", "",
			failed("n3", time.Second), lagUnknown("n4")), "n4 did not answer"},
		{"one of five while two others are dead and a third does not answer", group("n1 n2 n3 n4 n5", "",
			failed("n3", time.Second), failed("n5", time.Second), lagUnknown("n4")), "bring n3 or n5 back"},
		{"one that does not answer", group("n1 n2 n3", "", lagUnknown("n2")), ""},
		{"and there is a non-voter", group("n1 n2 n3", "n4", failed("n3", time.Second)), ""},
		{"that does not keep up", group("n1 n2 n3", "n4", failed("n3", time.Second), lag("n4", 5000)), "bring n3 back"},
		{"one of two", group("n1 n2", ""), ""},
		{"a non-voter", group("n1", "n2"), ""},
		{"a stranger", group("n1", ""), ""},
		{"no leader", group("n1 n2 n3", "", noLeader()), "no leader"},
		{"no majority", group("n1 n2 n3", "", failed("n2", time.Second), failed("n3", time.Second)),
			"without a majority"},
		{"the leader", group("n2 n1 n3", ""), ""},
		{"the leader of two while the other is behind", group("n2 n1", "", lag("n1", 5000)),
			"n1 is 5,000 entries behind"},
		{"the leader without a successor", group("n2 n1 n3 n4", "", removed("n1.a"), removed("n3.a"), lag("n4", 5000)),
			"leads, and no other voter"},
		{"the only voter", group("n2", ""), "the only voter"},
		{"the only voter with a non-voter", group("n2", "n1"), ""},
		{"one of two while the leader is being removed", group("n1 n2", "", removed("n1.a")), "are being removed too"},
		{"the last of three", group("n1 n2 n3", "", removed("n1.a"), removed("n3.a")), "are being removed too"},
		{"one of three while the leader is being removed", group("n1 n2 n3", "", removed("n1.a")), ""},
		{"one of two with a non-voter", group("n1 n2", "n3", removed("n1.a")), ""},
		{"removed already", group("n1 n2 n3", "", removed("n2.a"), failed("n3", time.Second)), ""},
	} {
		got, passing := placement.Removable(row.in, "n2.a")
		if row.want == "" && got != "" || row.want != "" && !strings.Contains(got, row.want) ||
			passing != (strings.Contains(got, "keep up, which") || strings.Contains(got, "leads, and no other")) {
			t.Errorf("%s: %q, passing %t, want %q", row.name, got, passing, row.want)
		}
	}
}

// TestRemovable_ServerIsRemovedByPlan applies what Plan returns until no change is left.
func TestRemovable_ServerIsRemovedByPlan(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		in := group("n1 n2 n3 n4 n5", "n6 n7", want(5))
		for _, n := range []string{"n3", "n4", "n5", "n6"} {
			if r.IntN(4) == 0 {
				failed(n, time.Duration(r.IntN(90))*time.Second)(&in)
			}
		}
		target := []string{"n1.a", "n2.a", "n3.a", "n6.a"}[r.IntN(4)]
		if reason, _ := placement.Removable(in, target); reason != "" {
			continue
		}
		in.Removed = []string{target}
		for step := 0; ; step++ {
			changes := placement.Plan(in)
			if len(changes) == 0 || step > 20 {
				break
			}
			carryOut(&in, changes[0])
		}
		for _, s := range in.Servers {
			if s.ID == target {
				t.Fatalf("%s may be removed and stays: %+v", target, in)
			}
		}
	}
}

func carryOut(in *placement.Input, c placement.Change) {
	for i := range in.Servers {
		if in.Servers[i].ID != c.Server {
			continue
		}
		switch c.Op {
		case placement.Promote:
			in.Servers[i].Voter = true
		case placement.Demote:
			in.Servers[i].Voter = false
		case placement.Transfer:
			in.Leader = c.Server
		case placement.Remove:
			in.Servers = append(in.Servers[:i:i], in.Servers[i+1:]...)
		}
		return
	}
	if c.Op == placement.Add {
		in.Servers = append(in.Servers, placement.Server{ID: c.Server})
	}
}

package placement_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/raftfsm/placement"
)

// led returns groups over n1, n2 and n3, led by the given nodes.
func led(leaders ...string) []placement.Input {
	var out []placement.Input
	for i, l := range leaders {
		in := group("n1 n2 n3", "n4", leader(l))
		in.Group = uint32(i)
		out = append(out, in)
	}
	return out
}

// five returns groups over five voters, led by the given nodes.
func five(leaders ...string) []placement.Input {
	var out []placement.Input
	for i, l := range leaders {
		in := group("n1 n2 n3 n4 n5", "", want(5), leader(l))
		in.Group = uint32(i)
		out = append(out, in)
	}
	return out
}

// each applies events to every group.
func each(groups []placement.Input, events ...event) []placement.Input {
	for i := range groups {
		for _, e := range events {
			e(&groups[i])
		}
	}
	return groups
}

func leadingSince(d time.Duration) event {
	return func(in *placement.Input) { in.LeaderSince = start().Add(-d) }
}

func TestLeaders_SpreadOverVoters(t *testing.T) {
	for _, row := range []struct {
		name   string
		groups []placement.Input
		want   []string
	}{
		{"one group stays where it is", led("n1"), nil},
		{"an even spread is at rest", led("n1", "n2", "n3"), nil},
		{"a difference of one is at rest", led("n1", "n1", "n2", "n3"), nil},
		{"three groups of one leader: one goes at a time", led("n1", "n1", "n1"),
			[]string{"group 0 moves from n1, which leads 3 groups, to n2, which leads 0"}},
		{"two busy leaders relieve one each, to different servers",
			each(append(led("n1", "n1", "n1", "n1", "n2", "n2", "n2", "n2"), placement.Input{}), want(3)),
			[]string{"group 0 moves from n1, which leads 4 groups, to n3, which leads 0"}},
		{"an operator's choice stays",
			each(led("n1", "n1", "n1"), func(in *placement.Input) { in.Held = in.Group < 2 }),
			[]string{"group 2 moves from n1, which leads 3 groups, to n2, which leads 0"}},
		{"three choices of an operator all stay",
			each(led("n1", "n1", "n1"), func(in *placement.Input) { in.Held = true }), nil},
		{"a voter that is behind gets nothing", each(led("n1", "n1", "n1"), lag("n2", 101)),
			[]string{"group 0 moves from n1, which leads 3 groups, to n3, which leads 0"}},
		{"a voter whose lag is unknown gets nothing", each(led("n1", "n1", "n1"), lagUnknown("n2"), lagUnknown("n3")),
			nil},
		{"a dead voter gets nothing", each(led("n1", "n1"), failed("n2", time.Second), stopped("n3", time.Second)),
			nil},
		{"a disk that is nearly full gets nothing", each(led("n1", "n1"), low("n2"), low("n3")), nil},
		{"a slow disk gets nothing", each(led("n1", "n1"), slow("n2"), slow("n3")), nil},
		{"a non-voter gets nothing", each(led("n1", "n1"),
			server("n2", func(s *placement.Server) { s.Voter = false }), server("n3",
				func(s *placement.Server) { s.Voter = false }), want(1)), nil},
		{"a removed voter gets nothing", each(led("n1", "n1", "n1"), removed("n2.a"), failed("n3", time.Second)), nil},
		{"a group that has just got its leader stays", each(led("n1", "n1", "n1"), leadingSince(59*time.Second)), nil},
		{"a group that has rested moves", each(led("n1", "n1"), leadingSince(time.Minute)),
			[]string{"group 0 moves from n1, which leads 2 groups, to n2, which leads 0"}},
		{"a group about to change stays", each(led("n1", "n1"), arrives("n5", "a")), nil},
		{"a group without a majority stays", each(five("n1", "n1"), failed("n3", time.Second),
			failed("n4", time.Second), failed("n5", time.Second)), nil},
		{"groups without a leader are not counted", each(led("n1", "n1"), noLeader()), nil},
	} {
		t.Run(row.name, func(t *testing.T) {
			var got []string
			for _, m := range placement.Leaders(row.groups...) {
				got = append(got, m.Reason)
			}
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLeaders_TwoBusyServersMoveToTwoIdleOnes(t *testing.T) {
	groups := five("n1", "n1", "n1", "n2", "n2", "n2")
	want := []placement.Move{
		{Group: 0, From: "n1.a", To: "n3.a",
			Reason: "group 0 moves from n1, which leads 3 groups, to n3, which leads 0"},
		{Group: 3, From: "n2.a", To: "n4.a",
			Reason: "group 3 moves from n2, which leads 3 groups, to n4, which leads 0"},
	}
	if diff := cmp.Diff(want, placement.Leaders(groups...)); diff != "" {
		t.Error(diff)
	}
}

func TestLeaders_ComeToRest(t *testing.T) {
	groups := led("n1", "n1", "n1", "n1", "n1", "n1", "n1", "n1", "n2", "n3")
	moves := 0
	for {
		next := placement.Leaders(groups...)
		if len(next) == 0 {
			break
		}
		for _, m := range next {
			groups[m.Group].Leader = m.To
		}
		if moves += len(next); moves > 20 {
			t.Fatal("leaders never come to rest")
		}
	}
	load := map[string]int{}
	for _, g := range groups {
		load[g.Leader]++
	}
	if diff := cmp.Diff(map[string]int{"n1.a": 4, "n2.a": 3, "n3.a": 3}, load); diff != "" {
		t.Error(diff)
	}
	if moves != 4 {
		t.Errorf("%d moves, 4 are enough", moves)
	}
}

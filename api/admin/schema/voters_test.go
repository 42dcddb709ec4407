package schema

import "testing"

func TestMargin_WarnsBeforeTheMajorityIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		voters, down int
		warns        bool
	}{
		"all of three": {3, 0, false}, "two of three": {3, 1, true}, "one of three": {3, 2, false},
		"four of five": {5, 1, false}, "three of five": {5, 2, true}, "both of two": {2, 0, false},
		"one of two": {2, 1, false}, "alone": {1, 0, false}, "three of four": {4, 1, true}, "none": {0, 0, false},
	} {
		g := VotersGroup{States: map[string]string{"other": "failed"}}
		servers := []ServerStatus{{Node: "other", State: "failed"}} // a non-voter does not count
		for i := range c.voters {
			s := ServerStatus{Node: string(rune('a' + i)), Voter: true, State: "alive"}
			if i < c.down {
				s.State, g.States[s.Node] = "failed", "failed"
			}
			servers, g.Voters = append(servers, s), append(g.Voters, s.Node)
		}
		if got := Margin(servers); got != g.Margin() || (got != "") != c.warns {
			t.Errorf("%s: %q and %q", name, got, g.Margin())
		}
	}
}

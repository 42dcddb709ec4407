package schema

import "testing"

func TestMargin_WarnsBeforeTheMajorityIsLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		voters, down int
		want         string
	}{
		"all of three": {3, 0, ""}, "two of three": {3, 1, oneMoreFailure}, "one of three": {3, 2, ""},
		"four of five": {5, 1, ""}, "three of five": {5, 2, oneMoreFailure}, "both of two": {2, 0, oneFailure},
		"one of two": {2, 1, ""}, "alone": {1, 0, ""}, "three of four": {4, 1, oneMoreFailure}, "none": {0, 0, ""},
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
		if got := Margin(servers); got != c.want || g.Margin() != c.want {
			t.Errorf("%s: %q and %q, want %q", name, got, g.Margin(), c.want)
		}
	}
}

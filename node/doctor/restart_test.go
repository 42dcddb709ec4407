package doctor

import (
	"strings"
	"testing"

	"github.com/quorate/quorate/membership"
)

func TestRestart_SuggestsOnlyWhatCanWork(t *testing.T) {
	for name, c := range map[string]struct {
		role       membership.Role
		leaderless bool
		removes    bool
	}{
		"a server":                         {membership.Server, false, true},
		"a server, and there is no quorum": {membership.Server, true, false},
		"a sidecar":                        {membership.Sidecar, false, false},
	} {
		m := membership.Member{Facts: membership.Facts{NodeID: "b", Role: c.role}}
		got := restart(&m, c.leaderless)
		if strings.Contains(got, "quorate remove b") != c.removes || !strings.Contains(got, "start the node again") {
			t.Errorf("%s: %s", name, got)
		}
	}
}

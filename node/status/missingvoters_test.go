package status_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/node/nodetest"
)

// The status of the remaining node names the missing voters and has a hint. The issue disappears when the voters are
// back.
func TestStatus_NamesMissingVoters(t *testing.T) {
	nodes, configs := nodetest.Three(t)
	nodetest.Voters(t, nodes[0], 3)
	for _, i := range []int{1, 2} {
		nodetest.Close(t, nodes[i])
	}
	nodetest.Poll(t, func() error {
		s := nodetest.Status(t, nodes[0])
		i := slices.IndexFunc(s.Issues, func(i schema.Issue) bool { return i.About == "group 0" })
		if i < 0 {
			return fmt.Errorf("issues: %v", s.Issues)
		}
		for _, want := range []string{"group 0 has no leader: 2 of 3 voters unreachable: n2 (", " since ", "), n3 (",
			"quorate rescue", "only eventual reads"} {
			if !strings.Contains(s.Issues[i].Reason, want) {
				return fmt.Errorf("%q is missing in %q", want, s.Issues[i].Reason)
			}
		}
		for _, server := range s.Groups[0].Servers {
			if gone := server.Node != "n1"; gone == (server.Reason == "") {
				return fmt.Errorf("%s: %q", server.Node, server.Reason)
			}
			if want := map[string]string{"n1": "", "n2": "left", "n3": "left"}[server.Node]; server.Down() != want {
				return fmt.Errorf("%s is %q, not %q", server.Node, server.State, want)
			}
		}
		return nil
	})
	nodes[1] = nodetest.Open(t, configs[1])
	nodetest.Poll(t, func() error {
		for _, i := range nodetest.Status(t, nodes[0]).Issues {
			return fmt.Errorf("%s: %s", i.About, i.Reason)
		}
		return nil
	})
}

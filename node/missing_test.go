package node_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quorate/quorate/api"
)

// Whoever looks at what is left of a cluster learns from one line who is missing and what
// to do; and no line of it stays once they are back.
func TestStatusNamesTheVotersThatAreMissing(t *testing.T) {
	nodes, configs := three(t)
	voters(t, nodes[0], 3)
	for _, i := range []int{1, 2} {
		closeNode(t, nodes[i])
	}
	poll(t, func() error {
		s := status(t, nodes[0])
		i := slices.IndexFunc(s.Issues, func(i api.Issue) bool { return i.About == "group 0" })
		if i < 0 {
			return fmt.Errorf("issues: %v", s.Issues)
		}
		for _, want := range []string{"2 of 3 voters are missing: n2 (", "), n3 (", "quorate rescue", "only eventual reads"} {
			if !strings.Contains(s.Issues[i].Reason, want) {
				return fmt.Errorf("%q is missing in %q", want, s.Issues[i].Reason)
			}
		}
		for _, server := range s.Groups[0].Servers {
			if gone := server.Node != "n1"; gone == (server.Reason == "") {
				return fmt.Errorf("%s: %q", server.Node, server.Reason)
			}
		}
		return nil
	})
	nodes[1] = open(t, configs[1])
	poll(t, func() error {
		for _, i := range status(t, nodes[0]).Issues {
			return fmt.Errorf("%s: %s", i.About, i.Reason)
		}
		return nil
	})
}

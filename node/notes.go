package node

import "github.com/quorate/quorate/api"

// notes are the settings on which the nodes that are alive do not agree.
func (n *Node) notes() []api.Issue {
	out := []api.Issue{}
	if g := n.gossip.Load(); g != nil {
		for _, d := range g.Roster().Differences() {
			out = append(out, api.Issue{About: "settings", Reason: d.String()})
		}
	}
	return out
}

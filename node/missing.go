package node

import (
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/placement"
)

// missing says of a server of a group why it cannot take part, as gossip knows it: it
// failed, it left, its disk was replaced, or nobody has heard of it since this node started. Empty while it is alive.
func (n *Node) missing(server string) string {
	g := n.gossip.Load()
	if g == nil || server == n.host.Identity().Server {
		return ""
	}
	for _, m := range g.Roster().Members() {
		switch {
		case m.NodeID != placement.NodeOf(server):
		case m.ServerID != server:
			return "its node has another data directory now"
		case m.State == membership.Alive:
			return ""
		default:
			return fmt.Sprintf("%s at %s", m.State, m.Since.UTC().Format(time.RFC3339))
		}
	}
	return "not heard of since this node started"
}

// missingVoters names the voters of a group that cannot take part, and what to do where too
// few are left to choose a leader. Empty if all can.
func (n *Node) missingVoters(servers []raft.Server) string {
	var names []string
	voters := 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if why := n.missing(string(s.ID)); why != "" {
			names = append(names, placement.NodeOf(string(s.ID))+" ("+why+")")
		}
	}
	if len(names) == 0 {
		return ""
	}
	text := fmt.Sprintf("%d of %d voters are missing: %s", len(names), voters, strings.Join(names, ", "))
	if 2*(voters-len(names)) <= voters {
		text += "; without a majority only eventual reads are answered: start them again, or see 'quorate rescue' if they are gone for good"
	}
	return text
}

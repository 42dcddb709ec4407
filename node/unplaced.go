package node

import (
	"cmp"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Unplaced tells in which groups this server is to vote and does not yet. It asks what the
// server itself knows: the configuration it was sent, and gossip.
func (n *Node) Unplaced() []api.Reason {
	gossip := n.gossip.Load()
	if gossip == nil || n.sidecar() {
		return nil
	}
	var out []api.Reason
	roster := gossip.Roster()
	for i, g := range n.host.Groups() {
		if why := placement.Missing(n.placeInput(uint32(i), g, roster), n.host.Identity().Server); why != "" {
			out = append(out, api.Reason{Name: "vote in group " + strconv.Itoa(i), Text: why})
		}
	}
	return out
}

func (n *Node) placeInput(id uint32, g *group.Group, roster *membership.Roster) placement.Input {
	servers, _ := g.Servers()
	in := placement.Input{
		Group: id, Leader: string(g.Leader()), Now: n.deps.Now(), Members: members(roster),
		Removed: n.host.RemovedServers(id), Limits: n.config.Cluster.Limits,
	}
	in.Voters = cmp.Or(leaderVoters(roster, in.Leader), n.config.Cluster.Voters)
	for _, s := range servers {
		in.Servers = append(in.Servers, placement.Server{ID: string(s.ID), Voter: s.Suffrage == raft.Voter})
	}
	return in
}

// leaderVoters is how many votes the leader of a group gives: its setting counts, and while
// servers are restarted one by one with another --voters they differ. It is 0 where the
// leader is not known or does not say.
func leaderVoters(roster *membership.Roster, leader string) int {
	for _, m := range roster.Alive() {
		if m.ServerID == leader {
			return int(m.Voters)
		}
	}
	return 0
}

package clusterctl

import (
	"cmp"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Unplaced returns a reason for each group in which this server should be a voter, but is not one yet. It sends no
// requests. It uses only gossip, and the group configurations that this server has received.
func (ctl *Controller) Unplaced() []api.Reason {
	if ctl.opts.Sidecar {
		return nil
	}
	var out []api.Reason
	roster := ctl.net.Gossip().Roster()
	for i, g := range ctl.host.Groups() {
		if why := placement.Missing(ctl.placeInput(uint32(i), g, roster), ctl.host.Identity().Server); why != "" {
			out = append(out, api.Reason{Name: "vote in group " + strconv.Itoa(i), Text: why})
		}
	}
	return out
}

func (ctl *Controller) placeInput(id uint32, g *group.Group, roster *membership.Roster) placement.Input {
	servers, _ := g.Servers()
	in := placement.Input{
		Group: id, Leader: string(g.Leader()), Now: ctl.now(), Members: members(roster),
		Removed: ctl.host.RemovedServers(id), Limits: ctl.opts.Limits,
	}
	in.Voters = cmp.Or(max(ctl.voters.current(), 0), leaderVoters(roster, in.Leader), ctl.opts.Voters)
	for _, s := range servers {
		in.Servers = append(in.Servers, placement.Server{ID: string(s.ID), Voter: s.Suffrage == raft.Voter})
	}
	return in
}

// leaderVoters returns the setting --voters of a group's leader, given by its server id. It returns 0 if the setting is
// unknown. The setting applies only while there is no note with the number of voters.
func leaderVoters(roster *membership.Roster, leader string) int {
	for _, m := range roster.Alive() {
		if m.ServerID == leader {
			return int(m.Voters)
		}
	}
	return 0
}

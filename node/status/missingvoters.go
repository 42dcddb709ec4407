package status

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/placement"
)

// missing returns the reason why a server of a group is missing, or "" if the server is alive. A server is missing if
// it has failed or left, or if its node has another data directory now. It is also missing if gossip has not seen it
// since this node started.
func (r *Reporter) missing(server string) string {
	p := r.parts.Load()
	roster := p.Network.Roster()
	if server == p.Host.Identity().Server {
		return ""
	}
	for _, m := range roster.Members() {
		switch {
		case m.NodeID != placement.NodeOf(server):
		case m.ServerID != server:
			return "its node has another data directory now"
		case m.State == membership.Alive:
			return ""
		default:
			return sinceText(m)
		}
	}
	return "not heard of since this node started"
}

// stateOf returns the state of a server of a group according to gossip, for example "failed". For the server of this
// node, the state is always "alive".
func (r *Reporter) stateOf(s schema.ServerStatus) string {
	p := r.parts.Load()
	if s.ServerID == p.Host.Identity().Server {
		return membership.Alive.String()
	}
	return p.Network.Roster().StateOf(s.Node, s.ServerID)
}

// NoLeader returns the reason why a group has no leader, and a hint for the operator. Either result may be empty. The
// reason names the unreachable voters of the group or, on a sidecar, the unreachable servers of the cluster. NoLeader
// does not block.
func (r *Reporter) NoLeader(id uint32) (reason, hint string) {
	p := r.parts.Load()
	if p == nil {
		return "", ""
	}
	if r.opts.Sidecar {
		return r.missingServers(), ""
	}
	groups := p.Host.Groups()
	if int(id) >= len(groups) {
		return "", ""
	}
	servers, _ := groups[id].Servers()
	return r.missingVoters(servers)
}

// missingServers returns a text that names the servers that are not alive according to gossip, or "" if all are alive.
func (r *Reporter) missingServers() string {
	var names []string
	servers := 0
	for _, m := range r.parts.Load().Network.Roster().Members() {
		if m.Role != membership.Server {
			continue
		}
		if servers++; m.State != membership.Alive {
			names = append(names, m.NodeID+" ("+sinceText(m)+")")
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d servers unreachable: %s", len(names), servers, strings.Join(names, ", "))
}

// missingVoters returns a message that names the unreachable voters among servers, or says that all voters are
// reachable. The message is empty if no server is a voter. The hint says what the operator can do. It may be empty.
func (r *Reporter) missingVoters(servers []raft.Server) (why, hint string) {
	p := r.parts.Load()
	var names []string
	voters := 0
	for _, s := range servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if why := r.unreachable(string(s.ID)); why != "" {
			names = append(names, placement.NodeOf(string(s.ID))+" ("+why+")")
		}
	}
	if id := p.Host.Identity(); id.LeftBehind() {
		hint = "this server was left behind by a rescue of the cluster: move its data directory away and start it " +
			"again, it joins as a new server"
	}
	switch {
	case voters == 0:
		return "", hint
	case len(names) == 0:
		hint = cmp.Or(hint, "if this lasts, run quorate doctor on every voter: one may not reach another, for example "+
			"because of a wrong --advertise-address")
		return fmt.Sprintf("all %d voters are reachable, an election is in progress", voters), hint
	case hint == "" && 2*(voters-len(names)) <= voters:
		hint = "only eventual reads are answered until a majority is back: start the missing voters, or if they " +
			"run, see 'quorate doctor': a port may be closed, or an --advertise-address wrong; see 'quorate rescue' " +
			"only if they are lost permanently"
	}
	return fmt.Sprintf("%d of %d voters unreachable: %s", len(names), voters, strings.Join(names, ", ")), hint
}

// unreachable returns why a server of a group without a leader cannot vote, or "" if the server seems able to vote. It
// checks both gossip and the connections of Raft, because a server may be alive in gossip while its peer port does not
// answer.
func (r *Reporter) unreachable(server string) string {
	if why := r.missing(server); why != "" {
		return why
	}
	since, down := r.parts.Load().Network.PeerDown(server)
	if !down {
		return ""
	}
	return "its peer port " + r.peerAddr(server) + "does not answer since " + since.UTC().Format(time.RFC3339)
}

// peerAddr returns the address of a server's peer port, followed by a space, or "" if the address is unknown.
func (r *Reporter) peerAddr(server string) string {
	for _, m := range r.parts.Load().Network.Roster().Members() {
		if m.ServerID == server {
			return m.PeerAddr + " "
		}
	}
	return ""
}

func sinceText(m membership.Member) string {
	return fmt.Sprintf("%s since %s", m.State, m.Since.UTC().Format(time.RFC3339))
}

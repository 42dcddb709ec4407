package node

import (
	"strings"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/placement"
)

// sidecar reports whether this node holds no replicas and answers through servers.
func (n *Node) sidecar() bool { return n.config.Cluster.Role == RoleSidecar }

// liveServers are the ids of the servers of the cluster that gossip takes for alive.
func (n *Node) liveServers() []string {
	var out []string
	g := n.gossip.Load()
	if g == nil {
		return nil
	}
	for _, m := range g.Roster().Alive() {
		if m.Role == membership.Server && m.ClusterID != "" {
			out = append(out, m.ServerID)
		}
	}
	return out
}

// followEpoch makes a node without replicas take notice of a rescue: sessions of before it
// may name what is lost. What others hear of it does not matter, so gossip is not told.
func (n *Node) followEpoch(r *membership.Roster) {
	own := n.host.Identity()
	if id, epoch := formed(r); n.sidecar() && id == own.Cluster && epoch > own.Epoch {
		if err := n.host.Adopt(id, epoch); err != nil {
			n.log.Warn("the cluster was rescued, and this node cannot follow", "error", err)
			return
		}
		n.log.Warn("the cluster was rescued: sessions of before may have seen what is lost", "epoch", epoch)
	}
}

// routedGroups describes, on a node without replicas, how groups are reached.
func (n *Node) routedGroups() []api.GroupStatus {
	var out []api.GroupStatus
	if !n.sidecar() {
		return nil
	}
	for i := range n.host.Partitions() {
		r, c := n.host.Route(i), n.groupCheck(i)
		out = append(out, api.GroupStatus{
			ID: uint64(i), State: "routed", Leader: placement.NodeOf(string(r.Leader)), Term: r.Term,
			Nearest: placement.NodeOf(r.Nearest), RoundTripMicros: r.Trip.Microseconds(),
			Reads: c.Reads, Writes: c.Writes, Reason: c.Reason, Servers: []api.ServerStatus{},
		})
	}
	return out
}

// validateRole refuses what makes no sense for a node without replicas.
func (c Cluster) validateRole(p *problems) {
	if c.Role != RoleSidecar {
		return
	}
	p.check(c.joining(), "--role", c.Role, "a sidecar holds no data and needs servers: name them with --join")
	p.check(c.BootstrapExpect == 0, "--bootstrap-expect", c.BootstrapExpect, "leave it out with --role sidecar: only servers form a cluster")
}

// defaultID is the node id of a new data directory where nobody has chosen one: that of
// the machine for a node that joins others, who will see it, and a random one for the rest.
func (c Cluster) defaultID() string {
	if !c.joining() {
		return ""
	}
	return nodeName(c.Host)
}

// nodeName makes a node id of a host name: its first label, without what an id cannot have.
func nodeName(host string) string {
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	var b strings.Builder
	for _, r := range host {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || b.Len() > 0 && strings.ContainsRune("-_", r) {
			b.WriteRune(r)
		}
	}
	name := strings.TrimRight(b.String(), "-_")
	if !isName(name) || name == "localhost" || name == sharedDir {
		return ""
	}
	return name
}

package node

import (
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/component/secretstores"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Loaded reports whether all components have been opened.
func (n *Node) Loaded() bool { return n.set.Load() != nil }

// StateStore returns the state store of a name.
func (n *Node) StateStore(name string) (*state.Instance, bool) {
	if s := n.set.Load(); s != nil {
		return s.StateStore(name)
	}
	return nil, false
}

// StateStores returns all state stores.
func (n *Node) StateStores() []*state.Instance {
	if s := n.set.Load(); s != nil {
		return s.StateStores()
	}
	return nil
}

// SecretStore returns the secret store of a name.
func (n *Node) SecretStore(name string) (*secretstores.Instance, bool) {
	if s := n.set.Load(); s != nil {
		return s.SecretStore(name)
	}
	return nil, false
}

// SecretStores returns all secret stores.
func (n *Node) SecretStores() []*secretstores.Instance {
	if s := n.set.Load(); s != nil {
		return s.SecretStores()
	}
	return nil
}

// ActorStore returns the store that carries actor state.
func (n *Node) ActorStore() (*state.Instance, bool) {
	if s := n.set.Load(); s != nil {
		return s.ActorStore()
	}
	return nil, false
}

// Starting lists what the start still waits for. Once empty it stays so.
func (n *Node) Starting() []api.Reason {
	switch {
	case n.ready.Load():
		var out []api.Reason
		if why := n.outside(); why != nil {
			out = append(out, *why)
		}
		return append(out, n.unopened()...)
	case n.Loaded():
		return []api.Reason{{Name: "node", Text: "the start is being completed"}}
	default:
		return []api.Reason{{Name: "components", Text: "the replicated store and the components are being opened"}}
	}
}

// unopened lists the applications whose ports were never open.
func (n *Node) unopened() (out []api.Reason) {
	for _, a := range n.apps() {
		if c := n.calls.channels[n.callee(a.ID)]; c != nil && !c.Seen() {
			out = append(out, api.Reason{Name: "application " + a.ID, Text: "it has not opened " + c.Target() + " yet"})
		}
	}
	return out
}

// OutboundStarting lists what calls into the runtime still wait for.
func (n *Node) OutboundStarting() []api.Reason {
	if n.Loaded() {
		return nil
	}
	return n.Starting()
}

// Readiness tells which groups and stores serve reads and writes at this moment.
func (n *Node) Readiness(context.Context) []api.Check {
	if !n.Loaded() {
		return nil
	}
	var checks []api.Check
	reads, writes, why := true, true, ""
	for i := range max(n.host.Partitions(), 1) { // before a sidecar knows how many there are, one says so
		c := n.groupCheck(i)
		checks = append(checks, c)
		if !c.Reads || !c.Writes {
			reads, writes, why = reads && c.Reads, writes && c.Writes, "group "+c.Name+": "+c.Reason
		}
	}
	for _, s := range n.set.Load().Statuses() {
		checks = append(checks, storeCheck(s, reads, writes, why)...)
	}
	return checks
}

// groupCheck looks at one group of the replicated store.
func (n *Node) groupCheck(id uint32) api.Check {
	c := api.Check{Kind: "group", Name: strconv.FormatUint(uint64(id), 10), Reads: true, Writes: true}
	if err := n.host.Ready(id); err != nil {
		c.Reads, c.Writes, c.Reason = n.sidecar() && n.host.Route(id).Reads, false, fault.Text(err)
		if g := n.host.Groups(); int(id) < len(g) && g[id].Trusted() == nil {
			if who := n.missingVoters(g[id].Status().Servers); who != "" {
				c.Reason += "; " + who
			}
		}
	} else if err := n.host.WritesAllowed(); err != nil {
		c.Writes, c.Reason = false, fault.Text(err)
	}
	return c
}

// storeCheck looks at one component; a store of the replicated type works as its groups do.
func storeCheck(s component.Status, reads, writes bool, why string) []api.Check {
	switch {
	case s.State == component.Ignored:
		return nil
	case s.State == component.Failed:
		return []api.Check{{Kind: "component", Name: s.Name, Reason: s.Reason}}
	case component.SameType(s.Type, TypeStateRaft):
		return []api.Check{{Kind: "store", Name: s.Name, Reads: reads, Writes: writes, Reason: why}}
	default:
		return []api.Check{{Kind: "store", Name: s.Name, Reads: true, Writes: true}}
	}
}

// Status describes the node to an operator.
func (n *Node) Status(ctx context.Context) (api.NodeStatus, error) {
	s := api.NodeStatus{Node: n.identity(), Issues: []api.Issue{}, Notes: n.notes(), Groups: []api.GroupStatus{}, Stores: []api.StoreStatus{}}
	for _, r := range n.Starting() {
		s.Issues = append(s.Issues, api.Issue{About: r.Name, Reason: r.Text})
	}
	for _, c := range n.Readiness(ctx) {
		if !c.Reads || !c.Writes {
			s.Issues = append(s.Issues, api.Issue{About: c.Kind + " " + c.Name, Reason: c.Reason})
		}
	}
	s.Ready = len(s.Issues) == 0
	s.Issues = append(s.Issues, n.credentialIssues()...) // what works now works all the same
	s.Issues = append(s.Issues, n.inputIssues()...)
	s.Issues = append(s.Issues, n.diskIssues()...)
	s.Security = n.securityStatus()
	for i, g := range n.host.Groups() {
		s.Groups = append(s.Groups, n.groupStatus(uint32(i), g))
	}
	s.Groups = append(s.Groups, n.routedGroups()...)
	s.Stores = n.storeStatuses()
	return s, nil
}

func (n *Node) identity() api.NodeIdentity {
	id := n.host.Identity()
	id.Partitions = n.host.Partitions()
	if n.sidecar() {
		id.Server = "" // it is none
	}
	return api.NodeIdentity{
		ID: id.Node, ServerID: id.Server, Cluster: n.config.Cluster.Name, ClusterID: id.Cluster, Epoch: id.Epoch, Role: string(n.config.Cluster.Role),
		Version: n.config.Version, Started: n.started.UTC(), UptimeMS: n.deps.Now().Sub(n.started).Milliseconds(),
		DataDir: n.addrs.DataDir, LogStore: string(id.Engine), Partitions: int(id.Partitions), Metrics: n.addrs.Metrics,
		Gossip: n.addrs.Gossip, Peer: n.addrs.Peer,
		Apps: n.appStatuses(),
	}
}

func (n *Node) appStatuses() []api.AppStatus {
	out := []api.AppStatus{}
	for _, a := range n.addrs.Apps {
		out = append(out, api.AppStatus{ID: a.ID, Namespace: n.config.Namespace, API: a.API, GRPC: a.GRPC})
	}
	return out
}

func (n *Node) groupStatus(id uint32, g *group.Group) api.GroupStatus {
	st, c := g.Status(), n.groupCheck(id)
	return api.GroupStatus{
		ID: uint64(id), State: st.State, Leader: placement.NodeOf(string(st.Leader)), Term: st.Term, CommitIndex: st.CommitIndex,
		AppliedIndex: st.AppliedIndex, LastLogIndex: st.LastIndex, SnapshotIndex: st.SnapshotIndex,
		Keys: st.Machine.Keys, DiskBytes: int64(st.Machine.DiskBytes), LogBytes: int64(st.LogBytes),
		ReadOnly: n.host.WritesAllowed() != nil, Reads: c.Reads, Writes: c.Writes, Reason: c.Reason,
		Servers: n.serverStatuses(id, st.Servers),
	}
}

// diskIssues tells of disks that serve, but not as they should.
func (n *Node) diskIssues() (out []api.Issue) {
	for i, g := range n.host.Groups() {
		about, st := "group "+strconv.Itoa(i), g.Status()
		if st.Damaged && st.Doubt == nil {
			out = append(out, api.Issue{About: about, Reason: "stored records are not what was applied, and no other server holds a copy: restore a backup"})
		}
		if st.SlowDisk {
			out = append(out, api.Issue{About: about, Reason: "the disk of this node is slow: half of the writes of the log take more than 200 ms"})
		}
	}
	return out
}

// serverStatuses lists a group's members; what only its leader knows is left out elsewhere.
func (n *Node) serverStatuses(id uint32, servers []raft.Server) []api.ServerStatus {
	out := []api.ServerStatus{}
	for _, s := range servers {
		one := api.ServerStatus{Node: placement.NodeOf(string(s.ID)), ServerID: string(s.ID), Voter: s.Suffrage == raft.Voter}
		if n.reconciler != nil {
			one.Lag, one.Reason = n.reconciler.about(id, string(s.ID))
		}
		if one.Reason == "" {
			one.Reason = n.missing(string(s.ID)) // no leader tells
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b api.ServerStatus) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

func (n *Node) storeStatuses() []api.StoreStatus {
	set := n.set.Load()
	if set == nil {
		return []api.StoreStatus{}
	}
	out := []api.StoreStatus{}
	for _, s := range set.Statuses() {
		if s.State == component.Ignored {
			continue
		}
		st := api.StoreStatus{Name: s.Name, Type: s.Type, Version: s.Version, Ready: s.State == component.Ready, Reason: s.Reason, Capabilities: s.Capabilities}
		if i, ok := set.StateStore(s.Name); ok {
			st.KeyPrefix, st.DefaultConsistency = i.KeyPrefix.String(), i.DefaultConsistency.String()
			st.DefaultTTLSeconds, st.MaxValueSize = int64(i.DefaultTTL.Seconds()), i.MaxValueSize
			st.ActorStore, st.Scopes = i.ActorStore, i.Scopes
		}
		out = append(out, st)
	}
	return out
}

package status

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/api/admin/schema"
	"github.com/quorate/quorate/component"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Status returns the state of the node, as the command quorate status shows it.
func (r *Reporter) Status(ctx context.Context) (schema.NodeStatus, error) {
	p := r.parts.Load()
	s := schema.NodeStatus{Node: r.identity(), Issues: []schema.Issue{}, Notes: r.notes(),
		Groups: []schema.GroupStatus{},
		Stores: []schema.StoreStatus{}}
	for _, why := range r.Starting() {
		s.Issues = append(s.Issues, schema.Issue{About: why.Name, Reason: why.Text})
	}
	for _, c := range r.Readiness(ctx) {
		if !c.Reads || !c.Writes {
			s.Issues = append(s.Issues, schema.Issue{About: c.Kind + " " + c.Name, Reason: c.Reason})
		}
	}
	s.Ready = len(s.Issues) == 0
	s.Issues = append(s.Issues, p.Security.Issues()...) // these do not affect readiness
	if in := r.inputs.Load(); in != nil {
		s.Issues = append(s.Issues, (*in).Issues()...)
	}
	s.Issues = append(s.Issues, r.diskIssues()...)
	s.Issues = append(s.Issues, p.Control.Issues()...)
	if b := r.backups.Load(); b != nil {
		s.Issues, s.Backup = append(s.Issues, (*b).Issues()...), (*b).Status()
	}
	s.Security = p.Security.Status()
	for i, g := range p.Host.Groups() {
		s.Groups = append(s.Groups, r.groupStatus(uint32(i), g))
	}
	s.Groups = append(s.Groups, r.routedGroups()...)
	s.Stores = r.storeStatuses()
	s.Disk = r.disk()
	return s, nil
}

func (r *Reporter) disk() *schema.DiskStatus {
	host := r.parts.Load().Host
	free, reserve, known := host.DiskFree()
	if !known {
		return nil
	}
	return &schema.DiskStatus{FreeBytes: int64(min(free, math.MaxInt64)),
		ReserveBytes: int64(min(reserve, math.MaxInt64)),
		Low:          host.DiskLow() != nil}
}

func (r *Reporter) identity() schema.NodeIdentity {
	p := r.parts.Load()
	id, at := p.Host.Identity(), p.Addresses
	id.Partitions = p.Host.Partitions()
	if r.opts.Sidecar {
		id.Server = "" // a sidecar is no server
	}
	return schema.NodeIdentity{
		ID: id.Node, ServerID: id.Server, Cluster: r.opts.Cluster, ClusterID: id.Cluster, Epoch: id.Epoch,
		Role:    r.opts.Role,
		Version: r.opts.Version, Started: r.started.UTC(), UptimeMS: r.opts.Now().Sub(r.started).Milliseconds(),
		DataDir: at.DataDir, LogStore: string(id.Engine), Partitions: int(id.Partitions), Metrics: at.Metrics,
		Gossip: at.Gossip, Peer: at.Peer, Apps: append([]schema.AppStatus{}, at.Apps...), Front: r.opts.Front,
	}
}

func (r *Reporter) groupStatus(id uint32, g *group.Group) schema.GroupStatus {
	p := r.parts.Load()
	st, c := g.Status(), r.groupCheck(id)
	return schema.GroupStatus{
		ID: uint64(id), State: st.State, Leader: placement.NodeOf(string(st.Leader)), Term: st.Term,
		CommitIndex:  st.CommitIndex,
		AppliedIndex: st.AppliedIndex, LastLogIndex: st.LastIndex, SnapshotIndex: st.SnapshotIndex,
		Keys: st.Machine.Keys, DiskBytes: int64(st.Machine.DiskBytes), LogBytes: int64(st.LogBytes),
		ReadOnly: p.Host.WritesAllowed(id) != nil, Reads: c.Reads, Writes: c.Writes, Reason: c.Reason,
		Servers: r.serverStatuses(id, st.Servers),
	}
}

// diskIssues returns an issue if the disk is nearly full. It also returns issues for groups with damaged records that
// no other server can replace, and for groups whose log is slow to write.
func (r *Reporter) diskIssues() (out []schema.Issue) {
	p := r.parts.Load()
	if err := p.Host.DiskLow(); err != nil {
		out = append(out, schema.Issue{About: "disk", Reason: fault.Text(err)})
	}
	for i, g := range p.Host.Groups() {
		about, st := "group "+strconv.Itoa(i), g.Status()
		if st.Damaged && st.Doubt == nil {
			out = append(out, schema.Issue{About: about,
				Reason: "stored records are not what was applied, and no other server holds a copy: restore a " +
					"backup"})
		}
		if st.SlowDisk {
			out = append(out, schema.Issue{About: about,
				Reason: "the disk of this node is slow: half of the writes of the log take more than 200 ms"})
		}
	}
	return out
}

// serverStatuses returns the status of each server of a group. Fields that only the leader knows are empty if this
// node does not lead the group.
func (r *Reporter) serverStatuses(id uint32, servers []raft.Server) []schema.ServerStatus {
	out := []schema.ServerStatus{}
	for _, s := range servers {
		one := schema.ServerStatus{Node: placement.NodeOf(string(s.ID)), ServerID: string(s.ID),
			Voter: s.Suffrage == raft.Voter}
		one.State = r.stateOf(one)
		one.Lag, one.Reason = r.parts.Load().Control.About(id, string(s.ID))
		if one.Reason == "" {
			one.Reason = r.missing(string(s.ID)) // only the leader knows the other reasons
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b schema.ServerStatus) int { return cmp.Compare(a.Node, b.Node) })
	return out
}

func (r *Reporter) storeStatuses() []schema.StoreStatus {
	out := []schema.StoreStatus{}
	for _, s := range r.opts.Components.Statuses() {
		if s.State == component.Ignored {
			continue
		}
		st := schema.StoreStatus{Name: s.Name, Type: s.Type, Version: s.Version, Ready: s.State == component.Ready,
			Reason: s.Reason, Capabilities: s.Capabilities}
		if why, down := r.outsideDown(s.Name); down {
			st.Ready, st.Reason = false, why
		}
		if i, ok := r.opts.Components.StateStore(s.Name); ok {
			st.KeyPrefix, st.DefaultConsistency = i.KeyPrefix.String(), i.DefaultConsistency.String()
			st.DefaultTTLSeconds, st.MaxValueSize = int64(i.DefaultTTL.Seconds()), i.MaxValueSize
			st.ActorStore, st.Scopes = i.ActorStore, i.Scopes
		}
		out = append(out, st)
	}
	return out
}

// routedGroups describes how a sidecar reaches each group. On a server, it returns nil.
func (r *Reporter) routedGroups() []schema.GroupStatus {
	var out []schema.GroupStatus
	if !r.opts.Sidecar {
		return nil
	}
	host := r.parts.Load().Host
	for i := range host.Partitions() {
		route, c := host.Route(i), r.groupCheck(i)
		out = append(out, schema.GroupStatus{
			ID: uint64(i), State: "routed", Leader: placement.NodeOf(string(route.Leader)), Term: route.Term,
			Nearest: placement.NodeOf(route.Nearest), RoundTripMicros: route.Trip.Microseconds(),
			Reads: c.Reads, Writes: c.Writes, Reason: c.Reason, Servers: []schema.ServerStatus{},
		})
	}
	return out
}

// notes returns an issue for each setting that differs between live nodes, and one for each group that refuses requests
// in the newest format.
func (r *Reporter) notes() []schema.Issue {
	out := []schema.Issue{}
	for i := range r.parts.Load().Host.Groups() {
		if text := r.formatBlocked(uint32(i)); text != "" { //nolint:gosec // few groups
			out = append(out, schema.Issue{About: "group " + strconv.Itoa(i), Reason: text})
		}
	}
	for _, d := range r.parts.Load().Network.Roster().Differences() {
		out = append(out, schema.Issue{About: "settings", Reason: d.String()})
	}
	return out
}

// formatBlocked returns why a group refuses requests that need the newest format. It returns "" if the group does not
// refuse them, or if this node has no replica of the group.
func (r *Reporter) formatBlocked(id uint32) string {
	groups := r.parts.Load().Host.Groups()
	if int(id) >= len(groups) {
		return ""
	}
	if err := groups[id].FormatBlocked(); err != nil {
		return "requests that need a newer format are refused: " + fault.Text(err)
	}
	return ""
}

// Members returns the nodes that gossip knows, including this node, sorted by node id.
func (r *Reporter) Members(context.Context) ([]schema.MemberStatus, error) {
	out := []schema.MemberStatus{}
	roster := r.parts.Load().Network.Roster()
	self := roster.Self().NodeID
	for _, m := range roster.Members() {
		out = append(out, schema.MemberStatus{
			Node: m.NodeID, ServerID: m.ServerID, Role: m.Role.String(), State: m.State.String(),
			Since: m.Since.UTC(),
			Peer:  m.PeerAddr, Gossip: m.Gossip.String(), ClusterID: m.ClusterID, Version: m.Version, Leads: m.Leads,
			Self: m.NodeID == self,
		})
	}
	return out, nil
}

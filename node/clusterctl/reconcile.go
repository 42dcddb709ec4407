package clusterctl

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

const (
	reconcilePause = 500 * time.Millisecond // between checks of the groups that this node leads
	progressWait   = time.Second            // timeout of a server's answer about its progress
	changeWait     = 10 * time.Second       // timeout of one change of a configuration
)

// reconciler adds servers to the groups that this node leads, and removes servers from them. Gossip provides the known
// nodes. Package placement decides which change comes next, and the reconciler applies that change.
type reconciler struct {
	parts
	voters  *voterCount
	wake    chan struct{} // starts the next round at once; capacity 1
	leaving atomic.Bool   // an operator has called Leave, and no group has refused
	mu      sync.Mutex
	views   []groupView    // by group; guarded by mu, for status
	choices []leaderChoice // by group; guarded by mu

	moving sync.Mutex // held while leadership is spread; locked before mu
}

// groupView is what a leader knows about one of its groups beyond raft's configuration.
type groupView struct {
	since  time.Time            // when this node became leader; zero = this node does not lead
	steady map[string]time.Time // server -> time since which the server has kept up
	input  placement.Input      // the last input of placement

	offsets map[string]time.Duration // server -> how far its wall clock is ahead of cluster time
}

func newReconciler(p parts, voters *voterCount) *reconciler {
	groups := len(p.host.Groups())
	return &reconciler{
		parts: p, voters: voters, wake: make(chan struct{}, 1), views: make([]groupView, groups),
		choices: make([]leaderChoice, groups),
	}
}

// run reconciles until ctx ends.
func (r *reconciler) run(ctx context.Context) {
	tick := time.NewTicker(reconcilePause)
	defer tick.Stop()
	removal, quorum := removedCheck{parts: r.parts, leaving: &r.leaving}, newQuorumWatch(r.parts)
	for {
		roster := r.net.Gossip().Roster()
		changed := roster.Changed()
		r.greet(roster)
		r.followEpoch(roster)
		r.noteNewerEpoch()
		r.round(ctx)
		removal.run(ctx)
		quorum.run()
		select {
		case <-changed:
		case <-r.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// hurry makes the next round begin at once.
func (r *reconciler) hurry() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// greet reports to the peer port which servers are alive, so that waiting requests to them are sent at once. It also
// calls Host.Meet for each live server that belongs to the cluster of this node.
func (r *reconciler) greet(roster *membership.Roster) {
	self := r.host.Identity()
	for _, m := range roster.Alive() {
		if m.ServerID != "" {
			r.net.Port().Alive(m.ServerID)
			if m.Role == membership.Server && m.State == membership.Alive && m.ClusterID == self.Cluster {
				r.host.Meet(m.ServerID)
			}
		}
	}
}

// round checks every group once.
func (r *reconciler) round(ctx context.Context) {
	r.publish() // a disk that became low counts in this round
	inputs := make([]placement.Input, len(r.views))
	led := false
	for i, g := range r.host.Groups() {
		leading := g.Leading() // only a leader's replica has every tombstone of a removed server
		var prev uint64
		inputs[i], prev = r.look(ctx, uint32(i), g)
		if !leading || !g.Leading() {
			continue
		}
		led = true
		for _, c := range placement.Plan(inputs[i]) {
			if r.apply(ctx, uint32(i), g, c, prev) {
				r.hurry() // the next change need not wait for the pause
			}
		}
	}
	if led { // only leaders do this, which is enough
		r.dismiss()
	}
	r.spread(ctx, inputs)
	r.publish()
}

// dismiss announces by gossip that a failed server has left, if it was removed from every group. Without this
// announcement, nodes would list the server as failed for hours, and alerts would name it. Failed servers that still
// belong to a group stay in the list, because the group may need their votes.
func (r *reconciler) dismiss() {
	for _, m := range r.net.Gossip().Roster().Servers() {
		if m.State == membership.Failed && r.host.HasLeft(m.ServerID) {
			r.net.Gossip().Dismiss(m.ServerID)
		}
	}
}

// look collects the input for placement decisions about a group, for example its voters, the known nodes and the
// limits. If this node leads the group, it also queries each other server for its lag and its clock. The result prev is
// the log index of the configuration that the input describes.
func (r *reconciler) look(ctx context.Context, id uint32, g *group.Group) (in placement.Input, prev uint64) {
	servers, prev := g.Servers()
	now := r.now()
	in = placement.Input{
		Group: id, Voters: r.voters.wanted(servers, r.opts.Voters), Leader: string(g.Leader()), Now: now,
		Members: members(r.net.Gossip().Roster()), Removed: r.host.RemovedServers(id), Limits: r.opts.Limits,
	}
	r.mu.Lock()
	v := &r.views[id]
	leading := g.Leading()
	r.noteLeading(id, leading)
	switch {
	case !leading:
		*v = groupView{}
	case v.since.IsZero():
		*v = groupView{since: now, steady: map[string]time.Time{}}
	}
	in.LeaderSince, in.Watching = v.since, v.since
	r.mu.Unlock()
	lags, offsets := map[string]uint64{}, map[string]time.Duration{}
	if g.Leading() {
		lags, offsets = r.lags(ctx, id, g, servers)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v.offsets = offsets
	limit := in.Limits.WithDefaults().MaxLag
	for _, s := range servers {
		lag, known := lags[string(s.ID)]
		one := placement.Server{ID: string(s.ID), Voter: s.Suffrage == raft.Voter, LagKnown: known, Lag: lag}
		if known && v.steady != nil {
			v.steady[one.ID] = placement.Steady(v.steady[one.ID], lag, limit, now)
			one.SteadySince = v.steady[one.ID]
		} else if v.steady != nil {
			delete(v.steady, one.ID)
		}
		in.Servers = append(in.Servers, one)
	}
	v.input = in
	return in, prev
}

// lags queries the servers of a group concurrently, and returns two maps by server id. They have the number of log
// entries by which a server is behind, and the time by which its clock is ahead of cluster time. A server that does not
// answer is in neither map.
func (r *reconciler) lags(ctx context.Context, id uint32, g *group.Group, servers []raft.Server) (
	lags map[string]uint64, offsets map[string]time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, progressWait)
	defer cancel()
	self := r.host.Identity().Server
	last := g.LastIndex()
	var mu sync.Mutex
	lags = map[string]uint64{self: 0}
	offsets = map[string]time.Duration{self: raftfsm.Offset(g, r.host.Wall())}
	var wg sync.WaitGroup
	for _, s := range servers {
		if string(s.ID) == self {
			continue
		}
		wg.Go(func() {
			sent := r.now()
			p, err := r.host.Progress(ctx, string(s.ID), id)
			if err != nil {
				return // lag and offset stay unknown, and placement considers this
			}
			mu.Lock()
			defer mu.Unlock()
			lags[string(s.ID)] = last - min(p.Applied, last)
			offsets[string(s.ID)] = raftfsm.Offset(g, p.Wall) + r.now().Sub(sent)/2
		})
	}
	wg.Wait()
	return lags, offsets
}

func members(r *membership.Roster) []placement.Member {
	var out []placement.Member
	for _, m := range r.Members() {
		one := placement.Member{Node: m.NodeID, Server: m.ServerID, Since: m.Since, SlowDisk: m.DiskSlow,
			LowDisk: m.DiskLow}
		switch m.State {
		case membership.Alive:
			one.State = placement.Alive
		case membership.Left:
			one.State = placement.Left
		default:
			one.State = placement.Failed
		}
		out = append(out, one)
	}
	return out
}

// apply applies one change to the configuration of a group, and reports whether the change has succeeded. The change
// was planned for the configuration at the log index prev. If the group has a newer configuration, Raft refuses the
// change. For a leadership transfer, prev is ignored.
func (r *reconciler) apply(ctx context.Context, id uint32, g *group.Group, c placement.Change,
	prev uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	server := raft.ServerID(c.Server)
	var err error
	switch c.Op {
	case placement.Add:
		err = g.AddNonvoter(ctx, server, prev)
	case placement.Promote:
		err = g.Promote(ctx, server, prev)
	case placement.Demote:
		err = g.Demote(ctx, server, prev)
	case placement.Remove:
		err = g.Remove(ctx, server, prev)
	case placement.Transfer:
		err = g.Transfer(ctx, server)
	}
	if err != nil {
		if ctx.Err() == nil && !fault.Is(err, fault.NotLeader) {
			r.log.Warn("a change of the group failed; it is planned again", "group", id, "change",
				c.Op.String(), "node", c.Node, "error", err)
		}
		return false
	}
	r.log.Info("group changed", "group", id, "change", c.Op.String(), "node", c.Node, "reason", c.Reason)
	return true
}

// spread transfers leadership of some groups if this node leads more than its share. The parameter inputs has the
// placement input of each group, by group id.
func (r *reconciler) spread(ctx context.Context, inputs []placement.Input) {
	self := r.host.Identity().Server
	r.moving.Lock()
	defer r.moving.Unlock()
	for i := range inputs {
		inputs[i].Held = r.isChosen(i)
	}
	for _, m := range placement.Leaders(inputs...) {
		if m.From != self {
			continue
		}
		r.apply(ctx, m.Group, r.host.Groups()[m.Group],
			placement.Change{Op: placement.Transfer, Server: m.To, Node: placement.NodeOf(m.To), Reason: m.Reason}, 0)
	}
}

// heir returns the voter that is best suited to lead a group next. It returns "" if no other voter is known to be
// nearly up to date.
func (r *reconciler) heir(id uint32) raft.ServerID {
	r.mu.Lock()
	defer r.mu.Unlock()
	return raft.ServerID(placement.Heir(r.views[id].input))
}

// publish announces by gossip how many groups this node leads, the log format of its data, and whether its disk is
// nearly full.
func (r *reconciler) publish() {
	leads := uint32(0)
	for _, g := range r.host.Groups() {
		if g.Leading() {
			leads++
		}
	}
	format, low := r.host.Identity().Format, r.host.DiskLow() != nil
	// the update fails only while this node leaves gossip
	_ = r.net.Gossip().UpdateFacts(func(f *membership.Facts) { f.Leads, f.Format, f.DiskLow = leads, format, low })
}

// about implements Controller.About.
func (r *reconciler) about(id uint32, server string) (lag *uint64, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	v := r.views[id]
	if v.since.IsZero() {
		return nil, ""
	}
	for _, s := range v.input.Servers {
		if s.ID == server && s.LagKnown {
			lag = &s.Lag
		}
	}
	for _, verdict := range placement.Explain(v.input) {
		if verdict.Server == server {
			reason = verdict.Reason
		}
	}
	return lag, reason
}

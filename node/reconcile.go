package node

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

const (
	reconcilePause = 500 * time.Millisecond // between looks at groups this node leads
	progressWait   = time.Second            // for a server's answer how far it is
	changeWait     = 10 * time.Second       // for one change of a configuration
)

// reconciler brings the members of the groups this node leads in line with the nodes that
// gossip knows: placement decides, one change at a time, this carries out.
type reconciler struct {
	node  *Node
	now   chan struct{} // one slot: do not wait for the next tick
	mu    sync.Mutex
	views []groupView // by group; guarded by mu, for status
	holds []hold      // by group; guarded by mu

	moving sync.Mutex // held while leadership is spread; before mu
}

// groupView is what a leader knows about one of its groups beyond raft's configuration.
type groupView struct {
	since  time.Time            // when this node began to lead; zero = it does not
	steady map[string]time.Time // server -> since when it has kept up
	input  placement.Input      // the last one that was decided on
	prev   uint64               // index of the configuration it shows
}

func newReconciler(n *Node) *reconciler {
	return &reconciler{node: n, now: make(chan struct{}, 1), views: make([]groupView, len(n.host.Groups())), holds: make([]hold, len(n.host.Groups()))}
}

// run reconciles until ctx ends.
func (r *reconciler) run(ctx context.Context) {
	tick := time.NewTicker(reconcilePause)
	defer tick.Stop()
	own := standing{node: r.node}
	for {
		roster := r.node.gossip.Load().Roster()
		changed := roster.Changed()
		r.greet(roster)
		r.node.followEpoch(roster)
		r.round(ctx)
		own.check(ctx)
		select {
		case <-changed:
		case <-r.now:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// hurry makes the next round begin at once.
func (r *reconciler) hurry() {
	select {
	case r.now <- struct{}{}:
	default:
	}
}

// greet tells the peer port who is alive, so that what waits for a server that was down
// goes on at once.
func (r *reconciler) greet(roster *membership.Roster) {
	for _, m := range roster.Alive() {
		if m.ServerID != "" {
			r.node.port.Alive(m.ServerID)
		}
	}
}

// round looks at every group once.
func (r *reconciler) round(ctx context.Context) {
	inputs := make([]placement.Input, len(r.views))
	for i, g := range r.node.host.Groups() {
		leading := g.Leading() // only then does the replica here show every mark of a removed server
		inputs[i] = r.look(ctx, uint32(i), g)
		if !leading || !g.Leading() {
			continue
		}
		for _, c := range placement.Plan(inputs[i]) {
			r.apply(ctx, uint32(i), g, c, r.prev(i))
		}
	}
	r.spread(ctx, inputs)
	r.tell()
}

// look gathers what is known about a group. Only its leader asks how far the others are.
func (r *reconciler) look(ctx context.Context, id uint32, g *group.Group) placement.Input {
	servers, prev := g.Servers()
	now := r.node.deps.Now()
	in := placement.Input{
		Group: id, Voters: r.node.config.Cluster.Voters, Leader: string(g.Leader()), Now: now,
		Members: members(r.node.gossip.Load().Roster()), Removed: r.node.host.RemovedServers(id), Limits: r.node.config.Cluster.Limits,
	}
	r.mu.Lock()
	v := &r.views[id]
	leading := g.Leading()
	r.led(id, leading)
	switch {
	case !leading:
		*v = groupView{}
	case v.since.IsZero():
		*v = groupView{since: now, steady: map[string]time.Time{}}
	}
	in.LeaderSince, in.Watching = v.since, v.since
	r.mu.Unlock()
	lags := map[string]uint64{}
	if g.Leading() {
		lags = r.lags(ctx, id, g, servers)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
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
	v.input, v.prev = in, prev
	return in
}

// lags asks all servers of a group at once how many entries they are behind.
func (r *reconciler) lags(ctx context.Context, id uint32, g *group.Group, servers []raft.Server) map[string]uint64 {
	ctx, cancel := context.WithTimeout(ctx, progressWait)
	defer cancel()
	self := r.node.host.Identity().Server
	last := g.LastIndex()
	var mu sync.Mutex
	out := map[string]uint64{self: 0}
	var wg sync.WaitGroup
	for _, s := range servers {
		if string(s.ID) == self {
			continue
		}
		wg.Go(func() {
			applied, _, err := r.node.host.Progress(ctx, string(s.ID), id)
			if err != nil {
				return // not known, which placement takes into account
			}
			mu.Lock()
			defer mu.Unlock()
			out[string(s.ID)] = last - min(applied, last)
		})
	}
	wg.Wait()
	return out
}

func members(r *membership.Roster) []placement.Member {
	var out []placement.Member
	for _, m := range r.Members() {
		one := placement.Member{Node: m.NodeID, Server: m.ServerID, Since: m.Since, SlowDisk: m.DiskSlow}
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

// prev is the configuration that the decision about a group rests on: a change is refused
// if there is a newer one.
func (r *reconciler) prev(i int) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.views[i].prev
}

// apply carries one change out.
func (r *reconciler) apply(ctx context.Context, id uint32, g *group.Group, c placement.Change, prev uint64) {
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
			r.node.log.Warn("a change of the group did not succeed; it is planned again", "group", id, "change", c.Op.String(), "node", c.Node, "error", err)
		}
		return
	}
	r.node.log.Info("group changed", "group", id, "change", c.Op.String(), "node", c.Node, "reason", c.Reason)
}

// spread hands over what this node leads too much of.
func (r *reconciler) spread(ctx context.Context, inputs []placement.Input) {
	self := r.node.host.Identity().Server
	r.moving.Lock()
	defer r.moving.Unlock()
	for i := range inputs {
		inputs[i].Held = r.held(i)
	}
	for _, m := range placement.Leaders(inputs...) {
		if m.From != self {
			continue
		}
		r.apply(ctx, m.Group, r.node.host.Groups()[m.Group], placement.Change{Op: placement.Transfer, Server: m.To, Node: placement.NodeOf(m.To), Reason: m.Reason}, 0)
	}
}

// tell lets the others know how many groups this node leads, and what its data needs.
func (r *reconciler) tell() {
	leads := uint32(0)
	for _, g := range r.node.host.Groups() {
		if g.Leading() {
			leads++
		}
	}
	format := r.node.host.Identity().Format
	_ = r.node.gossip.Load().UpdateFacts(func(f *membership.Facts) { f.Leads, f.Format = leads, format }) // refused only when leaving
}

// about says how far a server of a group is behind, and why it votes or does not, where
// this node leads the group.
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

package clusterctl

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/peer"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/placement"
)

// Network is how a Controller reaches the other nodes.
type Network interface {
	// Gossip returns the gossip of this node, which is open.
	Gossip() *membership.Gossip
	// Port returns the port for calls between nodes.
	Port() *peer.Port
	// Introduce sets the identity of this node on new connections.
	Introduce(id datadir.Identity)
	// LiveServers returns the ids of the servers of the cluster that gossip considers alive.
	LiveServers() []string
}

// Stopper stops the node.
type Stopper interface{ Stop() }

// Options are the dependencies and settings of a Controller. Host, Network, Stopper, Logger, Registerer and Now are
// required.
type Options struct {
	Host    *raftfsm.Host
	Network Network
	Stopper Stopper

	Name            string   // of the cluster
	Sidecar         bool     // the node holds no data
	Join            []string // nodes to join, as the user named them; empty = the node forms its own cluster
	Shared          bool     // the node finds other nodes of its user by their notes
	BootstrapExpect int      // servers that form a new cluster; 0 = never form one
	Voters          int      // number of voters of each group, unless the cluster has recorded another number
	Limits          placement.Limits
	DataDir         string
	JoinHint        string // added to the reason why no cluster was found; may be empty

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
}

// parts are shared by the Controller and its loops.
type parts struct {
	opts Options
	host *raftfsm.Host
	net  Network
	log  *slog.Logger
	now  func() time.Time
}

// Controller finds or forms the cluster. It also adds servers to Raft groups and removes servers from them. It is safe
// for concurrent use.
type Controller struct {
	parts
	reconciler *reconciler
	voters     *voterCount
	waitingFor atomic.Pointer[string] // why this node belongs to no cluster yet
	inside     atomic.Bool            // the node has been a working member of a cluster
}

// New returns a Controller and registers its metrics. Run starts it.
func New(o Options) *Controller {
	p := parts{opts: o, host: o.Host, net: o.Network, log: o.Logger, now: o.Now}
	voters := newVoterCount(p)
	ctl := &Controller{parts: p, reconciler: newReconciler(p, voters), voters: voters}
	o.Registerer.MustRegister(newLagCollector(ctl.reconciler))
	return ctl
}

// Methods returns the peer methods that the Controller serves.
func (ctl *Controller) Methods() []peer.Method {
	return []peer.Method{
		{Name: methodPromise, Join: true, MaxRequest: 1 << 10, Handle: ctl.servePromise},
		{Name: methodRemove, MaxRequest: 4 << 10, Handle: ctl.serveRemove},
		{Name: methodRemovedCheck, MaxRequest: 1 << 10, Handle: ctl.serveRemovedCheck},
		{Name: methodLeaderChoice, MaxRequest: 1 << 10, Handle: ctl.serveLeaderChoice},
	}
}

// Run finds or forms the cluster. After that, it manages the servers of the groups that this node leads. Run returns
// when ctx ends.
func (ctl *Controller) Run(ctx context.Context) {
	ctl.findCluster(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { ctl.voters.run(ctx) })
	ctl.reconciler.run(ctx)
	wg.Wait()
}

// HandOver transfers the leadership of every group that this node leads. Call it before the node stops, because the
// groups would otherwise have no leader until the election timeout. A group is skipped if it has no other voters, or if
// all of them have announced their stop. Failures are only logged.
func (ctl *Controller) HandOver(ctx context.Context) {
	for i, g := range ctl.host.Groups() {
		s := g.Status()
		if !g.Leading() || s.Voters() < 2 {
			continue
		}
		if ctl.othersLeft(g) {
			ctl.log.Info("leadership is not handed over, because all other voters have stopped", "group", i)
			continue
		}
		if err := g.Transfer(ctx, ctl.reconciler.heir(uint32(i))); err != nil { //nolint:gosec // few
			ctl.log.Info("leadership could not be handed over; the others elect a leader after a time-out", "group",
				i, "error", err)
		}
	}
}

// othersLeft reports whether every other voter of a group has announced that it stops.
func (ctl *Controller) othersLeft(g *group.Group) bool {
	roster, self := ctl.net.Gossip().Roster(), ctl.host.Identity().Server
	servers, _ := g.Servers()
	for _, s := range servers {
		m, known := roster.Server(string(s.ID))
		if s.Suffrage == raft.Voter && string(s.ID) != self && (!known || m.State != membership.Left) {
			return false
		}
	}
	return true
}

// About describes a server of a group that this node leads. It returns how many log entries the server is behind the
// leader, or nil if this is unknown. It also returns the reason why the server is a voter or a non-voter. If this node
// does not lead the group, the results are nil and "".
func (ctl *Controller) About(group uint32, server string) (lag *uint64, reason string) {
	return ctl.reconciler.about(group, server)
}

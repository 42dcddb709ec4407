package node

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/listen"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/membership"
)

// How long a server without a cluster looks for one that can tell it how many partitions to
// make. One that may form a cluster itself tries every seed once, for there may be nobody
// yet. One that looked in vain makes one partition, and looks again when it is started.
const (
	countWait    = 10 * time.Second
	hearWait     = 500 * time.Millisecond
	farewellWait = time.Second
)

// countPartitions asks the members of the cluster that this node is to join. It goes round
// the gossip once as a node without data, which any cluster takes, and takes its leave: the
// number has to be known before there is anything that a server could tell about itself.
func (n *Node) countPartitions(ctx context.Context, node string) uint32 {
	c := n.config.Cluster
	if !c.joining() || n.place.notes != "" {
		return 0
	}
	wait := countWait
	if c.Fast {
		wait /= 5
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	count, err := n.askPartitions(ctx, node)
	if err != nil { // whatever it is, the start meets it again, and says so
		n.log.Debug("the cluster to join was not asked for its number of partitions", "error", fault.Text(err))
	}
	return count
}

func (n *Node) askPartitions(ctx context.Context, node string) (count uint32, err error) {
	o, err := n.gossipOptions(ctx)
	if err != nil {
		return 0, err
	}
	if n.credentials != nil {
		if _, err := n.credentials.keeper.Identify(trust.Identity{Node: node, Server: node + ".new"}); err != nil {
			return 0, err
		}
	}
	n.secureGossip(&o)
	o.Logger, o.Registerer = slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	o.Facts = membership.Facts{
		NodeID: node, Role: membership.Sidecar, Version: n.config.Version, Formats: formats(),
		PeerAddr: netip.AddrPortFrom(o.Advertise.Addr(), uint16(listen.Port(n.peerListeners[0]))).String(),
	}
	g, err := membership.Open(ctx, o)
	if err != nil {
		return 0, err
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellWait)
		defer cancel()
		_ = g.Leave(bye) // whoever does not hear it meets this node again right away
		_ = g.Close()
	}()
	patience, cancel := context.WithCancel(ctx)
	defer cancel()
	if n.config.Cluster.BootstrapExpect > 0 {
		select {
		case <-g.Tried():
			cancel()
		case <-ctx.Done():
		}
	}
	if err := g.Joined(patience); err != nil {
		return 0, err
	}
	return heardPartitions(ctx, g), nil
}

// heardPartitions waits a moment for what the first exchange has brought to be taken in.
func heardPartitions(ctx context.Context, g *membership.Gossip) uint32 {
	ctx, cancel := context.WithTimeout(ctx, hearWait)
	defer cancel()
	for {
		r := g.Roster()
		if n := partitionsOf(r); n != 0 {
			return n
		}
		select {
		case <-r.Changed():
		case <-ctx.Done():
			return 0
		}
	}
}

// partitionsOf is how many the cluster has that somebody in r belongs to; 0 if nobody does.
func partitionsOf(r *membership.Roster) uint32 {
	for _, m := range r.Members() {
		if m.Role == membership.Server && m.ClusterID != "" && m.Partitions != 0 {
			return m.Partitions
		}
	}
	return 0
}

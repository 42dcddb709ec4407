package network

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/trust"
	"github.com/quorate/quorate/membership"
	"github.com/quorate/quorate/raftfsm/command"
)

// The time limits of CountPartitions. countWait limits the whole call. hearWait limits the wait for the first gossip
// exchange after the node has joined. farewellWait limits the time for leaving gossip.
const (
	countWait    = 10 * time.Second
	hearWait     = 500 * time.Millisecond
	farewellWait = time.Second
	countLate    = 10 // CountPartitions logs that it waits after countWait/countLate
)

// CountPartitions returns the number of partitions of the cluster to join, or 0 if the number is unknown. The parameter
// node is the id of this node. Call CountPartitions before OpenGossip.
//
// A server needs this number before it has groups and an identity of its own. Therefore CountPartitions joins gossip as
// a node without data, and leaves it again. If the server may form a new cluster, CountPartitions tries each seed only
// once.
func (n *Network) CountPartitions(ctx context.Context, node string) uint32 {
	if len(n.opts.Join) == 0 || n.opts.Notes != "" {
		return 0
	}
	wait, hear := countWait, hearWait
	if n.opts.Fast {
		wait, hear = wait/5, hear/5
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	late := time.AfterFunc(wait/countLate, func() {
		n.opts.Logger.Info("the start waits for a node of the cluster, for its number of partitions", "join",
			strings.Join(n.opts.Join, ","), "at_most", wait, "hint", "check the addresses and the gossip ports; a "+
				"server with --partitions does not wait")
	})
	defer late.Stop()
	count, err := n.askPartitions(ctx, node, hear)
	if err != nil { // OpenGossip will fail with the same error and report it
		n.opts.Logger.Debug("the number of partitions of the cluster to join is unknown", "error",
			fault.Text(err))
	}
	return count
}

func (n *Network) askPartitions(ctx context.Context, node string, hear time.Duration) (count uint32, err error) {
	o, err := n.gossipOptions(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := n.opts.Credentials.Identify(trust.Identity{Node: node, Server: node + ".new"}); err != nil {
		return 0, err
	}
	n.opts.Credentials.SecureGossip(&o)
	o.Logger, o.Registerer = slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	o.Facts = membership.Facts{
		NodeID: node, Role: membership.Sidecar, Version: n.opts.Version, NewestFormat: command.Version,
		PeerAddr: n.peerAddr(o.Advertise.Addr()),
	}
	g, err := membership.Open(ctx, o)
	if err != nil {
		return 0, err
	}
	defer func() {
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellWait)
		defer cancel()
		_ = g.Leave(bye) // an error is harmless, because this node joins again at once
		_ = g.Close()
	}()
	patience, cancel := context.WithCancel(ctx)
	defer cancel()
	if n.opts.BootstrapExpect > 0 {
		select {
		case <-g.Tried():
			cancel()
		case <-ctx.Done():
		}
	}
	if err := g.Joined(patience); err != nil {
		return 0, err
	}
	return heardPartitions(ctx, g, hear), nil
}

// heardPartitions waits until gossip knows the number of partitions, and returns this number. It returns 0 if the
// number is still unknown after the given time.
func heardPartitions(ctx context.Context, g *membership.Gossip, wait time.Duration) uint32 {
	ctx, cancel := context.WithTimeout(ctx, wait)
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

// partitionsOf returns the number of partitions of the cluster, as a server in r announces it. It returns 0 if no
// server in r belongs to a cluster.
func partitionsOf(r *membership.Roster) uint32 {
	for _, m := range r.Members() {
		if m.Role == membership.Server && m.ClusterID != "" && m.Partitions != 0 {
			return m.Partitions
		}
	}
	return 0
}

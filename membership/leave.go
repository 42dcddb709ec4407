package membership

import (
	"context"
	"log/slog"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/quorate/quorate/internal/fault"
)

// leaveTimeout bounds Leave when its ctx has no deadline.
const leaveTimeout = 5 * time.Second

// Leave announces that this node leaves, so that other members show it as left at once, instead of as failed after a
// while. Call Close afterwards. Leave is idempotent.
//
// Leave returns nil when the announcement has been sent, and fault.Timeout at the deadline of ctx. The default deadline
// is 5 s. Cancelling ctx has no effect.
func (g *Gossip) Leave(ctx context.Context) error {
	g.ending <- struct{}{}
	defer func() { <-g.ending }()
	if g.left || g.closed {
		return nil
	}
	g.left = true
	g.ended.Store(true)
	g.cancel()
	g.sayFarewell()
	timeout := leaveTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = max(time.Until(deadline), time.Millisecond)
	}
	if err := g.list.Load().Leave(timeout); err != nil {
		return &fault.Error{Code: fault.Timeout, Op: "membership.Leave",
			Msg: "left, but some members may show this node as failed", Err: err}
	}
	return nil
}

// sayFarewell announces to every member that this node leaves. Packets may be lost, so gossip repeats the
// announcement.
func (g *Gossip) sayFarewell() {
	msg := append([]byte{0}, g.farewells.say(g.table.self)...)
	for _, m := range g.Roster().Alive() {
		if m.Name() == g.table.self {
			continue
		}
		to := &memberlist.Node{Name: m.Name(), Addr: m.Gossip.Addr().AsSlice(), Port: m.Gossip.Port()}
		if err := g.list.Load().SendBestEffort(to, msg); err != nil {
			g.opts.Logger.Debug("the announcement that this node leaves could not be sent", "node", m.NodeID, "error",
				err)
		}
	}
}

// Dismiss announces to all members that a failed server has left, so that they no longer show it as failed. The server
// must have been removed from the cluster. Members keep showing its present process as left, even if it can be reached
// again.
func (g *Gossip) Dismiss(serverID string) {
	if m, ok := g.Roster().Server(serverID); ok && m.State == Failed {
		g.farewells.say(m.Name())
	}
}

// Close stops gossiping, and waits for the goroutines and connections of this package. If Leave was not called before,
// other members will show this node as failed. Close is idempotent.
func (g *Gossip) Close() error {
	g.ending <- struct{}{}
	defer func() { <-g.ending }()
	if g.closed {
		return nil
	}
	g.closed = true
	g.ended.Store(true)
	g.cancel()
	err := g.list.Load().Shutdown()
	g.loops.Wait()
	unregister(g.opts.Registerer, g.metrics.collectors())
	return fault.Wrap(err, "membership.Close", "closing gossip")
}

// pruneInterval is the interval at which watch deletes members that ended long ago.
const pruneInterval = time.Minute

// watch logs changes of members, and deletes members that ended long ago. It returns when ctx ends.
func (g *Gossip) watch(ctx context.Context) {
	tick := time.NewTicker(pruneInterval)
	defer tick.Stop()
	last := &Roster{}
	for {
		r := g.Roster()
		r.log(last, g.opts.Logger)
		last = r
		select {
		case <-r.Changed():
		case <-tick.C:
			g.table.prune()
		case <-ctx.Done():
			return
		}
	}
}

// log writes a log record for each member that differs between old, the previous roster, and r.
func (r *Roster) log(old *Roster, log *slog.Logger) {
	for _, m := range r.members {
		was, known := old.Node(m.NodeID)
		same := known && was.State == m.State && was.BootID == m.BootID
		if m.NodeID == r.self || same || !known && m.State == Left {
			continue
		}
		args := []any{"node", m.NodeID, "role", m.Role.String(), "gossip", m.Gossip.String(), "peer", m.PeerAddr,
			"version", m.Version}
		switch {
		case m.State == Failed:
			log.Warn("member failed: it stopped answering", args...)
		case m.State == Left:
			log.Info("member left", args...)
		case known && was.BootID != m.BootID && was.Role == m.Role: // a new server joins without data first
			log.Info("member is back after a restart", args...)
		default:
			log.Info("member is alive", args...)
		}
	}
}

package membership

import (
	"context"
	"net"
	"time"
)

// If two incarnations of one node id seem to be alive, pings decide. Usually the earlier incarnation has ended,
// memberlist has not noticed that yet, and the later one is the restart of the node. If the earlier one still answers,
// the later one is a duplicate. A ping names the gossip name with the boot id, so no other incarnation answers the
// ping. Both sides of a join ping before they merge their members, so most duplicates are refused there. But pings and
// their answers also carry gossip, so a refused incarnation may become known. The roster does not show a refused
// incarnation while the earlier one answers.

// pings is how many pings a node sends to an incarnation before the incarnation counts as not answering. One ping is
// too few, because packets may be lost.
const pings = 3

// answers reports whether an incarnation answers a ping.
func (g *Gossip) answers(m *Member) bool {
	if m.Name() == g.table.self && m.Gossip == g.Addr() {
		return true
	}
	list := g.list.Load() // nil while memberlist starts; the caller tries again later
	for i := 0; i < pings && list != nil; i++ {
		if _, err := list.Ping(m.Name(), net.UDPAddrFromAddrPort(m.Gossip)); err == nil {
			return true
		}
	}
	return false
}

// holds reports whether m, the earlier of two incarnations of a node, still answers pings. If m does not answer, holds
// records m as superseded, so that the roster can show the later incarnation instead.
func (g *Gossip) holds(m *Member) bool {
	if g.answers(m) {
		return true
	}
	g.table.supersede(m.Name(), true)
	return false
}

// yieldAfter is how long this node tolerates an older node with the same node id, in probe intervals. If the older node
// still answers after that time, this node stops.
const yieldAfter = 100

// resolveDuplicates calls settle while the table has duplicate node ids to resolve, at most once per probe interval. It
// returns when ctx ends.
func (g *Gossip) resolveDuplicates(ctx context.Context) {
	since := map[string]time.Time{} // when a duplicate of this node was first seen
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.table.contests:
		}
		g.settle(since)
		pause(ctx, g.opts.Timing.ProbeInterval)
		g.table.wakeIfUnsettled()
	}
}

// settle pings the incarnations that share a node id. A superseded incarnation that answers is no longer superseded. If
// two incarnations with the same node id answer, settle records a refusal, and may stop this node. firstSeen has the
// times at which duplicates of this node were first seen.
func (g *Gossip) settle(firstSeen map[string]time.Time) {
	for _, m := range g.table.silenced() {
		if g.answers(&m) {
			g.table.supersede(m.Name(), false)
		}
	}
	for _, d := range g.table.disputes() {
		if r := g.firstAnswering([]overlap{d}); r != nil {
			_ = g.refused.note(r)
			g.giveWay(&d, firstSeen, r.err)
		}
	}
}

// giveWay stops this node if an older incarnation of its node id still answers after yieldAfter probe intervals. To
// stop the node, giveWay sends err to the channel that Duplicate returns. since has the times at which duplicates of
// this node were first seen.
func (g *Gossip) giveWay(d *overlap, since map[string]time.Time, err error) {
	if d.a.Name() != g.table.self {
		return
	}
	first, known := since[d.b.Name()]
	if !known {
		first = time.Now()
		since[d.b.Name()] = first
	}
	if d.b.BootID < d.a.BootID && time.Since(first) >= yieldAfter*g.opts.Timing.ProbeInterval {
		select {
		case g.duplicate <- err:
		default:
		}
	}
}

package membership

import (
	"context"
	"net"
	"time"
)

// The referee decides which of two lives of one node id is the node. As a rule the first is
// dead, memberlist has not noticed yet, and the second is its restart; if the first still
// answers, the second is a duplicate. A life is asked by a ping that carries its gossip name,
// boot id included, so nobody else can answer for it, at whatever address.
//
// Joining asks before anything is merged, and ends most duplicates there. But news also
// rides on pings and their answers, so a life that was refused may become known all the
// same; it stays hidden as long as the first one answers.

// pings is how often a life is asked before it is taken for gone; packets get lost.
const pings = 3

// answers asks a life whether it runs.
func (g *Gossip) answers(m *Member) bool {
	if m.Name() == g.table.self && m.Gossip == g.Addr() {
		return true
	}
	list := g.list.Load() // nil for the moment in which memberlist starts: the referee asks again
	for i := 0; i < pings && list != nil; i++ {
		if _, err := list.Ping(m.Name(), net.UDPAddrFromAddrPort(m.Gossip)); err == nil {
			return true
		}
	}
	return false
}

// holds asks the life that came first; one that is silent gives way at once.
func (g *Gossip) holds(m *Member) bool {
	if g.answers(m) {
		return true
	}
	g.table.supersede(m.Name(), true)
	return false
}

// yieldAfter is for how many probe intervals a duplicate of this node must go on answering
// before this node gives way to it. A duplicate that joins is refused long before.
const yieldAfter = 100

// referee settles disputes until ctx ends.
func (g *Gossip) referee(ctx context.Context) {
	since := map[string]time.Time{} // when a rival of this node was first heard
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

// settle asks once around: those that were silent, which may have been cut off for a moment
// only, and both sides of every dispute.
func (g *Gossip) settle(since map[string]time.Time) {
	for _, m := range g.table.silenced() {
		if g.answers(&m) {
			g.table.supersede(m.Name(), false)
		}
	}
	for _, d := range g.table.disputes() {
		if r := g.firstAnswering([]overlap{d}); r != nil {
			_ = g.refused.note(r)
			g.giveWay(&d, since, r.err)
		}
	}
}

// giveWay ends this node if another life of its id is the older one and does not go away.
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

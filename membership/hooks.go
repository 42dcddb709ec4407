package membership

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

// hooks is what memberlist calls. NotifyAlive, NotifyJoin, NotifyUpdate, NotifyLeave and
// NotifyConflict come while it holds its lock on all nodes: they only touch the table.
type hooks struct {
	*mux
	gossip *Gossip
}

// NodeMeta implements memberlist.Delegate. The facts fit the limit: Open and UpdateFacts see to it.
func (h hooks) NodeMeta(int) []byte { return *h.gossip.meta.Load() }

// NotifyAlive implements memberlist.AliveDelegate: who is refused is never a member.
func (h hooks) NotifyAlive(n *memberlist.Node) error {
	t := h.gossip.table
	if n.Name == t.self || t.knows(n.Name, addrPort(n), n.Meta) {
		return nil
	}
	m, r := memberOf(n)
	if r == nil {
		r = agree(t.roster().Alive(), []Member{m})
	}
	return h.gossip.refused.note(r)
}

// NotifyJoin implements memberlist.EventDelegate.
func (h hooks) NotifyJoin(n *memberlist.Node) { h.NotifyUpdate(n) }

// NotifyUpdate implements memberlist.EventDelegate. NotifyAlive has read the facts before.
func (h hooks) NotifyUpdate(n *memberlist.Node) {
	if f, err := decodeFacts(n.Name, n.Meta); err == nil {
		h.gossip.table.alive(f, addrPort(n), n.Meta)
	}
}

// NotifyLeave implements memberlist.EventDelegate. It comes for the failed and for those that
// left alike, and memberlist does not tell which; farewells do.
func (h hooks) NotifyLeave(n *memberlist.Node) { h.gossip.table.dead(n.Name) }

// NotifyConflict implements memberlist.ConflictDelegate: one name at two addresses is one
// process twice, as after a copy of a virtual machine with its memory.
func (h hooks) NotifyConflict(existing, other *memberlist.Node) {
	a, ra := memberOf(existing)
	b, rb := memberOf(other)
	if ra == nil && rb == nil {
		_ = h.gossip.refused.note((&overlap{a, b}).refusal())
	}
}

// NotifyMerge implements memberlist.MergeDelegate: it is asked on both sides of every join,
// without a lock, before anything of the other side is taken in.
func (h hooks) NotifyMerge(nodes []*memberlist.Node) error {
	g := h.gossip
	var peers []netip.AddrPort
	var others []Member
	var found *refusal
	for _, n := range nodes {
		peers = append(peers, addrPort(n))
		if n.State == memberlist.StateDead || n.State == memberlist.StateLeft {
			continue
		}
		m, r := memberOf(n)
		if r != nil {
			found = r
			continue
		}
		others = append(others, m)
	}
	if found == nil {
		found = g.compare(others)
	}
	if found == nil {
		g.result.set(true, nil)
		return nil
	}
	found.peers = peers
	return g.refused.note(found)
}

// compare says why the nodes that another one knows must not be merged with ours, if so.
func (g *Gossip) compare(others []Member) *refusal {
	if len(others) == 1 && others[0].Name() == g.table.self {
		return &refusal{reason: itself, err: errItself()}
	}
	alive := g.table.roster().Alive()
	if r := agree(alive, others); r != nil {
		return r
	}
	return g.firstAnswering(overlaps(alive, others))
}

// firstAnswering looks for a node id of which both lives answer; all are asked at once.
func (g *Gossip) firstAnswering(list []overlap) *refusal {
	both := make([]bool, len(list))
	var wg sync.WaitGroup
	for i := range list {
		wg.Go(func() { both[i] = g.holds(&list[i].a) && g.answers(&list[i].b) })
	}
	wg.Wait()
	if i := slices.Index(both, true); i >= 0 {
		return list[i].refusal()
	}
	return nil
}

package membership

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

// hooks implements the callbacks of memberlist. The callbacks must not call memberlist, because memberlist holds the
// lock of its node list during most callbacks.
type hooks struct {
	*mux
	gossip *Gossip
}

// NodeMeta implements memberlist.Delegate. It returns the encoded Facts of this node. It ignores the length limit,
// because Open and UpdateFacts have already checked the length.
func (h hooks) NodeMeta(int) []byte { return *h.gossip.meta.Load() }

// NotifyAlive implements memberlist.AliveDelegate. It returns an error for a refused node. Memberlist then ignores the
// refused node.
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

// NotifyUpdate implements memberlist.EventDelegate. NotifyAlive has already checked the new facts.
func (h hooks) NotifyUpdate(n *memberlist.Node) {
	if f, err := decodeFacts(n.Name, n.Meta); err == nil {
		h.gossip.table.alive(f, addrPort(n), n.Meta)
	}
}

// NotifyLeave implements memberlist.EventDelegate. Memberlist calls it both for members that failed and for members
// that left. A member has left if its announcement was received, and has failed otherwise.
func (h hooks) NotifyLeave(n *memberlist.Node) { h.gossip.table.dead(n.Name) }

// NotifyConflict implements memberlist.ConflictDelegate. Memberlist calls it when one gossip name has two addresses.
// This means that two copies of one process run, for example because a virtual machine was copied with its memory.
func (h hooks) NotifyConflict(existing, other *memberlist.Node) {
	a, ra := memberOf(existing)
	b, rb := memberOf(other)
	if ra == nil && rb == nil {
		_ = h.gossip.refused.note((&overlap{a, b}).refusal())
	}
}

// NotifyMerge implements memberlist.MergeDelegate. Memberlist calls it on both sides of every join, without holding a
// lock. After an error, memberlist does not merge the members of the other side.
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

// compare returns nil if this node may merge its members with others, the members of another node. Otherwise it returns
// the refusal. compare also refuses if the other node is this node itself.
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

// firstAnswering pings the incarnations of all overlaps concurrently. It returns the refusal of the first overlap in
// which both incarnations answer, or nil if there is none. An earlier incarnation that does not answer becomes
// superseded.
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

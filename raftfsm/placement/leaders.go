package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// Move hands the leadership of one group from one voter to another.
type Move struct {
	Group  uint32
	From   string // server id of the leader
	To     string // server id of a voter
	Reason string // one line for people
}

// Leaders spreads the leaders of several groups over their voters and returns the moves to
// make now, by group. It moves as little as it can: only when one server leads at least two
// groups more than another, at most one group from and one group to each server at a time,
// only to voters that are alive and keep up and whose disk is not slow, never in a group that has
// sat with its leader for less than Limits.Settle, that an operator put where it is (Held), or
// that Plan is about to change.
//
// A node knows how far a group's voters are behind only where it leads; groups whose voters'
// lag is unknown count, but are not moved. So every node may ask for itself, and moves only
// what it leads.
func Leaders(groups ...Input) []Move {
	b := newBalance(groups)
	var out []Move
	for _, from := range b.busiest() {
		if m, ok := b.relieve(from); ok {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(x, y Move) int { return cmp.Compare(x.Group, y.Group) })
	return out
}

// balance counts the groups each server leads.
type balance struct {
	views  []*view // by group
	load   map[string]int
	helped map[string]bool // servers that a move goes to already
}

func newBalance(groups []Input) *balance {
	b := &balance{load: map[string]int{}, helped: map[string]bool{}}
	for _, in := range groups {
		v := look(in)
		b.views = append(b.views, v)
		if v.led() != nil {
			b.load[v.Leader]++
		}
	}
	slices.SortFunc(b.views, func(x, y *view) int { return cmp.Compare(x.Group, y.Group) })
	return b
}

// busiest returns the leaders, those with most groups first.
func (b *balance) busiest() []string {
	var out []string
	for server := range b.load {
		out = append(out, server)
	}
	slices.SortFunc(out, func(x, y string) int { return cmp.Or(cmp.Compare(b.load[y], b.load[x]), cmp.Compare(x, y)) })
	return out
}

// relieve moves one group away from a server to the least busy that can take it.
func (b *balance) relieve(from string) (Move, bool) {
	var best *seat
	var group *view
	for _, v := range b.views {
		if v.Leader != from || !v.movable() {
			continue
		}
		if to := b.idlest(v); to != nil && (best == nil || b.load[to.ID] < b.load[best.ID]) {
			best, group = to, v
		}
	}
	if best == nil {
		return Move{}, false
	}
	m := Move{Group: group.Group, From: from, To: best.ID, Reason: fmt.Sprintf("group %d moves from %s, which leads %d groups, to %s, which leads %d",
		group.Group, NodeOf(from), b.load[from], best.node, b.load[best.ID])}
	b.load[from]--
	b.load[best.ID]++
	b.helped[best.ID] = true
	return m, true
}

// idlest is the voter with the fewest groups that may take this one, or nil.
func (b *balance) idlest(v *view) *seat {
	var best *seat
	for _, s := range v.pick(v.canLead) {
		fits := !s.slow && !b.helped[s.ID] && b.load[s.ID]+2 <= b.load[v.Leader]
		if fits && (best == nil || b.load[s.ID] < b.load[best.ID]) {
			best = s
		}
	}
	return best
}

// movable reports whether a group has rested and is whole.
func (v *view) movable() bool {
	rested := v.LeaderSince.IsZero() || v.Now.Sub(v.LeaderSince) >= v.Limits.Settle
	return rested && !v.Held && v.led() != nil && v.majority(nil) && len(Plan(v.Input)) == 0
}

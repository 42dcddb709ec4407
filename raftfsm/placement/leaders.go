package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// Move transfers the leadership of one group from one voter to another.
type Move struct {
	Group  uint32
	From   string // server id of the leader
	To     string // server id of a voter
	Reason string // one line for people
}

// Leaders spreads the leaders of several groups over their voters. It returns the moves to make now, sorted by group.
//
// It moves a leader only if one server leads at least two groups more than another. In one call, each server loses at
// most one leader and gets at most one. The new leader is alive, keeps up and has a good disk. Leaders does not move
// the leaders of these groups:
//
//   - groups whose leader has changed recently (Limits.Settle)
//   - groups whose leader an operator has chosen (Held)
//   - groups that Plan is about to change
//
// Every node may call Leaders. Only the leader of a group knows the lags of its voters, so the moves are limited to
// groups that the calling node leads.
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
	helped map[string]bool // servers that get a leader by a move of this call
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

// busiest returns the leaders, those with the most groups first.
func (b *balance) busiest() []string {
	var out []string
	for server := range b.load {
		out = append(out, server)
	}
	slices.SortFunc(out, func(x, y string) int { return cmp.Or(cmp.Compare(b.load[y], b.load[x]), cmp.Compare(x, y)) })
	return out
}

// relieve moves one group from a server to the least busy server that can take it.
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
	m := Move{Group: group.Group, From: from, To: best.ID,
		Reason: fmt.Sprintf("group %d moves from %s, which leads %d groups, to %s, which leads %d",
			group.Group, NodeOf(from), b.load[from], best.node, b.load[best.ID])}
	b.load[from]--
	b.load[best.ID]++
	b.helped[best.ID] = true
	return m, true
}

// idlest returns the voter that may lead the group of v and leads the fewest groups, or nil.
func (b *balance) idlest(v *view) *seat {
	var best *seat
	for _, s := range v.pick(v.canLead) {
		fits := s.burden() == 0 && !b.helped[s.ID] && b.load[s.ID]+2 <= b.load[v.Leader]
		if fits && (best == nil || b.load[s.ID] < b.load[best.ID]) {
			best = s
		}
	}
	return best
}

// movable reports whether the leader of a group may be moved. It returns false if the leader has changed recently,
// or if an operator has chosen it. It also returns false if Plan returns a change, or if the group has no leader or
// no majority.
func (v *view) movable() bool {
	rested := v.LeaderSince.IsZero() || v.Now.Sub(v.LeaderSince) >= v.Limits.Settle
	return rested && !v.Held && v.led() != nil && v.majority(nil) && len(Plan(v.Input)) == 0
}

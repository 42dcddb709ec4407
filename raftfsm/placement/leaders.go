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

// Leaders returns the leadership transfers that spread the leaders of several groups evenly over the servers, sorted by
// group. In one call, each server gives up at most one group and takes over at most one.
//
// The new leader is a voter that is alive, keeps up, has a good disk, and leads at least two groups fewer than the
// current leader. A group is not moved in these cases:
//
//   - The group has no leader, or no majority of its voters is alive.
//   - The leader has changed recently (Limits.Settle).
//   - An operator has chosen the leader (Input.Held).
//   - Plan returns a change for the group.
//
// Every node may call Leaders. The result contains only groups that the calling node leads, because only the leader of
// a group knows the lags of its voters.
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

// idlest returns the voter that leads the fewest groups, among the voters that may take over the group of v. It returns
// nil if there is no such voter.
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

// movable reports whether the leadership of the group may be transferred. It returns false in these cases:
//
//   - The leader has changed recently (Limits.Settle).
//   - An operator has chosen the leader.
//   - The group has no leader, or no majority of its voters is alive.
//   - Plan returns a change for the group.
func (v *view) movable() bool {
	rested := v.LeaderSince.IsZero() || v.Now.Sub(v.LeaderSince) >= v.Limits.Settle
	return rested && !v.Held && v.led() != nil && v.majority(nil) && len(Plan(v.Input)) == 0
}

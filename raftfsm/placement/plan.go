package placement

import "fmt"

// Op is what a Change does.
type Op uint8

// The operations.
const (
	Add      Op = iota + 1 // add Server as a non-voter
	Promote                // give the non-voter Server a vote
	Demote                 // take Server's vote, keep it as a non-voter
	Remove                 // take Server out of the configuration
	Transfer               // transfer leadership to Server, which votes already
)

// String returns the operation as logs and status print it.
func (o Op) String() string {
	if o < Add || o > Transfer {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return [...]string{"add", "promote", "demote", "remove", "transfer"}[o-Add]
}

// Change is one step that the group's leader takes.
type Change struct {
	Op     Op
	Server string // server id
	Node   string // its node id
	Reason string // one line for people, naming the node and the cause
}

// Plan returns the next change of the group's configuration, in a slice of length 1. It returns nil if no change is
// needed or possible. Call Plan again after the change is committed. Each change is safe by itself, so the caller may
// retry a change, and may stop after any change.
//
// If a majority of the voters is alive before the change, a majority is alive after it. Plan never takes the vote of
// the leader. If the leader must lose its vote, Plan first returns a Transfer to another voter.
func Plan(in Input) []Change {
	v := look(in)
	if v.led() == nil || !v.majority(nil) {
		return nil
	}
	for _, rule := range []func() (Change, bool){
		v.handOver, v.giveUpLost, v.promote, v.dropRemoved, v.forget, v.admit, v.shrink,
	} {
		if c, ok := rule(); ok {
			return []Change{c}
		}
	}
	return nil
}

func change(op Op, s *seat, format string, args ...any) (Change, bool) {
	return Change{Op: op, Server: s.ID, Node: s.node, Reason: s.node + " " + fmt.Sprintf(format, args...)}, true
}

// handOver returns a Transfer in two cases: an operator has removed the leader, or the leader's disk is nearly full
// and the next leader's disk is not. It returns false if no other voter can lead.
func (v *view) handOver() (Change, bool) {
	l, to := v.led(), v.heir()
	switch {
	case to == nil:
		return Change{}, false
	case l.removed:
		return change(Transfer, to, "takes over as leader: %s was removed by an operator", l.node)
	case l.low && !to.low:
		return change(Transfer, to, "takes over as leader: the disk of %s is nearly full", l.node)
	default:
		return Change{}, false
	}
}

// Heir returns the id of the voter that is best suited as the next leader, preferably one with a good disk. It
// returns "" if no other voter is known to keep up.
func Heir(in Input) string {
	if s := look(in).heir(); s != nil {
		return s.ID
	}
	return ""
}

// heir returns the voter that should lead next, or nil.
func (v *view) heir() *seat {
	var best *seat
	for _, s := range v.pick(v.canLead) {
		if best == nil || s.burden() < best.burden() {
			best = s
		}
	}
	return best
}

// burden rates the disk of a server that may become the leader. The result is 0 for a good disk, 1 for a slow disk and
// 2 for a disk that is nearly full.
func (s *seat) burden() int {
	switch {
	case s.low:
		return 2
	case s.slow:
		return 1
	default:
		return 0
	}
}

// canLead reports whether leadership can be transferred to a server.
func (v *view) canLead(s *seat) bool {
	return s.Voter && s.up() && !s.leader && !s.removed && v.closeBehind(s)
}

// giveUpLost returns the change that takes the vote of a lost voter. It returns false if there is no lost voter, if the
// change would leave too few voters, or if no majority of the other voters is alive.
func (v *view) giveUpLost() (Change, bool) {
	lost := v.pick(v.lost)
	if len(lost) == 0 || len(v.pick(isVoter)) <= v.target() {
		return Change{}, false
	}
	for _, s := range lost {
		if v.majority(s) {
			return v.drop(s)
		}
	}
	return Change{}, false
}

// drop returns the change that removes a server from the configuration. A server that has stopped gracefully and was
// not removed by an operator only loses its vote, because it is expected back.
func (v *view) drop(s *seat) (Change, bool) {
	if s.standing == left && !s.removed {
		return change(Demote, s, "gives up its vote: %s", v.fate(s))
	}
	return change(Remove, s, "leaves the group: %s", v.fate(s))
}

// promote returns the change that gives a vote to a non-voter that keeps up. It returns false if no further voter is
// needed, or if there is no such non-voter.
func (v *view) promote() (Change, bool) {
	lost := v.pick(v.doomed)
	if len(v.pick(isVoter))-len(lost) >= v.target() {
		return Change{}, false
	}
	s := v.successor(lost)
	switch {
	case s == nil:
		return Change{}, false
	case len(lost) > 0:
		return change(Promote, s, "becomes a voter in place of %s", v.replaced(s, lost))
	default:
		return change(Promote, s, "becomes a voter: it is %s behind and has kept up for %s", entries(s.Lag),
			span(v.Now.Sub(s.SteadySince)))
	}
}

// successor returns the non-voter to promote next, or nil if none is ready. It prefers a non-voter on the same node as
// a lost voter, then one whose disk is not slow, then the one with the lowest server id.
func (v *view) successor(lost []*seat) *seat {
	had := map[string]bool{}
	for _, l := range lost {
		had[l.node] = true
	}
	var best *seat
	for _, s := range v.pick(v.ready) {
		better := best == nil || had[s.node] && !had[best.node]
		better = better || had[s.node] == had[best.node] && best.slow && !s.slow
		if better {
			best = s
		}
	}
	return best
}

// dropRemoved returns the change that takes a voter out of the group after an operator has removed its server from the
// cluster. It returns false if no majority of the other voters is alive. Unlike giveUpLost, dropRemoved does not
// require that another server has taken the voter's place.
func (v *view) dropRemoved() (Change, bool) {
	for _, s := range v.pick(v.lost) {
		if s.removed && v.majority(s) {
			return v.drop(s)
		}
	}
	return Change{}, false
}

// replaced describes the lost voter that the non-voter s will replace, for Change.Reason. It chooses a lost voter on
// the same node as s, if there is one.
func (v *view) replaced(s *seat, lost []*seat) string {
	for _, l := range lost {
		if l.node == s.node {
			return fmt.Sprintf("its former server %s: the node %s", l.ID, v.fate(l))
		}
	}
	return lost[0].node + ", which " + v.fate(lost[0])
}

// forget returns the change that takes a non-voter out of the configuration. It chooses a non-voter that cannot come
// back, for example because its disk was replaced, or that has been down for Limits.Forget.
func (v *view) forget() (Change, bool) {
	for _, s := range v.pick(func(s *seat) bool { return !s.Voter && v.hopeless(s) }) {
		return v.drop(s)
	}
	return Change{}, false
}

func (v *view) hopeless(s *seat) bool {
	switch {
	case s.removed, s.standing == superseded:
		return true
	case s.standing == sidecar:
		return v.settled(s)
	case s.standing == failed, s.standing == unseen:
		return v.Limits.Forget > 0 && v.gone(s) >= v.Limits.Forget
	default:
		return false
	}
}

// admit returns the change that adds a server that the group does not know.
func (v *view) admit() (Change, bool) {
	for _, m := range v.strangers() {
		return Change{Op: Add, Server: m.Server, Node: m.Node, Reason: m.Node +
			" joins the group as a non-voter and catches up"}, true
	}
	return Change{}, false
}

// shrink returns the change that makes a surplus voter a non-voter. A voter is surplus in two cases:
//
//   - There are more voters than wanted.
//   - The number of voters is even, and no server is joining or leaving. For example, four voters survive no more
//     failures than three.
//
// shrink returns false if an operator has removed the leader, because then the other voters are needed as possible
// successors.
func (v *view) shrink() (Change, bool) {
	voters := v.pick(isVoter)
	over := len(voters) > v.limit()
	if v.led().removed || !over && (len(voters) <= v.target() || !v.quiet()) {
		return Change{}, false
	}
	s := v.surplus(voters)
	switch {
	case s == nil, s.up() && !v.current(s):
		return Change{}, false
	case over:
		return change(Demote, s, "becomes a non-voter: there are %d voters, and %s", len(voters), v.wanted())
	default:
		return change(Demote, s, "becomes a non-voter: %d voters survive no more failures than %d", len(voters),
			len(voters)-1)
	}
}

// quiet reports whether no server is joining or leaving the group. While a server joins or leaves, the number of voters
// may be even for a short time.
func (v *view) quiet() bool {
	unsettled := v.pick(func(s *seat) bool { return v.pending(s) || s.Voter && !s.up() && !v.lost(s) })
	return len(unsettled) == 0
}

// surplus returns the voter to demote, or nil if there is no voter except the leader. It prefers a voter that is not
// alive, then one that is not close behind the leader, then the one with the highest server id.
func (v *view) surplus(voters []*seat) *seat {
	var best *seat
	rank := func(s *seat) int {
		switch {
		case !s.up():
			return 0
		case !v.closeBehind(s):
			return 1
		}
		return 2
	}
	for _, s := range voters {
		if !s.leader && (best == nil || rank(s) <= rank(best)) {
			best = s
		}
	}
	return best
}

// current reports whether a majority of the voters is alive and close behind the leader. The count leaves out the
// excluded voter, which is about to lose its vote. If the result is false, the group cannot demote the excluded voter
// until more voters have caught up.
func (v *view) current(excluded *seat) bool {
	return v.most(excluded, func(s *seat) bool { return s.up() && (s.leader || v.closeBehind(s)) })
}

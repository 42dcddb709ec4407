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

// Plan returns the next change of the group's configuration, or nil if no change is needed or possible. The result
// has at most one change. Call Plan again after the change is committed. A change may be retried. Each change is safe
// by itself, so the caller may stop after any change.
//
// If a majority of voters is alive before the change, a majority is alive after it. Plan never takes the vote of the
// leader. If the leader must lose its vote, Plan first returns a Transfer.
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

// burden rates how badly the disk of a server suits a leader: 0 means good, 1 slow, 2 nearly full.
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

// giveUpLost returns the change that takes a lost vote away. It returns false if the vote is still needed: there would
// be too few voters without it, or no majority of the others is alive.
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

// drop returns the change that removes a server from the configuration. If the server is expected back, the change
// takes only its vote.
func (v *view) drop(s *seat) (Change, bool) {
	if s.standing == left && !s.removed {
		return change(Demote, s, "gives up its vote: %s", v.fate(s))
	}
	return change(Remove, s, "leaves the group: %s", v.fate(s))
}

// promote returns the change that gives a vote to a non-voter that keeps up. It returns false if no further voter is
// needed, or no such non-voter exists.
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

// successor returns the non-voter to promote next, or nil. It prefers a server on a node that has lost a vote, then
// a server whose disk is not slow, then the lowest id.
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

// dropRemoved returns the removal of a voter that an operator has removed from the cluster. It requires that a
// majority of the remaining voters is alive, but not that another server has taken the voter's place.
func (v *view) dropRemoved() (Change, bool) {
	for _, s := range v.pick(v.lost) {
		if s.removed && v.majority(s) {
			return v.drop(s)
		}
	}
	return Change{}, false
}

// replaced returns a description of the lost voter that the non-voter s will replace. The text becomes part of
// Change.Reason. replaced prefers a lost voter on the same node as s.
func (v *view) replaced(s *seat, lost []*seat) string {
	for _, l := range lost {
		if l.node == s.node {
			return fmt.Sprintf("its former server %s: the node %s", l.ID, v.fate(l))
		}
	}
	return lost[0].node + ", which " + v.fate(lost[0])
}

// forget returns the removal of a non-voter that cannot come back or has failed for too long.
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

// shrink returns the change that makes a voter a non-voter, in two cases: there are more voters than wanted, or their
// number is even and survives no more failures than one voter fewer. It returns false if an operator has removed the
// leader, because such a leader needs the other voters as possible successors.
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

// quiet reports whether no server is joining or leaving the group. During such a change, an even number of voters
// may be temporary.
func (v *view) quiet() bool {
	unsettled := v.pick(func(s *seat) bool { return v.pending(s) || s.Voter && !s.up() && !v.lost(s) })
	return len(unsettled) == 0
}

// surplus returns the voter to demote, but never the leader. It prefers a voter that is not alive, then one that is
// not close behind the leader, and then the highest id.
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

// current reports whether a majority of the voters is alive and close behind the leader. The voter excluded does not
// count. Without such a majority, the group could not commit the removal of that voter's vote until other voters have
// caught up.
func (v *view) current(excluded *seat) bool {
	return v.most(excluded, func(s *seat) bool { return s.up() && (s.leader || v.closeBehind(s)) })
}

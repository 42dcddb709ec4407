package placement

import "fmt"

// Op is what a Change does.
type Op uint8

// The operations.
const (
	Add      Op = iota + 1 // add Server as a replica without a vote
	Promote                // give the replica Server a vote
	Demote                 // take Server's vote, keep it as a replica
	Remove                 // take Server out of the configuration
	Transfer               // hand leadership to Server, which votes already
)

// String is the word for an operation, as logs and status print it.
func (o Op) String() string {
	if o < Add || o > Transfer {
		return fmt.Sprintf("op(%d)", uint8(o))
	}
	return [...]string{"add", "promote", "demote", "remove", "transfer"}[o-Add]
}

// Change is one step for the group's leader to take.
type Change struct {
	Op     Op
	Server string // server id
	Node   string // its node id
	Reason string // one line for people, naming the node and the cause
}

// Plan returns the next change of the group's configuration, or nothing when there is
// nothing to do. It never returns more than one: the next is planned from what the group
// looks like once this one is committed. A change may have to be tried again; each is safe
// by itself, so stopping between two leaves nothing broken.
//
// Whenever a majority of voters is alive before the change, a majority is alive after it.
// The leader's own vote is never touched: a leader that must go gets a Transfer.
func Plan(in Input) []Change {
	v := look(in)
	if v.led() == nil || !v.majority(nil) {
		return nil
	}
	for _, rule := range []func() (Change, bool){
		v.handOver, v.giveUpLost, v.promote, v.dropRemoved, v.forget, v.takeIn, v.shrink,
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

// handOver moves leadership away from a leader that was removed.
func (v *view) handOver() (Change, bool) {
	l := v.led()
	if !l.removed {
		return Change{}, false
	}
	to := v.heir()
	if to == nil {
		return Change{}, false
	}
	return change(Transfer, to, "takes over as leader: %s was removed by an operator", l.node)
}

// heir is the voter that had best lead next, or nil.
func (v *view) heir() *seat {
	var best *seat
	for _, s := range v.pick(v.canLead) {
		if best == nil || best.slow && !s.slow {
			best = s
		}
	}
	return best
}

// canLead reports whether leadership can be handed to a server.
func (v *view) canLead(s *seat) bool {
	return s.Voter && s.up() && !s.leader && !s.removed && v.closeBehind(s)
}

// giveUpLost drops a lost vote when there are votes enough without it.
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

// drop takes a lost vote: the server goes too, unless it is expected back.
func (v *view) drop(s *seat) (Change, bool) {
	if s.standing == left && !s.removed {
		return change(Demote, s, "gives up its vote: %s", v.fate(s))
	}
	return change(Remove, s, "leaves the group: %s", v.fate(s))
}

// promote gives a vote to a replica that keeps up.
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
		return change(Promote, s, "becomes a voter: it is %s behind and has kept up for %s", entries(s.Lag), span(v.Now.Sub(s.SteadySince)))
	}
}

// successor is the replica to be promoted next: one whose node had a vote that is lost,
// then one with a good disk, then the lowest id.
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

// dropRemoved takes the vote of a server that an operator removed, successor or not.
func (v *view) dropRemoved() (Change, bool) {
	for _, s := range v.pick(v.lost) {
		if s.removed && v.majority(s) {
			return v.drop(s)
		}
	}
	return Change{}, false
}

// replaced names the lost voter whose vote a replica takes: that of its own node, if there is one.
func (v *view) replaced(s *seat, lost []*seat) string {
	for _, l := range lost {
		if l.node == s.node {
			return fmt.Sprintf("its former server %s: the node %s", l.ID, v.fate(l))
		}
	}
	return lost[0].node + ", which " + v.fate(lost[0])
}

// forget removes replicas that cannot come back, or have not for long.
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

// takeIn adds a server that the group does not know.
func (v *view) takeIn() (Change, bool) {
	for _, m := range v.strangers() {
		return Change{Op: Add, Server: m.Server, Node: m.Node, Reason: m.Node + " joins the group as a replica and catches up"}, true
	}
	return Change{}, false
}

// shrink turns voters beyond the wanted number into replicas.
func (v *view) shrink() (Change, bool) { // a leader on its way out needs its heirs
	voters := v.pick(isVoter)
	over := len(voters) > v.limit()
	if v.led().removed || !over && (len(voters) <= v.target() || !v.quiet()) {
		return Change{}, false
	}
	s := v.surplus(voters)
	switch {
	case s == nil:
		return Change{}, false
	case over:
		return change(Demote, s, "becomes a replica: there are %d voters, and %s", len(voters), v.wanted())
	default:
		return change(Demote, s, "becomes a replica: %d voters survive no more failures than %d", len(voters), len(voters)-1)
	}
}

// quiet reports whether no server is on its way in or out, so that an even number of
// voters is not just a moment on the way to an odd one.
func (v *view) quiet() bool {
	unsettled := v.pick(func(s *seat) bool { return v.pending(s) || s.Voter && !s.up() && !v.lost(s) })
	return len(unsettled) == 0
}

// surplus is the voter to be demoted: one that is not alive, then the highest id; never the
// leader. A majority stays a majority without it, because one that is alive is chosen only
// where all are.
func (v *view) surplus(voters []*seat) *seat {
	var best *seat
	for _, s := range voters {
		if s.leader {
			continue
		}
		if best == nil || !s.up() || best.up() {
			best = s
		}
	}
	return best
}

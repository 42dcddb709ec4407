package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// Verdict says whether a server votes and why.
type Verdict struct {
	Server string // server id
	Node   string // its node id
	Voter  bool
	Reason string // one line for people, naming the node
}

// Explain returns a verdict for every server that is alive or in the configuration, sorted by server id. It leaves
// out nodes without data (role sidecar), because they never vote.
func Explain(in Input) []Verdict {
	v := look(in)
	var out []Verdict
	for i := range v.seats {
		s := &v.seats[i]
		why := v.whyNot
		if s.Voter {
			why = v.whyVoter
		}
		out = append(out, Verdict{Server: s.ID, Node: s.node, Voter: s.Voter, Reason: s.node + " " + why(s)})
	}
	for _, m := range v.members {
		if m.State == Alive && m.Server != "" && !v.knows(m.Server) {
			out = append(out, Verdict{Server: m.Server, Node: m.Node, Reason: m.Node + " is not a voter: " +
				v.whyStranger(m)})
		}
	}
	slices.SortFunc(out, func(a, b Verdict) int { return cmp.Compare(a.Server, b.Server) })
	return out
}

func (v *view) whyStranger(m Member) string {
	if slices.Contains(v.Removed, m.Server) {
		return "it was removed by an operator; empty its data directory to let it join as a new server"
	}
	if stuck := v.stuck(); stuck != "" {
		return "it is not in the group yet, and " + stuck
	}
	return "it is not in the group yet; the leader adds it next"
}

// stuck returns why nothing can change at all, or "".
func (v *view) stuck() string {
	voters := v.pick(isVoter)
	switch {
	case v.led() == nil:
		return "the group has no leader now"
	case !v.majority(nil):
		up := len(v.pick(func(s *seat) bool { return s.Voter && s.up() }))
		return fmt.Sprintf("nothing can change without a majority: %d of %d voters alive", up, len(voters))
	default:
		return ""
	}
}

func (v *view) whyVoter(s *seat) string {
	switch {
	case s.leader && s.removed:
		return "is a voter and leads: " + v.whyLeaderStays(s)
	case s.leader && s.low:
		return "is a voter and leads, although its disk is nearly full: no other voter with a good disk keeps up"
	case s.leader:
		return "is a voter and leads"
	case v.lost(s):
		return "is still a voter: it " + v.fate(s) + ", and " + v.whyLostStays(s)
	case !s.up():
		return fmt.Sprintf("is a voter: it %s and keeps its vote for %s more, in case it comes back", v.fate(s),
			span(v.Limits.Settle-v.gone(s)))
	case len(v.pick(isVoter)) > v.limit() && s == v.surplus(v.pick(isVoter)):
		return "is still a voter: it becomes a non-voter, because " + v.wanted()
	case s.low:
		return "is a voter; it does not lead, because its disk is nearly full"
	default:
		return "is a voter"
	}
}

// whyLeaderStays explains why a leader that was removed still leads.
func (v *view) whyLeaderStays(s *seat) string {
	if to := v.heir(); to != nil {
		return fmt.Sprintf("it %s and hands over to %s first", v.fate(s), to.node)
	}
	return fmt.Sprintf("it %s and waits for another voter that is alive and keeps up", v.fate(s))
}

// whyLostStays explains why a lost voter still has its vote.
func (v *view) whyLostStays(s *seat) string {
	next := v.successor(v.pick(v.doomed))
	switch {
	case v.stuck() != "":
		return v.stuck()
	case !v.majority(s):
		return "the majority needs its vote until another server can take it"
	case len(v.pick(isVoter)) > v.target():
		return "loses the vote next"
	case next != nil:
		return next.node + " takes its place"
	case s.removed:
		return "loses the vote next"
	default:
		return "no non-voter that keeps up can take its place"
	}
}

func (v *view) whyNot(s *seat) string {
	const no = "is not a voter: "
	switch {
	case s.removed:
		return no + "it was removed by an operator"
	case !s.up():
		return no + "it " + v.fate(s)
	case v.stuck() != "":
		return no + v.stuck()
	case !s.LagKnown:
		return no + "it has not reported yet how far it has caught up"
	case !v.closeBehind(s):
		return no + fmt.Sprintf("it is %s behind, and %s is the limit", entries(s.Lag), thousands(v.Limits.MaxLag))
	case !v.steady(s):
		return no + v.whyUnsteady(s)
	default:
		return no + v.whyReady(s)
	}
}

func (v *view) whyUnsteady(s *seat) string {
	if s.SteadySince.IsZero() {
		return "it has only just caught up"
	}
	return fmt.Sprintf("it caught up %s ago and must keep up for %s", span(v.Now.Sub(s.SteadySince)),
		span(v.Limits.Stable))
}

// whyReady explains why a non-voter that is ready does not vote yet.
func (v *view) whyReady(s *seat) string {
	doomed, voters := v.pick(v.doomed), len(v.pick(isVoter))
	switch {
	case voters-len(doomed) < v.target():
		if next := v.successor(doomed); next != s {
			return next.node + " becomes one first"
		}
		return "it becomes one next"
	case voters-len(doomed) < v.limit():
		return fmt.Sprintf("it is ready, but %d voters survive no more failures than %d; one more server would make %d",
			voters+1, voters, voters+2)
	default:
		return fmt.Sprintf("it is ready and takes over when a voter is lost; there are %d voters, and %s",
			voters-len(doomed), v.wanted())
	}
}

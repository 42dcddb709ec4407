package placement

import (
	"fmt"
	"strings"
)

// maxVoterLag is the greatest lag, as a multiple of Limits.MaxLag, of a voter that counts as keeping up when another
// server is removed. A lag includes entries that are not committed yet, so under load even a healthy voter can exceed
// MaxLag.
const maxVoterLag = 16

// Removable returns the reason why an operator should not remove a server from the group now, or "" if the operator may
// remove it. passing is true if the reason may disappear soon: enough voters are alive, but some of them are behind or
// have not answered the leader.
//
// The group must have a leader and a majority. A non-voter may then always be removed. A voter may be removed if the
// remaining voters meet these conditions:
//
//   - More than half of them are alive and keep up, so that writes can be committed.
//   - These voters have just answered the leader. Gossip is not enough, because it needs some seconds to notice that a
//     node has ended.
//   - At least one of them is not being removed itself.
//   - If the server leads the group, at least one of them can lead it instead.
//
// A non-voter that can take the place of the removed server counts as a remaining voter.
func Removable(in Input, server string) (reason string, passing bool) {
	v := look(in)
	var s *seat
	for i := range v.seats {
		if v.seats[i].ID == server {
			s = &v.seats[i]
		}
	}
	switch {
	case s == nil || s.removed:
		return "", false
	case v.stuck() != "":
		return v.stuck(), false
	case !s.Voter:
		return "", false
	}
	voters, up, staying := 0, 0, 0
	var down, late []string // voters that have failed, and reasons not to count others
	for _, o := range v.pick(isVoter) {
		if o == s {
			continue
		}
		voters++
		switch {
		case !o.up():
			down = append(down, o.node)
		case !o.leader && !o.LagKnown:
			late = append(late, o.node+" did not answer the leader just now")
		case !o.leader && o.Lag > maxVoterLag*v.Limits.MaxLag:
			late = append(late, o.node+" is "+entries(o.Lag)+" behind")
		default:
			up++
		}
		if !o.removed {
			staying++
		}
	}
	heir := v.successor([]*seat{s})
	if heir != nil {
		voters, up, staying = voters+1, up+1, staying+1
	}
	switch {
	case voters == 0:
		return s.node + " is the only voter, and no non-voter that keeps up could take its place", false
	case staying == 0:
		return "the other voters are being removed too, and no non-voter that keeps up could take the place of " +
			s.node, false
	case 2*(up+len(late)) <= voters:
		return fmt.Sprintf("without %s only %d of %d voters would be alive, which is no majority: bring %s back, "+
			"or remove it first", s.node, up+len(late), voters, strings.Join(down, " or ")), false
	case 2*up <= voters:
		return fmt.Sprintf("%s, and without %s only %d of %d voters would keep up, which is no majority",
			strings.Join(late, ", "), s.node, up, voters), true
	case s.leader && v.heir() == nil && heir == nil:
		return s.node + " leads, and no other voter that is alive keeps up", len(late) > 0
	default:
		return "", false
	}
}

package placement

import (
	"fmt"
	"strings"
)

// maxVoterLag bounds the lag of a voter that counts when another one is removed, in multiples of Limits.MaxLag. Under
// load, the lag of a voter that keeps up can exceed MaxLag, because it includes what is not committed yet.
const maxVoterLag = 16

// Removable returns the reason why an operator should not remove a server from the group now. It returns "" if the
// operator may remove the server. A non-voter may always be removed if the group has a leader and a majority. For a
// voter, more than half of the remaining voters must be alive and keep up, because without them no write is committed.
// They must also have just answered the leader, because gossip needs some seconds to notice that a node has ended. If
// enough voters are alive, but some of them have not answered or are behind, passing is true: this may change soon.
//
// At least one of the remaining voters must not itself be in the process of removal. A non-voter that can take the
// place of the removed server counts as a remaining voter. If the server leads, another voter or such a non-voter must
// be able to lead.
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

package placement

import (
	"fmt"
	"strings"
)

// Removable returns the reason why an operator should not remove a server from the group now. It returns "" if the
// operator may remove it. More than half of the remaining voters must be alive and have just answered the leader,
// because gossip needs some seconds to notice that a node has ended. For at least one of them, no removal may have
// begun. A non-voter that can take the place of the removed server counts as a remaining voter. If
// the server leads, another voter or such a non-voter must be able to lead.
func Removable(in Input, server string) string {
	v := look(in)
	var s *seat
	for i := range v.seats {
		if v.seats[i].ID == server {
			s = &v.seats[i]
		}
	}
	switch {
	case s == nil || s.removed:
		return ""
	case v.stuck() != "":
		return v.stuck()
	case !s.Voter:
		return ""
	}
	voters, up, staying, down := 0, 0, 0, []string(nil)
	for _, o := range v.pick(isVoter) {
		if o == s {
			continue
		}
		if voters++; o.up() && (o.leader || o.LagKnown) {
			up++
		} else {
			down = append(down, o.node)
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
		return s.node + " is the only voter, and no non-voter that keeps up could take its place"
	case staying == 0:
		return "the other voters are being removed too, and no non-voter that keeps up could take the place of " +
			s.node
	case 2*up <= voters:
		return fmt.Sprintf("without %s only %d of %d voters would be alive and answer the leader, which is no "+
			"majority: bring %s back, or remove it first", s.node, up, voters, strings.Join(down, " or "))
	case s.leader && v.heir() == nil && heir == nil:
		return s.node + " leads, and no other voter that is alive keeps up"
	default:
		return ""
	}
}

package placement

import (
	"fmt"
	"strings"
)

// Removable returns the reason why an operator should not remove a server from the group now, or "". More than half
// of the remaining voters must be alive. A non-voter that can take the place of the removed server counts as a
// remaining voter.
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
	voters, up, down := 0, 0, []string(nil)
	for _, o := range v.pick(isVoter) {
		if o == s {
			continue
		}
		if voters++; o.up() {
			up++
		} else {
			down = append(down, o.node)
		}
	}
	heir := v.successor([]*seat{s})
	if heir != nil {
		voters, up = voters+1, up+1
	}
	switch {
	case voters == 0:
		return s.node + " is the only voter, and no non-voter that keeps up could take its place"
	case 2*up <= voters:
		return fmt.Sprintf("without %s only %d of %d voters would be alive, which is no majority: bring %s back, "+
			"or remove it first", s.node, up, voters, strings.Join(down, " or "))
	case s.leader && v.heir() == nil && heir == nil:
		return s.node + " leads, and no other voter that is alive keeps up"
	default:
		return ""
	}
}

package placement

import "fmt"

// Missing returns the reason why a server does not vote although the group needs more voters. It returns "" if the
// server votes and no operator has removed it, or if the group has enough voters.
//
// A voter that has been down for less than Limits.Settle still counts as a voter. A voter does not count if an operator
// has removed it, or if this node has never seen it alive. The result does not depend on lags, so every server can call
// Missing for itself.
func Missing(in Input, server string) string {
	v := look(in)
	for _, s := range v.pick(isVoter) {
		if s.ID == server && !s.removed {
			return ""
		}
	}
	votes := len(v.pick(func(s *seat) bool { return s.Voter && s.standing != unseen && !v.doomed(s) }))
	could := len(v.pick(func(s *seat) bool { return !s.Voter && s.up() && !s.removed })) + len(v.strangers())
	want := odd(min(votes+could, v.limit()))
	if votes >= want {
		return ""
	}
	return fmt.Sprintf("%s does not vote yet: %d of %d votes are given", NodeOf(server), votes, want)
}

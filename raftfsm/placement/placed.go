package placement

import "fmt"

// Missing returns the reason why a server that should be a voter is not a voter. It returns "" for a voter, and for a
// server that should be a non-voter. Every server can call Missing about itself, because the result does not depend on
// lags.
//
// A voter that this node has never seen alive does not count as a voter. A voter that has failed only recently does
// count.
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

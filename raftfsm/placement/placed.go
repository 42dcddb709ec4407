package placement

import "fmt"

// Missing returns the reason why a server that should be a voter is not one. It returns "" if the server is a voter
// that no operator has removed, or if the group has enough voters. The result does not depend on lags, so every
// server can call Missing about itself.
//
// A voter that has failed only recently counts as a voter. A voter that this node has never seen alive does not.
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

package placement

import "fmt"

// Missing says why a server is not where the policy wants it: it has no vote yet and is to
// get one. It is empty for a voter, and for a replica that no vote is meant for. It rests on
// who is configured and alive, not on lags, so that every server can ask it about itself.
//
// A voter that nobody has seen protects nothing and does not count; one that has just gone
// does, because its vote waits for it.
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

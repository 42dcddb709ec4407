package schema

// Warnings for the case that the next failure of a voter ends the majority.
const (
	oneFailure     = "one failure stops writes" // both of two voters are alive
	oneMoreFailure = "one more failure stops writes"
)

// Down returns the state of a server that is not alive, or "" if it is alive or its state was not reported.
func (s ServerStatus) Down() string {
	if s.State == "alive" {
		return ""
	}
	return s.State
}

// CountVoters returns the number of voters among the servers of a group, and how many of them are down.
func CountVoters(servers []ServerStatus) (voters, down int) {
	for _, s := range servers {
		if s.Voter {
			voters++
			if s.Down() != "" {
				down++
			}
		}
	}
	return voters, down
}

// Margin returns a warning if the voters of a group that are not down are just a majority. Writes then stop if one more
// voter fails. Margin returns "" in all other cases, and for a group with a single voter.
func Margin(servers []ServerStatus) string { return margin(CountVoters(servers)) }

// Margin returns the warning of the function Margin for the group g.
func (g VotersGroup) Margin() string {
	down := 0
	for _, node := range g.Voters {
		if g.States[node] != "" {
			down++
		}
	}
	return margin(len(g.Voters), down)
}

func margin(voters, down int) string {
	switch {
	case voters < 2 || voters-down != voters/2+1:
		return ""
	case down == 0:
		return oneFailure
	default:
		return oneMoreFailure
	}
}

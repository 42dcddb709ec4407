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

// Margin returns a warning if one more failed voter would stop the writes of a group. It returns "" if more than one
// voter may fail, if the majority is already lost, or if the group has a single voter.
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

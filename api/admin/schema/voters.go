package schema

// oneMoreFailure is what operators read if the next failure of a voter ends the majority.
const oneMoreFailure = "one more failure stops writes"

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

// Margin returns a warning if some voters of a group are down and the remaining ones are just a majority. Otherwise it
// returns "".
func Margin(servers []ServerStatus) string { return margin(CountVoters(servers)) }

// Margin is Margin for the group.
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
	if down > 0 && voters-down == voters/2+1 {
		return oneMoreFailure
	}
	return ""
}

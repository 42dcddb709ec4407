package placement

import "fmt"

// maxVoters bounds the number of voters of a group.
const maxVoters = 99

// CheckVoters returns the reason why a cluster should not have this number of voters, and a hint about what to do.
// Both are empty if the number is allowed.
func CheckVoters(number int) (reason, hint string) {
	switch {
	case number < 1 || number > maxVoters:
		return fmt.Sprintf("%d is no number of voters", number), fmt.Sprintf("give a number from 1 to %d", maxVoters)
	case number > 2 && number%2 == 0:
		return fmt.Sprintf("%d voters survive no more failures than %d", number, number-1),
			fmt.Sprintf("give %d or %d", number-1, number+1)
	}
	return "", ""
}

package placement

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// entries returns a number of log entries as text.
func entries(n uint64) string {
	if n == 1 {
		return "1 entry"
	}
	return thousands(n) + " entries"
}

// thousands formats a number with commas: 1,204.
func thousands(n uint64) string {
	s := strconv.FormatUint(n, 10)
	var b strings.Builder
	for i, r := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// span formats a duration in whole seconds, never below zero.
func span(d time.Duration) string { return max(d, 0).Round(time.Second).String() }

// wanted returns the number of wanted voters as text. For an even number above two, the text also explains why one
// voter fewer is enough.
func (v *view) wanted() string {
	if v.limit() != v.Voters {
		return fmt.Sprintf("%d are wanted, of which %d count because an even number survives no more failures",
			v.Voters, v.limit())
	}
	if v.Voters == 1 {
		return "1 is wanted"
	}
	return fmt.Sprintf("%d are wanted", v.Voters)
}

// fate returns as text what happened to a server that is not alive or is to be removed.
func (v *view) fate(s *seat) string {
	if s.removed {
		return "was removed by an operator"
	}
	ago := span(v.gone(s))
	switch s.standing {
	case alive:
		return "is alive"
	case left:
		return "stopped " + ago + " ago"
	case failed:
		return "failed " + ago + " ago"
	case unseen:
		return "has not been seen for " + ago
	case sidecar:
		return "has run as a sidecar for " + ago
	default:
		return "came back " + ago + " ago with another data directory"
	}
}

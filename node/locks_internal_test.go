package node

import (
	"testing"

	"github.com/quorate/quorate/raftfsm/locks"
)

// Locks of two namespaces can have equal names. Then only the token distinguishes them.
func TestReleaseLock_TokenNamesOneOfSeveral(t *testing.T) {
	held := func(tokens ...uint64) (out []locks.Held) {
		for _, token := range tokens {
			out = append(out, locks.Held{Token: token})
		}
		return out
	}
	for name, c := range map[string]struct {
		held  []locks.Held
		token string
		want  int
	}{
		"no token":            {held(4, 7), "", 2},
		"the token of one":    {held(4, 7), "7", 1},
		"the token of both":   {held(7, 7), "7", 2},
		"the token of none":   {held(4, 7), "9", 2},
		"one lock, no match":  {held(4), "9", 1}, // the answer names its token
		"one lock, its token": {held(4), "4", 1},
	} {
		got := withToken(c.held, c.token)
		if len(got) != c.want || c.want == 1 && len(c.held) > 1 && got[0].Token != 7 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

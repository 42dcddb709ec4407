package transport

import (
	"testing"

	"github.com/quorate/quorate/raftfsm/raftlog"
)

func TestClaim_Lacks(t *testing.T) {
	c := Claim{Term: 5, Vote: 4, LogTerm: 5, Last: 20}
	for name, s := range map[string]struct {
		seen  raftlog.Seen
		wrong bool
	}{
		"nothing": {raftlog.Seen{}, false},
		"all of it": {raftlog.Seen{Term: 5, Vote: 4,
			Matched: raftlog.Position{Term: 5, Index: 20}, Committed: 20}, false},
		"a higher term":                       {raftlog.Seen{Term: 6}, true},
		"a later vote":                        {raftlog.Seen{Vote: 5}, true},
		"a committed entry":                   {raftlog.Seen{Committed: 21}, true},
		"an acknowledged entry of this term":  {raftlog.Seen{Matched: raftlog.Position{Term: 5, Index: 21}}, true},
		"a replaced entry of an earlier term": {raftlog.Seen{Matched: raftlog.Position{Term: 4, Index: 30}}, false},
	} {
		if why := c.lacks(s.seen); (why != "") != s.wrong {
			t.Errorf("%s: %q", name, why)
		}
	}
}

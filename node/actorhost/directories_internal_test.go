package actorhost

import (
	"testing"
	"time"
)

func TestTypeRecord_IsFreeTenMinutesAfterItsLastHost(t *testing.T) {
	mine, theirs := typeRecord{App: "new", Store: "s"}, typeRecord{App: "old", Store: "s"}
	begun := time.Unix(1_000_000, 0)
	marked := theirs
	marked.Unhosted = begun.Unix()
	for name, c := range map[string]struct {
		now    typeRecord
		hosted bool
		after  time.Duration
		want   typeRecord
	}{
		"it is hosted":                    {now: theirs, hosted: true, want: theirs},
		"it is hosted again":              {now: marked, hosted: true, after: time.Hour, want: theirs},
		"no node hosts it":                {now: theirs, want: marked},
		"no node has hosted it for 9 min": {now: marked, after: 9 * time.Minute, want: marked},
		"no node has hosted it for 10":    {now: marked, after: 10 * time.Minute, want: mine},
	} {
		if got := c.now.wanted(mine, c.hosted, begun.Add(c.after)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

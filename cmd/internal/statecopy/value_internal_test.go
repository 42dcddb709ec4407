package statecopy

import (
	"testing"
	"time"
)

func TestSame_ComparesExpiriesWithTolerance(t *testing.T) {
	at := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		a, b time.Time
		want bool
	}{
		"never":           {time.Time{}, time.Time{}, true},
		"one never":       {at, time.Time{}, false},
		"a second apart":  {at, at.Add(time.Second), true},
		"an hour apart":   {at, at.Add(time.Hour), false},
		"both far":        {at.AddDate(69, 0, 0), at.AddDate(500, 0, 0), true},
		"one far":         {at, at.AddDate(500, 0, 0), false},
		"at the limit":    {time.Now().Add(far + time.Hour), at.AddDate(500, 0, 0), true},
		"below the limit": {time.Now().Add(far - time.Hour), at.AddDate(500, 0, 0), false},
	} {
		value := func(at time.Time) Value { return Value{Data: []byte("1"), Expires: at} }
		if same(value(c.a), value(c.b)) != c.want || same(value(c.b), value(c.a)) != c.want {
			t.Errorf("%s: equal is not %v", name, c.want)
		}
	}
}

package redis_test

import (
	"math"
	"testing"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/component/state/redis"
)

func TestExpiresIn(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(t time.Time) state.TTL { return state.TTL{Set: true, At: &t} }
	for name, c := range map[string]struct {
		ttl  state.TTL
		want int64
	}{
		"never":             {state.TTL{Set: true}, 0},
		"the zero time":     {at(time.Time{}), -1},
		"now":               {at(now), -1},
		"in a nanosecond":   {at(now.Add(1)), 1},
		"in a millisecond":  {at(now.Add(time.Millisecond)), 1},
		"in two":            {at(now.Add(time.Millisecond + 1)), 2},
		"beyond a Duration": {at(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)), math.MaxInt64/1_000_000 + 1},
	} {
		if got := redis.ExpiresIn(now, c.ttl); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

package inmemory

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/component/state"
)

// clock is a clock that never goes backward, so that an expired key does not become visible again when the system clock
// is set back. A clock is safe for concurrent use.
type clock struct {
	now    func() time.Time
	latest atomic.Int64
}

// millis returns the time in Unix milliseconds, rounded down.
func (c *clock) millis() int64 {
	now := c.now().UnixMilli()
	for {
		latest := c.latest.Load()
		if now <= latest {
			return latest
		}
		if c.latest.CompareAndSwap(latest, now) {
			return now
		}
	}
}

// expiry returns the time at which a value with the given TTL expires, in Unix milliseconds. It rounds up, so that no
// key expires early. It returns 0 if the value never expires. now is the current time in Unix milliseconds.
func expiry(ttl state.TTL, now int64) int64 {
	switch {
	case !ttl.Set:
		return 0
	case ttl.At != nil:
		at := ttl.At.UnixMilli()
		if ttl.At.After(time.UnixMilli(at)) {
			at++
		}
		return max(at, 1)
	case ttl.Seconds <= 0:
		return 0
	case ttl.Seconds > (math.MaxInt64-now)/1000:
		return math.MaxInt64
	}
	return now + ttl.Seconds*1000
}

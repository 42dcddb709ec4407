package inmemory

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/component/state"
)

// clock returns the time and never goes backward. If the system clock were set back, an expired key could otherwise
// become visible again.
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

// expiry returns the expiry time of a key with the given TTL in Unix milliseconds, or 0 if it never expires. It
// rounds up, so that no key expires early.
func expiry(ttl state.TTL, now int64) int64 {
	switch {
	case !ttl.Set:
		return 0
	case !ttl.At.IsZero():
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

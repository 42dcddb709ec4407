package group

import (
	"sync/atomic"
	"time"
)

// clock computes the cluster time of one group, in Unix milliseconds. It is safe for concurrent use.
//
// Each log entry has a timestamp. Between entries, clock adds the time elapsed on the monotonic clock to the greatest
// timestamp applied. It reads the wall clock only when the group is opened, so a later change of the wall clock has no
// effect. On each node, cluster time never goes backward.
type clock struct {
	now    func() time.Time // carries a monotonic reading
	opened time.Time
	wall   uint64 // wall clock at opened
	seen   atomic.Pointer[stamp]
	latest atomic.Uint64 // greatest time returned by leader
}

// stamp is a machine time and the local moment at which it was seen.
type stamp struct {
	ms uint64
	at time.Time
}

func newClock(now func() time.Time) *clock {
	at := now()
	c := &clock{now: now, opened: at, wall: uint64(max(at.UnixMilli(), 1))}
	c.seen.Store(&stamp{at: at})
	return c
}

// observe records the timestamp of an applied entry. It ignores a timestamp that is not later than the current cluster
// time. Only the goroutine that applies entries calls it.
func (c *clock) observe(ms uint64) {
	if ms > c.extrapolated() {
		c.seen.Store(&stamp{ms: ms, at: c.now()})
	}
}

// extrapolated returns the last observed time plus the time that has passed since then.
func (c *clock) extrapolated() uint64 {
	s := c.seen.Load()
	if s.ms == 0 {
		return 0
	}
	return s.ms + c.since(s.at)
}

// replica returns a lower bound of the leader's cluster time. The result never decreases, even if this node was the
// leader before.
func (c *clock) replica() uint64 { return max(c.extrapolated(), c.latest.Load()) }

// leader returns the leader's cluster time, for the timestamps of new entries and for strong reads. The result never
// decreases, and is at least the timestamp of every applied entry.
func (c *clock) leader() uint64 {
	now := max(c.extrapolated(), c.wall+c.since(c.opened))
	for {
		last := c.latest.Load()
		if now <= last {
			return last
		}
		if c.latest.CompareAndSwap(last, now) {
			return now
		}
	}
}

func (c *clock) since(t time.Time) uint64 { return uint64(max(c.now().Sub(t).Milliseconds(), 0)) }

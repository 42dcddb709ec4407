package group

import (
	"sync/atomic"
	"time"
)

// clock computes the cluster time of one group, in Unix milliseconds. Cluster time never goes backward on a node. It
// is safe for concurrent use.
//
// Each log entry has a timestamp. The cluster time is the greatest timestamp applied, plus the time elapsed since
// then. The leader's cluster time is also at least the wall clock at the opening of the group, plus the time elapsed
// since the opening. Elapsed time is measured on the monotonic clock, so later changes of the wall clock have no
// effect.
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

// observe records the timestamp of an applied entry. It ignores a timestamp that is not later than the current
// cluster time. Only the goroutine that applies entries may call it.
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

// replica returns a lower bound of the leader's cluster time. The result never decreases, even after this node loses
// leadership.
func (c *clock) replica() uint64 { return max(c.extrapolated(), c.latest.Load()) }

// leader returns the leader's cluster time. New entries and strong reads use it. It never decreases, and it is never
// below the timestamp of an applied entry.
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

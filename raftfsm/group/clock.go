package group

import (
	"sync/atomic"
	"time"
)

// clock computes the cluster time of one group, in Unix milliseconds. A clock is safe for concurrent use.
//
// Each log entry has a timestamp. Cluster time is the greatest of these values:
//
//   - for each applied entry: its timestamp, plus the time since this node applied it
//   - on the leader: the wall clock when this node opened the group, plus the time since then
//
// Cluster time never goes backward on a node. Elapsed time is measured on the monotonic clock, so later changes of the
// wall clock have no effect.
type clock struct {
	now    func() time.Time // returns times with a monotonic reading
	opened time.Time
	wall   uint64 // wall clock at the time opened, in Unix milliseconds
	seen   atomic.Pointer[stamp]
	latest atomic.Uint64 // greatest time returned by leader
}

// stamp is the timestamp of an applied entry, with the local time at which the clock observed it.
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

// observe records the timestamp of an applied entry, in Unix milliseconds. It ignores a timestamp that is not above the
// extrapolated time, so that cluster time never goes backward.
func (c *clock) observe(ms uint64) {
	at := c.now() // the comparison and the new stamp use one time, so that extrapolated does not decrease between them
	for {
		last := c.seen.Load()
		if ms <= last.until(at) || c.seen.CompareAndSwap(last, &stamp{ms: ms, at: at}) {
			return
		}
	}
}

// extrapolated returns the last observed time plus the time that has passed since then.
func (c *clock) extrapolated() uint64 { return c.seen.Load().until(c.now()) }

// until returns the timestamp of s plus the time between its observation and the given local time. It returns 0 if s
// has no timestamp.
func (s *stamp) until(at time.Time) uint64 {
	if s.ms == 0 {
		return 0
	}
	return s.ms + between(s.at, at)
}

// replica returns a lower bound of the leader's cluster time. The result never decreases, even after this node loses
// leadership.
func (c *clock) replica() uint64 { return max(c.extrapolated(), c.latest.Load()) }

// leader returns the leader's cluster time, for new entries and strong reads. The result never decreases, and is never
// below the timestamp of an applied entry.
func (c *clock) leader() uint64 {
	now := max(c.extrapolated(), c.wall+between(c.opened, c.now()))
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

// between returns the milliseconds from one time to another, and 0 if the order is reversed.
func between(from, to time.Time) uint64 { return uint64(max(to.Sub(from).Milliseconds(), 0)) }

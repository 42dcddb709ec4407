package group

import (
	"sync/atomic"
	"time"
)

// clock tells cluster time of one group, in Unix milliseconds.
//
// The log carries the time: each entry has a stamp, and the machine's time is the
// greatest one applied. Between entries this node adds its own monotonic clock. The wall
// clock counts once, when the group is opened; later jumps of it change nothing. So time
// never goes backward on a node, and nothing expires early as long as the wall clock was
// right when the leader's group was opened.
//
// Safe for concurrent use.
type clock struct {
	now    func() time.Time // carries a monotonic reading
	opened time.Time
	wall   uint64 // wall clock at opened
	seen   atomic.Pointer[stamp]
	latest atomic.Uint64 // greatest time given out as leader
}

// stamp is machine time and the local moment it was seen.
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

// observe notes the machine's time. Called from the machine's goroutine only. A stamp
// that comes late, behind what the one before and the time since make, tells nothing new.
func (c *clock) observe(ms uint64) {
	if ms > c.extrapolated() {
		c.seen.Store(&stamp{ms: ms, at: c.now()})
	}
}

// extrapolated is what was seen, and the time since.
func (c *clock) extrapolated() uint64 {
	s := c.seen.Load()
	if s.ms == 0 {
		return 0
	}
	return s.ms + c.since(s.at)
}

// replica is a lower bound of the leader's time, and never less than this node said
// before as leader.
func (c *clock) replica() uint64 { return max(c.extrapolated(), c.latest.Load()) }

// leader is the time a leader stamps entries and strong reads with. It never goes
// backward, and is never behind what any applied entry carried.
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

//go:build quorate_clock

package tuned

import "time"

// ClockTurns reports whether this build can change its wall clock.
const ClockTurns = true

// turnClock shifts the wall clock of this process, as if somebody had set the clock of the machine.
// The monotonic clock does not change. time.SetWallShift exists only in builds with the overlay of
// package turnclock.
func turnClock(by time.Duration) { time.SetWallShift(int64(by / time.Second)) }

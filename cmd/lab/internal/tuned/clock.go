//go:build quorate_clock

package tuned

import "time"

// ClockTurns reports whether a test can shift the wall clock of this build.
const ClockTurns = true

// turnClock shifts the wall clock of this process by the given time, as if the clock of the machine had been set. The
// monotonic clock does not change. The function time.SetWallShift exists only in builds with the overlay of package
// turnclock.
func turnClock(by time.Duration) { time.SetWallShift(int64(by / time.Second)) }

//go:build !quorate_clock

package tuned

import "time"

// ClockTurns reports whether a test can shift the wall clock of this build.
const ClockTurns = false

// turnClock does nothing in this build.
func turnClock(time.Duration) {}

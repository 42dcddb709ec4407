//go:build !quorate_clock

package tuned

import "time"

// ClockTurns reports whether this build can change its wall clock.
const ClockTurns = false

// turnClock does nothing in this build.
func turnClock(time.Duration) {}

//go:build !quorate_clock

package tuned

import "time"

// ClockTurns says whether this build can turn its wall clock.
const ClockTurns = false

// turnClock does nothing in this build.
func turnClock(time.Duration) {}

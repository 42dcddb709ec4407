//go:build quorate_clock

package tuned

import "time"

// ClockTurns says whether this build can turn its wall clock.
const ClockTurns = true

// turnClock makes the wall clock wrong by so much. The monotonic clock goes on, as it does
// when somebody sets the clock of a machine. Package time has this function only in builds
// whose overlay gives it one.
func turnClock(by time.Duration) { time.SetWallShift(int64(by / time.Second)) }

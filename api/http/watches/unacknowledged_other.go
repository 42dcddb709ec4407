//go:build !linux

package watches

import "time"

// limitUnacknowledged does nothing, because the kernel of this system has no such limit. A client that is gone is
// noticed when a write blocks or the kernel gives up.
func limitUnacknowledged(uintptr, time.Duration) {}

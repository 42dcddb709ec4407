//go:build !linux

package watches

import "time"

// limitUnacknowledged does nothing, because the kernel of this system has no such limit. A lost client is noticed when
// a write takes too long or the kernel gives up.
func limitUnacknowledged(uintptr, time.Duration) {}

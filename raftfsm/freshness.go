package raftfsm

import (
	"sync/atomic"
	"time"
)

// freshness records when the replica of one group was last known to be up to date. The zero value means that this is
// unknown. A freshness is safe for concurrent use.
type freshness struct {
	// freshUntil is when this node sent the newest read index request whose index the replica has applied. A quorum has
	// confirmed the leader that returned this read index. So the replica reflects every write that was acknowledged
	// before freshUntil.
	freshUntil atomic.Pointer[time.Time]
}

// verified records that the replica has applied a read index. sent is the time when that read index was requested.
func (f *freshness) verified(sent time.Time) {
	for {
		have := f.freshUntil.Load()
		if have != nil && !have.Before(sent) || f.freshUntil.CompareAndSwap(have, &sent) {
			return
		}
	}
}

// age returns an upper bound of the age of a replica's state. The result is the smaller of two bounds: groupAge, which
// the group has computed, and the time since freshUntil. If known is false, groupAge is not valid. The second result is
// false if there is no bound.
func (f *freshness) age(groupAge time.Duration, known bool) (time.Duration, bool) {
	if at := f.freshUntil.Load(); at != nil {
		if own := time.Since(*at); !known || own < groupAge {
			return own, true
		}
	}
	return groupAge, known
}

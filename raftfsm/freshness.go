package raftfsm

import (
	"sync/atomic"
	"time"
)

// freshness records when the replica of one group was last known to be up to date. The method age returns an upper
// bound of the replica's age, computed from this time. The zero value gives no bound. It is safe for concurrent use.
type freshness struct {
	// freshUntil is when this node sent the newest read index request whose index the replica has applied. The
	// replica reflects every write that was acknowledged before that time, because a quorum has confirmed the leader
	// that returned the read index.
	freshUntil atomic.Pointer[time.Time]
}

// verified records that the replica has applied the read index requested at sent.
func (f *freshness) verified(sent time.Time) {
	for {
		have := f.freshUntil.Load()
		if have != nil && !have.Before(sent) || f.freshUntil.CompareAndSwap(have, &sent) {
			return
		}
	}
}

// age returns an upper bound of the age of a replica's state. It is the smaller of two bounds: byGroup, which the
// group has computed, and the bound of f. byGroup is ignored if known is false. The second result is false if there
// is no bound.
func (f *freshness) age(byGroup time.Duration, known bool) (time.Duration, bool) {
	if at := f.freshUntil.Load(); at != nil {
		if own := time.Since(*at); !known || own < byGroup {
			return own, true
		}
	}
	return byGroup, known
}

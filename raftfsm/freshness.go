package raftfsm

import (
	"sync/atomic"
	"time"
)

// freshness records the last time at which the replica of one group was known to be up to date. The method age derives
// an upper bound of the replica's age. The zero value gives no bound. It is safe for concurrent use.
type freshness struct {
	// freshUntil is the time at which this node sent the newest read index request whose index the replica has
	// applied. The replica reflects every write that was acknowledged before that time, because only a leader that a
	// quorum has confirmed returns a read index.
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

// age returns an upper bound of the age of a replica's state. byGroup is the bound that the group has computed; it is
// ignored if known is false. age returns the smaller of that bound and its own. ok is false if neither exists.
func (f *freshness) age(byGroup time.Duration, known bool) (time.Duration, bool) {
	if at := f.freshUntil.Load(); at != nil {
		if own := time.Since(*at); !known || own < byGroup {
			return own, true
		}
	}
	return byGroup, known
}

package raftfsm

import (
	"sync/atomic"
	"time"
)

// freshness keeps an upper bound for the age of the replica of one group. Safe for concurrent use. The zero value
// has no bound.
type freshness struct {
	// freshUntil is the send time of the newest read index request whose index this replica has applied. A
	// leader confirmed by a quorum answered it. So the replica reflects everything acknowledged before that
	// time. A deposed leader returns no read index.
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

// age returns an upper bound for the age of a replica's state, and whether there is one. byGroup is the bound from
// the group itself, which is valid only if known is true.
func (f *freshness) age(byGroup time.Duration, known bool) (time.Duration, bool) {
	if at := f.freshUntil.Load(); at != nil {
		if own := time.Since(*at); !known || own < byGroup {
			return own, true
		}
	}
	return byGroup, known
}

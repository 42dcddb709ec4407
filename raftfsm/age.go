package raftfsm

import (
	"sync/atomic"
	"time"
)

// vouched holds, for one group, the newest moment at which this node sent a question that
// a quorum-confirmed round answered with an index its machine has applied since: the
// machine reflects everything that was acknowledged before that moment. The answer of a
// deposed leader fails and proves nothing.
type vouched struct{ at atomic.Pointer[time.Time] }

// vouch notes that the machine has applied what a leader, asked at sent, had committed.
func (h *Host) vouch(gid uint32, sent time.Time) {
	v := &h.vouched[gid].at
	for {
		have := v.Load()
		if have != nil && !have.Before(sent) || v.CompareAndSwap(have, &sent) {
			return
		}
	}
}

// age is an upper bound of how old the local machine's state is, by the local monotonic
// clock; known only once there is a proof.
func (h *Host) age(gid uint32) (age time.Duration, known bool) {
	age, known = h.groups[gid].Age()
	if at := h.vouched[gid].at.Load(); at != nil {
		if own := time.Since(*at); !known || own < age {
			return own, true
		}
	}
	return age, known
}

package http

import (
	"sync"
	"sync/atomic"
)

// active counts requests and says when the last one has ended. The zero value is ready.
type active struct {
	count atomic.Int64 // plus draining once drain was called
	once  sync.Once    // makes empty
	last  sync.Once    // closes empty
	empty chan struct{}
}

// draining is far above any number of requests.
const draining = 1 << 62

// enter counts one more; false says that it comes too late.
func (a *active) enter() bool {
	if a.count.Add(1) < draining {
		return true
	}
	a.leave()
	return false
}

func (a *active) leave() {
	if a.count.Add(-1) == draining {
		a.last.Do(func() { close(a.channel()) })
	}
}

// drain refuses newcomers and returns a channel that is closed when none is left.
func (a *active) drain() <-chan struct{} {
	empty := a.channel()
	for {
		n := a.count.Load()
		if n >= draining {
			return empty
		}
		if a.count.CompareAndSwap(n, n+draining) {
			if n == 0 {
				a.last.Do(func() { close(empty) })
			}
			return empty
		}
	}
}

func (a *active) channel() chan struct{} {
	a.once.Do(func() { a.empty = make(chan struct{}) })
	return a.empty
}

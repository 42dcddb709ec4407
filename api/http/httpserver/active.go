package httpserver

import (
	"sync"
	"sync/atomic"
)

// active counts requests in progress, and signals when the last one has ended. The zero value is ready to use.
type active struct {
	count atomic.Int64 // requests in progress, plus draining after drain was called
	once  sync.Once    // makes empty
	last  sync.Once    // closes empty
	empty chan struct{}
}

// draining is added to active.count when no further requests are accepted. It is far above any number of requests.
const draining = 1 << 62

// Enter counts one more request in progress. After drain was called, Enter counts nothing and returns false.
func (a *active) Enter() bool {
	if a.count.Add(1) < draining {
		return true
	}
	a.Leave()
	return false
}

// Leave counts the end of a request that Enter has counted.
func (a *active) Leave() {
	if a.count.Add(-1) == draining {
		a.last.Do(func() { close(a.channel()) })
	}
}

// drain makes Enter refuse all further requests. The returned channel is closed when all requests in progress have
// ended.
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

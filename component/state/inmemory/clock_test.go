package inmemory_test

import (
	"sync"
	"time"
)

// testClock is a clock that only a test advances.
type testClock struct {
	mu  sync.Mutex // guards now
	now time.Time
}

func newClock() *testClock {
	return &testClock{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
}

func (c *testClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *testClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

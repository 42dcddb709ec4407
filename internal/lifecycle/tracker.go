package lifecycle

import "sync"

// Tracker counts calls and goroutines, so that Close can wait for them. In contrast to a sync.WaitGroup, a call may
// begin concurrently with Close even if no other call is in progress. The zero value is ready to use. All methods are
// safe for concurrent use.
type Tracker struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// Enter counts a call that begins. The caller must call Leave when the call has ended. After Close, Enter returns
// false, and the call must not begin.
func (t *Tracker) Enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.running.Add(1)
	}
	return !t.closed
}

// Leave ends a call for which Enter returned true.
func (t *Tracker) Leave() { t.running.Done() }

// Go calls f in a new goroutine and returns true. After Close, it returns false and does not call f.
func (t *Tracker) Go(f func()) bool {
	if !t.Enter() {
		return false
	}
	go func() {
		defer t.Leave()
		f()
	}()
	return true
}

// Close waits for the calls and goroutines in progress. From the start of Close, Enter and Go return false. Close is
// idempotent.
func (t *Tracker) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}

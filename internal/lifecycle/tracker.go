package lifecycle

import "sync"

// Tracker counts calls and goroutines that may begin at any time until it is closed. A sync.WaitGroup alone does not
// allow that: none of them may begin while Wait is called and the count is zero. The zero value is ready to use. All
// methods are safe for concurrent use.
type Tracker struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// Enter counts a call. The caller must call Leave after it. Enter returns false after Close: the call must not begin
// then.
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

// Go calls f in a new goroutine. It returns false after Close: f is not called then.
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

// Close lets no more calls begin, and waits for those in progress. It is idempotent.
func (t *Tracker) Close() {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.running.Wait()
}

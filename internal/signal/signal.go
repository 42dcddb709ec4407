// Package signal lets goroutines wait until another goroutine reports a change.
//
// It owns only the channel on which the goroutines wait. It has no goroutine.
package signal

import "sync"

// Signal wakes every goroutine that waits for a change. It is safe for concurrent use.
type Signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// New creates a signal.
func New() *Signal { return &Signal{ch: make(chan struct{})} }

// Wait returns a channel that is closed at the next Fire.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

// Fire wakes every waiting goroutine.
func (s *Signal) Fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}

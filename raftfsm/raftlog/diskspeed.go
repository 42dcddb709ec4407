package raftlog

import (
	"slices"
	"sync"
	"time"
)

const (
	paceSamples      = 256 // appends recorded per window; if there are more, the newest are kept
	WindowsUntilSlow = 10  // consecutive windows after which a disk becomes slow, or normal again
)

// DiskSpeed determines from the durations of appends whether the disk is slow. The caller divides the time into windows
// with EndWindow. A disk counts as slow after WindowsUntilSlow consecutive windows with a median duration above Bound.
// It counts as normal again after the same number of consecutive windows with a median below half of Bound. Windows
// without an append are ignored. A DiskSpeed is safe for concurrent use.
type DiskSpeed struct {
	Bound time.Duration

	mu     sync.Mutex
	window []time.Duration // guarded by mu: durations in the current window
	seen   int             // guarded by mu: appends in the current window
	median time.Duration   // guarded by mu: median of the newest window with an append; 0 = none yet
	streak int             // guarded by mu: windows in sequence above Bound or, if negative, below half of Bound
	slow   bool            // guarded by mu
}

// Add records the duration of an append.
func (p *DiskSpeed) Add(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.window) < paceSamples {
		p.window = append(p.window, d)
	} else {
		p.window[p.seen%paceSamples] = d
	}
	p.seen++
}

// EndWindow ends the current window and begins the next. inFlight is how long the append in progress has taken so far,
// or 0 if there is none. If inFlight is above Bound, it counts as the duration of an append in this window.
func (p *DiskSpeed) EndWindow(inFlight time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if inFlight > p.Bound {
		p.window = append(p.window, inFlight)
	}
	if len(p.window) == 0 {
		return
	}
	slices.Sort(p.window)
	p.median = p.window[len(p.window)/2]
	p.window, p.seen = p.window[:0], 0
	switch {
	case p.median > p.Bound:
		p.streak = max(p.streak, 0) + 1
	case p.median < p.Bound/2:
		p.streak = min(p.streak, 0) - 1
	default:
		p.streak = 0
	}
	if p.streak >= WindowsUntilSlow {
		p.slow = true
	}
	if p.streak <= -WindowsUntilSlow {
		p.slow = false
	}
}

// State returns the newest median and whether the disk is slow.
func (p *DiskSpeed) State() (median time.Duration, slow bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.median, p.slow
}

package peer

import (
	"context"
	"sync"
	"time"
)

const (
	firstBackoff = 20 * time.Millisecond
	maxDown      = 1024 // servers remembered; more than any cluster has
	forgetDown   = time.Minute
)

// health remembers which servers could not be reached, so that nobody dials them in a
// tight loop, and wakes whoever waits for one as soon as it shows up: by a connection in
// either direction, or by word from outside.
type health struct {
	longest time.Duration

	mu   sync.Mutex // guards what follows
	down map[target]*outage
}

// target is what was dialled. Groups and calls fail apart: a server that does not run a
// group yet answers calls.
type target struct {
	server string
	raft   bool
}

type outage struct {
	failures int
	last     time.Time
	err      error
	over     chan struct{}
}

func newHealth(longest time.Duration) *health {
	return &health{longest: longest, down: map[target]*outage{}}
}

// failed notes that t could not be reached.
func (h *health) failed(t target, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.down[t]
	if o == nil {
		h.forget()
		o = &outage{over: make(chan struct{})}
		h.down[t] = o
	}
	o.failures++
	o.last, o.err = time.Now(), err
}

// forget drops servers that nobody has dialled for a while, if there are many.
func (h *health) forget() {
	if len(h.down) < maxDown {
		return
	}
	for t, o := range h.down {
		if time.Since(o.last) > forgetDown {
			close(o.over)
			delete(h.down, t)
		}
	}
}

// contact notes that server is there, and wakes whoever waits for it.
func (h *health) contact(server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range []target{{server, false}, {server, true}} {
		if o := h.down[t]; o != nil {
			close(o.over)
			delete(h.down, t)
		}
	}
}

// blocked returns why t could not be reached last, while it is too early to try again.
func (h *health) blocked(t target) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := h.down[t]
	if o == nil || time.Since(o.last) >= h.pause(o.failures) {
		return nil
	}
	return o.err
}

func (h *health) pause(failures int) time.Duration {
	return min(h.longest, firstBackoff<<min(failures-1, 16))
}

// wait returns at once if t is not known to be down. Otherwise it waits until it shows up,
// or limit has passed, or ctx ends.
func (h *health) wait(ctx context.Context, t target, limit time.Duration) {
	h.mu.Lock()
	o := h.down[t]
	h.mu.Unlock()
	if o == nil {
		return
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-o.over:
	case <-timer.C:
	case <-ctx.Done():
	}
}

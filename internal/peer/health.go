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

// health records which servers could not be reached, and delays further dials to them. When a new connection or
// Port.Alive shows that a server is back, health wakes the requests that wait for it.
type health struct {
	longest time.Duration

	mu   sync.Mutex // guards what follows
	down map[target]*outage
	lost map[target]span // servers without a new connection since a dial failed; Port.Alive does not change it
}

// span has the times of two failed dials to a server: the first one since this node was last connected to the server,
// and the latest one.
type span struct{ first, last time.Time }

// target is a server and the purpose of a connection to it: Raft or calls. Failures are recorded separately for each
// purpose, because a server can answer calls before it runs a Raft group.
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
	return &health{longest: longest, down: map[target]*outage{}, lost: map[target]span{}}
}

// failed records that t could not be reached.
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
	s, known := h.lost[t]
	if !known {
		s.first = o.last
		if len(h.lost) >= maxDown {
			clear(h.lost)
		}
	}
	s.last = o.last
	h.lost[t] = s
}

// The times that decide whether a server counts as lost. A server is lost if dials for Raft have failed for at least
// lostAfter. If the last failed dial is more than staleAfter ago, the state of the server is unknown.
const (
	lostAfter  = 2 * time.Second
	staleAfter = 10 * time.Second
)

// lostSince returns the time at which dials for Raft to a server began to fail. It returns true only if these dials
// have failed for at least lostAfter without a connection in between, and if the last one failed at most staleAfter
// ago.
func (h *health) lostSince(server string) (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s, known := h.lost[target{server, true}]
	if !known || s.last.Sub(s.first) < lostAfter || time.Since(s.last) > staleAfter {
		return time.Time{}, false
	}
	return s.first, true
}

// forget drops the servers whose last failed dial is more than forgetDown ago. It does nothing while fewer than maxDown
// servers are recorded.
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

// contact records that there is a connection with server. It ends the backoff of the server, and wakes the requests
// that wait for it.
func (h *health) contact(server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.lost, target{server, false})
	delete(h.lost, target{server, true})
	h.retry(server)
}

// reported ends the backoff of a server, because another source, such as gossip, reports it as reachable. It wakes the
// requests that wait for the server.
func (h *health) reported(server string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retry(server)
}

// retry ends the backoff of server. h.mu is held.
func (h *health) retry(server string) {
	for _, t := range []target{{server, false}, {server, true}} {
		if o := h.down[t]; o != nil {
			close(o.over)
			delete(h.down, t)
		}
	}
}

// blocked returns nil if t may be dialed now. While the backoff of t lasts, it returns the error of the last dial.
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

// wait waits until t is reachable, the time limit has passed, or ctx ends. It returns at once if no failure of t is
// recorded.
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

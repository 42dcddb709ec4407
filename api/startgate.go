package api

import (
	"context"
	"sync"
	"time"
)

// StartGate delays requests during the start of a node until the node can serve them. A nil *StartGate delays nothing.
// A StartGate is safe for concurrent use.
type StartGate struct {
	once sync.Once
	open chan struct{} // closed by Open
}

// NewStartGate returns a gate that is closed.
func NewStartGate() *StartGate { return &StartGate{open: make(chan struct{})} }

// Open permanently lets all requests continue. A node that stops during its start also calls Open, so that the
// services can refuse the waiting requests. Open is idempotent.
func (g *StartGate) Open() {
	if g != nil {
		g.once.Do(func() { close(g.open) })
	}
}

// Wait blocks until Open is called, limit has passed, or ctx ends. It returns no error in any of these cases. The
// services themselves refuse requests while the node is not ready.
func (g *StartGate) Wait(ctx context.Context, limit time.Duration) {
	if g == nil {
		return
	}
	select {
	case <-g.open:
		return
	default:
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-g.open:
	case <-timer.C:
	case <-ctx.Done():
	}
}

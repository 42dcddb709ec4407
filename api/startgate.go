package api

import (
	"context"
	"sync"
	"time"
)

// StartGate delays requests that arrive while a node starts, until the node can serve them. A nil *StartGate delays
// nothing. It is safe for concurrent use.
type StartGate struct {
	once sync.Once
	open chan struct{} // closed by Open
}

// NewStartGate returns a gate that is closed.
func NewStartGate() *StartGate { return &StartGate{open: make(chan struct{})} }

// Open lets all requests continue, permanently. A node that stops during its start also calls Open, so that the
// services can refuse the waiting requests. Open may be called several times.
func (g *StartGate) Open() {
	if g != nil {
		g.once.Do(func() { close(g.open) })
	}
}

// Wait blocks until Open was called, the given duration has passed, or ctx ends. It returns no error: if the node is
// still not ready, the services refuse the request.
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

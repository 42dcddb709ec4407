package kv

import (
	"math"
	"sync"
	"sync/atomic"
)

// gate counts the running calls that use the database, so that Close can wait for them. Unlike a mutex, it never makes
// one call wait for another.
type gate struct {
	users   atomic.Int64  // number of running calls, plus closedGate if the gate is closed
	closing chan struct{} // closed when Close begins
	drained chan struct{} // closed when the last user has left a closed gate
	once    sync.Once
}

const closedGate = math.MinInt64

func newGate() *gate {
	return &gate{closing: make(chan struct{}), drained: make(chan struct{})}
}

// enter reports whether the database may be used. If so, leave must be called afterwards.
func (g *gate) enter() bool {
	if g.users.Add(1) > 0 {
		return true
	}
	g.leave()
	return false
}

func (g *gate) leave() {
	if g.users.Add(-1) == closedGate {
		g.once.Do(func() { close(g.drained) })
	}
}

// close refuses all later calls of enter. It must be called once.
func (g *gate) close() {
	close(g.closing)
	if g.users.Add(closedGate) == closedGate {
		g.once.Do(func() { close(g.drained) })
	}
}

package actors

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// drain waits until running turns have ended, and releases every actor, so that other hosts can activate it. It returns
// false if the directory did not answer; drain then only waits for the turns.
func (h *Host) drain(ctx context.Context) (answered bool) {
	h.mu.Lock()
	session, d := h.session, h.directory
	types := slices.Sorted(maps.Keys(h.config.Types))
	h.draining = true
	var all []*activation
	for _, a := range h.actors {
		if h.retireForLocked(a, reasonDrained) {
			all = append(all, a)
		}
	}
	h.mu.Unlock()
	if session == "" {
		return true
	}
	var late atomic.Bool
	defer func() { h.parts.Metrics.drains.WithLabelValues(drained(answered, late.Load())).Inc() }()
	telling, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := d.Register(telling, Registration{Session: session, Types: types, Draining: true}); err != nil {
		h.log.Warn("the directory of actors does not answer, so that the actors of this host are not released; the "+
			"leader frees them soon", "error", fault.Text(err), "actors", len(all))
		h.awaitTurns(ctx, all)
		return false
	}
	var ending sync.WaitGroup
	for some := range slices.Chunk(all, batch) {
		ending.Go(func() {
			if !h.awaitTurns(ctx, some) {
				late.Store(true)
			}
			h.deactivate(ctx, some, "")
		})
	}
	ending.Wait()
	return true
}

// drained returns the outcome of a drain.
func drained(answered, late bool) string {
	switch {
	case !answered:
		return "unavailable"
	case late:
		return "timeout"
	}
	return outcomeOK
}

// retireForLocked retires an activation, so that the caller can pass it to awaitTurns. It returns false if the
// activation is already retired or has not finished starting. h.mu must be held.
func (h *Host) retireForLocked(a *activation, reason string) bool {
	select {
	case <-a.ready:
	default:
		return false
	}
	if a.gone {
		return false
	}
	h.retireLocked(a, reason)
	if a.running {
		a.idle = make(chan struct{})
	}
	return true
}

// handOver waits for the running turns of the given actors. It then transfers these actors to the host whose session
// has the given id. It returns how many of the actors were active here. Queued calls continue at the new owner.
func (h *Host) handOver(ctx context.Context, keys []api.Actor, to string) int {
	h.mu.Lock()
	var all []*activation
	for _, key := range keys {
		if a := h.actors[key]; a != nil && a.session == h.session && h.retireForLocked(a, reasonHanded) {
			all = append(all, a)
		}
	}
	h.mu.Unlock()
	h.awaitTurns(ctx, all)
	for some := range slices.Chunk(all, batch) {
		h.deactivate(ctx, some, to)
	}
	return len(all)
}

// awaitTurns waits until none of the given activations has a running turn. All of them must be retired. awaitTurns
// waits for each activation at most as long as the drain timeout of that activation, counted from the call. It returns
// false if some turns did not end in time.
func (h *Host) awaitTurns(ctx context.Context, all []*activation) (ended bool) {
	ended = true
	begun := time.Now()
	for _, a := range all {
		h.mu.Lock()
		idle := a.idle
		h.mu.Unlock()
		if idle == nil {
			continue
		}
		limit := time.NewTimer(time.Until(begun.Add(a.settings.DrainTimeout)))
		select {
		case <-idle:
		case <-limit.C:
			ended = false
			h.log.Warn("a call of an actor did not end in time: the actor moves while it runs", "type", a.key.Type,
				"actor", a.key.ID, "limit", a.settings.DrainTimeout)
		case <-ctx.Done():
			ended = false
		}
		limit.Stop()
	}
	return ended
}

// close drains the host and ends its goroutines.
func (h *Host) close(ctx context.Context) {
	drained := h.drain(ctx)
	if drained {
		h.leaveSession()
	}
	h.mu.Lock()
	h.forgetLocked()
	h.closed = true
	h.mu.Unlock()
	h.end()
	h.running.Wait()
	h.endTurns()
	h.turns.Wait()
	if drained {
		h.endHolding()
	}
}

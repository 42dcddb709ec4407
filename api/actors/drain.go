package actors

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// drain ends the activations of this host, waits for their running turns, and releases the actors, so that other hosts
// can activate them. If the directory does not answer, drain does not release the actors and returns false. If the host
// has no session, drain only ends the activations and returns true. After drain has released the actors, further calls
// of drain do nothing and return true.
func (h *Host) drain(ctx context.Context) (answered bool) {
	h.mu.Lock()
	if h.drained {
		h.mu.Unlock()
		return true
	}
	session, revision, d := h.session, h.revision, h.directory
	types := slices.Sorted(maps.Keys(h.config.Types))
	h.draining = true
	var all []*activation
	for _, a := range h.actors {
		if h.drainLocked(a) {
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
	described := Registration{Session: session, Revision: revision, Types: types, Draining: true}
	if _, err := d.Register(telling, described); err != nil {
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
			h.deactivate(ctx, some, Target{})
		})
	}
	ending.Wait()
	h.mu.Lock()
	h.drained = true
	h.mu.Unlock()
	return true
}

// drained returns the outcome of a drain, as a label value for the metric of drains. answered is the result of drain.
// late is true if a turn did not end in time.
func drained(answered, late bool) string {
	switch {
	case !answered:
		return "unavailable"
	case late:
		return "timeout"
	}
	return outcomeOK
}

// drainLocked retires an activation and returns true. The caller must then pass the activation to awaitTurns. If the
// activation is already retired or is still starting, drainLocked does nothing and returns false. The caller holds
// h.mu.
func (h *Host) drainLocked(a *activation) bool {
	if a.starting != nil || a.gone {
		return false
	}
	h.retireLocked(a, reasonDrained)
	if a.running {
		a.idle = make(chan struct{})
	}
	return true
}

// awaitTurns waits until the running turns of the given retired activations have ended. It returns false if a turn did
// not end in time or if ctx ended first. Each turn may take the drain timeout of its actor type, counted from the call
// of awaitTurns. After this time, awaitTurns cancels the turn and waits up to cancelTime for its end. The activations
// are handled one after the other, so these additional waits add up.
//
// Only a draining host may call awaitTurns, because the application may continue with a canceled turn. A host that
// could activate the actor again would then run two turns of the actor at the same time.
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
		select {
		case <-idle: // also if an earlier activation has used up the time
			continue
		default:
		}
		limit := time.NewTimer(time.Until(begun.Add(a.settings.DrainTimeout)))
		select {
		case <-idle:
		case <-limit.C:
			ended = false
			h.log.Warn("a call of an actor did not end in time: it is canceled, and the actor moves", "type",
				a.key.Type, "actor", a.key.ID, "limit", a.settings.DrainTimeout, "hint",
				"raise drainOngoingCallTimeout")
			h.cancelTurns(ctx, a, idle)
		case <-ctx.Done():
			ended = false
		}
		limit.Stop()
	}
	return ended
}

// errDrained is the error of a turn that outlasts the drain timeout.
var errDrained error = &fault.Error{Code: fault.Indeterminate, Op: "actors.Call",
	Msg:  "the node stops, and the call did not end within the drain timeout of its type",
	Hint: "look at the state of the actor before you call again"}

// close drains the host and ends its goroutines.
func (h *Host) close(ctx context.Context) {
	drained := h.drain(ctx)
	h.mu.Lock()
	h.closed = true // no new session begins
	h.mu.Unlock()
	if drained {
		h.leaveSession()
	}
	h.mu.Lock()
	h.forgetLocked()
	h.mu.Unlock()
	h.end()
	h.running.Wait()
	h.endTurns()
	h.turns.Close()
	if drained {
		h.endHolding()
	}
}

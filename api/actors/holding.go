package actors

import (
	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// maxEarlier is the maximum number of actors in Host.earlier. Each of them takes about 100 bytes.
//
// If the previous process of the node did not end cleanly, the application may still have actors in memory. Therefore
// the host makes the application deactivate each actor before the first activation of the actor. Host.earlier has the
// actors that were deactivated. When this map is full, it is cleared. The actors that were in it may then be
// deactivated a second time.
const maxEarlier = 100_000

// beginHolding records durably that the application may have actors in memory from now on. If an earlier process of
// this node may have left actors in the memory of the application, beginHolding also creates Host.earlier.
func (h *Host) beginHolding() {
	h.mu.Lock()
	holding := h.holding
	h.holding = true
	h.mu.Unlock()
	if holding || h.parts.Holdings == nil {
		return
	}
	held, err := h.parts.Holdings.Begin(h.app)
	if err != nil {
		h.log.Warn("it was not recorded that the application hosts actors: if this process is killed, the next one "+
			"does not deactivate them", "error", fault.Text(err))
	}
	if !held {
		return
	}
	h.log.Info("an earlier process of this node has not deactivated its actors: each actor is deactivated in the " +
		"application before its first activation")
	h.mu.Lock()
	defer h.mu.Unlock()
	h.earlier = map[api.Actor]struct{}{}
}

// endHolding records durably that the application has no actors in memory. It does nothing if this is not certain, for
// example because the application has not confirmed a deactivation.
func (h *Host) endHolding() {
	h.mu.Lock()
	clean := h.holding && h.earlier == nil && len(h.kept) == 0 && len(h.actors) == 0
	h.mu.Unlock()
	if !clean || h.parts.Holdings == nil {
		return
	}
	if err := h.parts.Holdings.End(h.app); err != nil {
		h.log.Warn("it was not recorded that the application holds no actors", "error", fault.Text(err))
	}
}

// mayHoldLocked reports whether an earlier process of this node may have left the actor in the memory of the
// application. The caller holds h.mu.
func (h *Host) mayHoldLocked(key api.Actor) bool {
	if h.earlier == nil {
		return false
	}
	_, dropped := h.earlier[key]
	return !dropped
}

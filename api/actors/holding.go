package actors

import (
	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// maxEarlier is how many actors a host remembers as dropped after an unclean start. Each takes about 100 bytes.
const maxEarlier = 100_000

// beginHolding records that the application may hold actors from now on. It also learns whether the application may
// hold some since an earlier process of this node.
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

// endHolding records that the application holds no actors. It does nothing if the application may hold some: it did not
// answer, or the actors of an earlier process were not all activated again.
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

// mayHoldLocked reports whether the application may hold an actor since an earlier process of this node. h.mu must be
// held.
func (h *Host) mayHoldLocked(key api.Actor) bool {
	if h.earlier == nil {
		return false
	}
	_, dropped := h.earlier[key]
	return !dropped
}

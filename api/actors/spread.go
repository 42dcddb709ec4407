package actors

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
)

const (
	// quietTime is for how long an actor that is preferred for a transfer has had no turn.
	quietTime = time.Second
	// partTime is how long the method give waits for running turns to end. An actor whose turn lasts longer stays
	// here.
	partTime = 5 * time.Second
)

// givesLocked reports whether this host may transfer actors to hosts with fewer actors at the moment. The caller holds
// h.mu.
func (h *Host) givesLocked() bool { return !h.parts.KeepActors && !h.giving && !h.draining }

// adopt activates actors that another host has transferred to this host. Only active actors are counted, and
// deactivated when they are idle. adopt does not inform the application, which learns of an actor with its first turn.
func (h *Host) adopt(all []api.Actor) {
	slots := make(chan struct{}, parallel)
	var adopting sync.WaitGroup
	for _, key := range all {
		if h.owns(key) {
			continue // by a call
		}
		slots <- struct{}{}
		adopting.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(h.life, h.parts.PlaceTime)
			defer cancel()
			a, err := h.enter(ctx, &Call{Actor: key}, h.parts.NewID())
			if err != nil {
				return // the next call activates it
			}
			h.leave(a)
		})
	}
	adopting.Wait()
}

// give transfers p.Give actors to the host p.To, so that the hosts have similar numbers of actors. It prefers actors
// that have had no turn for quietTime. An actor with a running turn is transferred when the turn has ended, and its
// waiting calls continue at the new owner. give never ends a turn: if it lasts longer than partTime, the actor stays.
// Actors with timers stay, too, because timers end with the activation.
//
// A transfer neither loses nor repeats a turn:
//
//   - An activation is retired only while no turn runs, and gets no turn afterwards. So its waiting calls have not
//     reached the application, and their senders look for the new owner.
//   - The activation at the new owner has a later epoch. Its first turn begins after the transfer.
//   - If the outcome of the transfer is unknown, release repeats the transfer. This host does not activate the actor in
//     the meantime.
func (h *Host) give(p *Advice) {
	if p.Give <= 0 {
		return
	}
	h.mu.Lock()
	if !h.givesLocked() {
		h.mu.Unlock()
		return
	}
	h.giving = true
	idle, busy := h.chooseLocked(p)
	parted := make(chan *activation, len(busy))
	for _, a := range idle {
		h.retireLocked(a, reasonSpread)
	}
	for _, a := range busy {
		a.parts = parted
	}
	h.mu.Unlock()
	to := Target{Session: p.To}
	h.deactivate(h.turnLife, idle, to)
	limit := time.NewTimer(partTime)
	defer limit.Stop()
	for left := len(busy); left > 0; {
		select {
		case a := <-parted:
			some := append(received(parted), a)
			left -= len(some)
			h.deactivate(h.turnLife, some, to)
		case <-limit.C:
			left = 0
		case <-h.life.Done():
			left = 0
		}
	}
	h.mu.Lock()
	for _, a := range busy {
		a.parts = nil
	}
	h.mu.Unlock()
	h.deactivate(h.turnLife, received(parted), to)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.giving = false
}

// chooseLocked returns at most p.Give actors that can be transferred. It prefers idle actors, which have no running
// turn. If these are too few, it adds busy ones. The caller holds h.mu.
func (h *Host) chooseLocked(p *Advice) (idle, busy []*activation) {
	now := time.Since(h.begun)
	var recent []*activation
	for _, a := range h.actors {
		switch {
		case a.starting != nil, a.gone, a.session != h.session, len(a.timers) > 0,
			!slices.Contains(p.Types, a.key.Type):
		case a.running:
			busy = appendUpTo(busy, a, p.Give)
		case now-a.last < quietTime:
			recent = appendUpTo(recent, a, p.Give)
		default:
			if idle = append(idle, a); len(idle) == p.Give {
				return idle, nil
			}
		}
	}
	idle = append(idle, recent[:min(len(recent), p.Give-len(idle))]...)
	return idle, busy[:min(len(busy), p.Give-len(idle))]
}

func appendUpTo(all []*activation, a *activation, most int) []*activation {
	if len(all) < most {
		all = append(all, a)
	}
	return all
}

// received returns what the channel holds.
func received(c <-chan *activation) (all []*activation) {
	for {
		select {
		case a := <-c:
			all = append(all, a)
		default:
			return all
		}
	}
}

// partLocked is called when a turn has ended. It retires the activation and returns true if the method give waits for
// this activation, unless the actor has timers. The caller holds h.mu.
func (h *Host) partLocked(a *activation) bool {
	if a.parts == nil || len(a.timers) > 0 {
		return false
	}
	h.retireLocked(a, reasonSpread)
	a.parts <- a // it has room
	a.parts = nil
	return true
}

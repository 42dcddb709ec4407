package actors

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

const (
	// quietTime is the time without a turn after which an actor is preferred for a transfer.
	quietTime = time.Second
	// partTime is how long a transfer waits for running turns to end. An actor whose turn lasts longer stays here.
	partTime = 5 * time.Second
)

// parting is a transfer of actors to another host.
type parting struct {
	to    Target
	idle  []*activation    // actors without a running turn, which are transferred at once
	busy  []*activation    // actors with a running turn
	ended chan *activation // receives the actors of busy whose turn has ended; has room for all
}

// reason returns the value of the label reason in the metric of deactivations.
func (p *parting) reason() string {
	if p.to.Keep {
		return reasonHanded
	}
	return reasonSpread
}

// givesLocked reports whether this host may now transfer actors to hosts with fewer actors. The caller holds h.mu.
func (h *Host) givesLocked() bool { return !h.parts.KeepActors && !h.giving && !h.draining }

// adopt activates actors that another host has transferred to this host, so that this host counts them and can
// deactivate them when they are idle. adopt does not notify the application. The application learns about an actor in
// the first turn of the actor.
func (h *Host) adopt(all []api.Actor) {
	slots := make(chan struct{}, parallel)
	var adopting sync.WaitGroup
	for _, key := range all {
		if h.owns(key) {
			continue // a call has activated the actor
		}
		slots <- struct{}{}
		adopting.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(h.life, h.parts.PlaceTime)
			defer cancel()
			a, err := h.enter(ctx, &Call{Actor: key}, h.parts.NewID())
			if err != nil {
				return // the next call activates the actor
			}
			h.leave(a)
		})
	}
	adopting.Wait()
}

// give transfers at most p.Give actors to the host p.To, so that the hosts have similar numbers of actors. It prefers
// actors that have had no turn for quietTime. Actors with timers stay, because timers end with the activation.
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
	parting := h.partLocked(idle, busy, Target{Session: p.To})
	h.mu.Unlock()
	h.transfer(parting)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.giving = false
}

// handOver transfers the given actors to the host with the session id target, at the request of an operator. Its
// results are those of Runtime.HandOver. If the node is stopping, it returns fault.ActorMoved.
func (h *Host) handOver(ctx context.Context, keys []api.Actor, target string) (moved, busy int, err error) {
	type result struct{ moved, busy int }
	got := make(chan result, 1)
	if !h.turns.Go(func() {
		h.mu.Lock()
		idle, running := h.activeLocked(keys)
		p := h.partLocked(idle, running, Target{Session: target, Keep: true})
		h.mu.Unlock()
		moved, busy := h.transfer(p)
		got <- result{moved, busy}
	}) {
		return 0, 0, errMoved("the node is stopping")
	}
	select {
	case r := <-got:
		return r.moved, r.busy, nil
	case <-ctx.Done():
		return 0, 0, &fault.Error{Code: fault.Indeterminate, Op: "actors.HandOver", Err: context.Cause(ctx),
			Msg: "the request ended before the actors had moved"}
	}
}

// activeLocked returns the given actors that are active here. idle has the actors without a running turn, and busy has
// the actors with one. The caller holds h.mu.
func (h *Host) activeLocked(keys []api.Actor) (idle, busy []*activation) {
	for _, key := range keys {
		switch a := h.actors[key]; {
		case a == nil, a.starting != nil, a.gone, a.session != h.session:
		case a.running:
			busy = append(busy, a)
		default:
			idle = append(idle, a)
		}
	}
	return idle, busy
}

// partLocked begins to transfer actors to another host. The caller holds h.mu. After the call, the caller must release
// h.mu and pass the result to transfer.
//
// An idle actor is transferred at once. A busy actor is transferred when its turn has ended, but stays if the turn
// lasts longer than partTime. Waiting calls continue at the new owner.
//
// A transfer neither loses nor repeats a turn:
//
//   - An activation is retired only while no turn runs, and gets no turn afterwards. Its waiting calls have not reached
//     the application, so they can be sent to the new owner.
//   - The activation at the new owner has a later epoch. Its first turn begins after the transfer.
//   - If the outcome of the transfer is unknown, this host repeats the request. Meanwhile it does not activate the
//     actor.
func (h *Host) partLocked(idle, busy []*activation, to Target) *parting {
	p := &parting{to: to, idle: idle, busy: busy, ended: make(chan *activation, len(busy))}
	for _, a := range idle {
		h.retireLocked(a, p.reason())
		a.leaving = true
	}
	for _, a := range busy {
		a.parts = p
	}
	return p
}

// transfer completes the transfer p. It waits at most partTime for running turns. It returns how many actors have
// moved, and how many stay because they are busy.
func (h *Host) transfer(p *parting) (moved, stayed int) {
	h.deactivate(h.turnLife, p.idle, p.to)
	moved = len(p.idle)
	limit := time.NewTimer(partTime)
	defer limit.Stop()
	for waiting := len(p.busy); waiting > 0; {
		select {
		case a := <-p.ended:
			some := append(received(p.ended), a)
			waiting -= len(some)
			moved += len(some)
			h.deactivate(h.turnLife, some, p.to)
		case <-limit.C:
			waiting = 0
		case <-h.life.Done():
			waiting = 0
		}
	}
	h.mu.Lock()
	for _, a := range p.busy {
		if a.parts == p {
			a.parts = nil
			stayed++
		}
	}
	h.mu.Unlock()
	last := received(p.ended)
	h.deactivate(h.turnLife, last, p.to)
	return moved + len(last), stayed
}

// chooseLocked returns at most p.Give actors that can be transferred. It prefers actors without a turn in the last
// quietTime. If these are too few, it adds other idle actors, and then busy actors, which have a running turn. The
// caller holds h.mu.
func (h *Host) chooseLocked(p *Advice) (idle, busy []*activation) {
	now := time.Since(h.begun)
	var recent []*activation
	for _, a := range h.actors {
		switch {
		case a.starting != nil, a.gone, a.session != h.session, len(a.timers) > 0,
			!slices.Contains(p.Types, a.key.Type):
		case a.parts != nil: // an operator moves it
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

// received returns all activations that are in the channel, without waiting.
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

// partedLocked is called when a turn of the activation a has ended. If a transfer waits for the end of this turn,
// partedLocked retires a and returns true. Otherwise it returns false. An actor with timers stays, unless an operator
// moves it. The caller holds h.mu.
func (h *Host) partedLocked(a *activation) bool {
	p := a.parts
	if p == nil || len(a.timers) > 0 && !p.to.Keep {
		return false
	}
	h.retireLocked(a, p.reason())
	a.leaving = true
	p.ended <- a // the channel has room
	return true
}

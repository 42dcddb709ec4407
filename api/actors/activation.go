package actors

import (
	"context"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// maxQueued is how many calls may wait for one actor.
const maxQueued = 1000

// activation is an actor that this host owns, or is about to own. Host.mu guards it. A host may have hundreds of
// thousands of activations. To save memory, an activation has channels only while it starts or ends.
type activation struct {
	key      api.Actor
	settings *TypeConfig
	starting chan struct{} // closed when the directory has answered; nil = it has answered
	done     chan struct{} // closed when the activation is no longer in Host.actors; nil = no call waits

	session  string // session of the host
	revision uint64
	epoch    uint64
	token    string

	chain   string // call chain of the running turn
	depth   int    // number of running turns of the chain, more than 1 with reentrant calls
	queue   []*waiter
	last    time.Duration // end of the last turn, since Host.begun
	timers  map[string]*timer
	turns   *turn         // turns in the application
	idle    chan struct{} // closed when the running turn of a gone activation has ended; nil = awaitTurns does not wait
	parts   *parting      // the transfer that waits for the running turn; nil = none
	running bool          // a turn is running
	gone    bool          // the activation gets no further turns
	leaving bool          // Host.deactivate removes the activation, even if its session ends earlier
	dropped bool          // the application has dropped the actor, or never had it

	canceled bool // its turns are canceled, also those that have not begun in the application
}

// waiter is a call that waits for its turn.
type waiter struct {
	chain   string
	granted chan error // capacity 1
}

func errMoved(why string) error {
	return fault.New(fault.ActorMoved, "actors.Call", why)
}

func errGaveUp(ctx context.Context) error {
	return &fault.Error{Code: fault.Timeout, Op: "actors.Call", Err: context.Cause(ctx),
		Msg: "the call ended before the actor had time for it"}
}

// enter begins a turn for the call c. It waits until the actor is free, and activates the actor if it is not active. If
// the error is nil, the caller must call leave at the end of the turn.
//
// chain is the call chain of the new turn. A reentrant call runs in the chain of the running turn instead, and ignores
// this parameter. The field chain of the activation does not change before the caller calls leave.
func (h *Host) enter(ctx context.Context, c *Call, chain string) (*activation, error) {
	for {
		a, wait, err := h.tryEnter(c, chain)
		switch {
		case err != nil:
			return nil, err
		case wait == nil:
			return a, nil
		}
		switch wait := wait.(type) {
		case *waiter:
			if err := h.awaitTurn(ctx, a, wait); err != nil {
				return nil, err
			}
			return a, nil
		case chan struct{}:
			select {
			case <-wait:
			case <-ctx.Done():
				return nil, errGaveUp(ctx)
			}
		default:
			if err := h.activate(ctx, a); err != nil {
				return nil, err
			}
		}
	}
}

// newActivation returns an activation that has not started. It copies the strings of key, because they may be parts of
// a request that would otherwise stay in memory.
func newActivation(key api.Actor, settings *TypeConfig) *activation {
	key = api.Actor{Type: unique.Make(key.Type).Value(), ID: strings.Clone(key.ID)}
	return &activation{key: key, settings: settings, starting: make(chan struct{}), dropped: true}
}

// acceptedLocked returns the settings of an actor type. It returns nil if this host activates no actors of that type
// at the moment. The caller holds h.mu.
func (h *Host) acceptedLocked(kind string) *TypeConfig {
	if h.session == "" || h.draining {
		return nil
	}
	return h.config.Types[kind]
}

// unknown is a result of tryEnter. It means that the actor has no activation here yet, so the caller must activate the
// actor in the directory.
type unknown struct{}

// tryEnter tries to begin a turn for c, and returns the activation of the actor. It returns an error in these cases:
//
//   - This node does not host the actor.
//   - c belongs to an activation that has ended.
//   - A reentrant call is too deep.
//   - Too many calls wait for the actor.
//
// Otherwise the type of the result wait says what the caller must do:
//
//   - nil: nothing. The turn has begun.
//   - *waiter: wait until the queue grants the turn. The turn has then begun.
//   - chan struct{}: wait until the channel is closed, because the activation is starting or ending. Then try again.
//   - unknown: activate the actor in the directory. Then try again.
func (h *Host) tryEnter(c *Call, chain string) (a *activation, wait any, err error) {
	key := c.Actor
	h.mu.Lock()
	defer h.mu.Unlock()
	a = h.actors[key]
	if c.only != nil && (a != c.only || a.gone) {
		return nil, nil, errMoved("the activation has ended")
	}
	if a == nil {
		settings := h.acceptedLocked(key.Type)
		if settings == nil {
			return nil, nil, errMoved("this node does not host the actor")
		}
		a = newActivation(key, settings)
		h.actors[a.key] = a
		return a, unknown{}, nil
	}
	switch {
	case a.starting != nil:
		return a, a.starting, nil
	case a.running && !a.canceled && a.settings.Reentrancy && first(c.Header, headerReentrancy) == a.chain:
		// The call is a part of the turn, which must be able to end even if the activation is retired.
		if a.depth >= a.settings.MaxDepth {
			return nil, nil, errDepth
		}
		a.depth++
		return a, nil, nil
	case a.gone:
		if a.done == nil {
			a.done = make(chan struct{})
		}
		return a, a.done, nil
	case !a.running:
		h.beginLocked(a, chain)
		return a, nil, nil
	case len(a.queue) >= maxQueued:
		return nil, nil, &fault.Error{Code: fault.Overloaded, Op: "actors.Call",
			Msg:  "too many calls wait for the actor",
			Hint: "spread the work over more actors"}
	}
	w := &waiter{chain: chain, granted: make(chan error, 1)}
	a.queue = append(a.queue, w)
	h.parts.Metrics.waiting.WithLabelValues(key.Type).Inc()
	return a, w, nil
}

// errDepth is the error of a reentrant call that is too deep.
var errDepth = fault.New(fault.TooLarge, "actors.Call", "maximum stack depth exceeded")

func (h *Host) awaitTurn(ctx context.Context, a *activation, w *waiter) error {
	select {
	case err := <-w.granted:
		return err
	case <-ctx.Done():
	}
	h.mu.Lock()
	if i := slices.Index(a.queue, w); i >= 0 {
		a.queue = slices.Delete(a.queue, i, i+1)
		h.parts.Metrics.waiting.WithLabelValues(a.key.Type).Dec()
		h.mu.Unlock()
		return errGaveUp(ctx)
	}
	h.mu.Unlock()
	if err := <-w.granted; err == nil {
		h.leave(a)
	}
	return errGaveUp(ctx)
}

// leave ends a turn and begins the next one in the queue.
func (h *Host) leave(a *activation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.depth--; a.depth > 0 {
		return
	}
	h.endLocked(a)
	switch {
	case a.gone:
		h.settleLocked(a)
	case h.partedLocked(a):
	case len(a.queue) > 0:
		next := a.queue[0]
		if a.queue = a.queue[1:]; len(a.queue) == 0 {
			a.queue = nil
		}
		h.parts.Metrics.waiting.WithLabelValues(a.key.Type).Dec()
		h.beginLocked(a, next.chain)
		next.granted <- nil
	}
}

// beginLocked begins a turn. The caller holds h.mu.
func (h *Host) beginLocked(a *activation, chain string) {
	a.running, a.chain, a.depth = true, chain, 1
	if a.settings.Reentrancy {
		h.chains[chain]++
	}
}

// endLocked records that no turn of the activation is running any more. If reentrant calls run several turns at the
// same time, endLocked is called only after the last of these turns. The caller holds h.mu.
func (h *Host) endLocked(a *activation) {
	if a.settings.Reentrancy {
		if h.chains[a.chain]--; h.chains[a.chain] == 0 {
			delete(h.chains, a.chain)
		}
	}
	a.running, a.chain, a.last = false, "", time.Since(h.begun)
}

// retireLocked ends an activation. From then on, only reentrant calls of the running turn can begin. Calls in the queue
// fail with fault.ActorMoved, so that their senders look for the new owner. reason is the label value in the metric of
// deactivations. The caller holds h.mu.
func (h *Host) retireLocked(a *activation, reason string) {
	if !a.gone {
		m := h.parts.Metrics
		m.deactivations.WithLabelValues(a.key.Type, reason).Inc()
		m.active.WithLabelValues(a.key.Type).Dec()
		m.waiting.WithLabelValues(a.key.Type).Sub(float64(len(a.queue)))
	}
	a.gone, a.parts = true, nil
	for _, t := range a.timers {
		t.stop()
	}
	a.timers = nil
	for _, w := range a.queue {
		w.granted <- errMoved("the actor moves to another host")
	}
	a.queue = nil
}

// settleLocked completes the end of a retired activation. It does nothing while a turn is running. If no turn is
// running, it wakes awaitTurns. If, in addition, the session of the activation has ended and the field leaving is not
// set, settleLocked also removes the activation.
//
// If settleLocked does not remove the activation, Host.deactivate notifies the application and then removes the
// activation. Before the removal, this host does not activate the actor again, so no turn runs during the deactivation.
// The caller holds h.mu.
func (h *Host) settleLocked(a *activation) {
	if !a.running && !a.leaving && (a.session == "" || a.session != h.session) {
		h.removeLocked(a)
	}
	if a.idle != nil && !a.running {
		close(a.idle)
		a.idle = nil
	}
}

func (h *Host) removeLocked(a *activation) {
	if h.actors[a.key] == a {
		delete(h.actors, a.key)
		if a.done != nil {
			close(a.done)
		}
		if !a.dropped {
			h.kept[a.key] = struct{}{}
		}
	}
}

// activate makes this host the owner of an actor in the directory. After an earlier activation, the application may
// still have the actor in memory, with outdated state. In this case, activate first makes the application deactivate
// the actor.
func (h *Host) activate(ctx context.Context, a *activation) (err error) {
	h.mu.Lock()
	session, revision, d := h.session, h.revision, h.directory
	if _, kept := h.kept[a.key]; kept {
		delete(h.kept, a.key)
		a.dropped = false
	}
	if h.mayHoldLocked(a.key) {
		a.dropped = false
	}
	h.mu.Unlock()
	var got Activation
	err = h.drop(ctx, a)
	if err == nil {
		if got, err = d.Activate(ctx, session, a.key.Type, a.key.ID); err != nil {
			err = notDelivered(err)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	close(a.starting)
	a.starting = nil
	defer func() { h.parts.Metrics.activations.WithLabelValues(a.key.Type, outcomeOf(err)).Inc() }()
	switch {
	case err != nil:
	case got.Owner.Session != session:
		err = errMoved("the actor is active on node " + got.Owner.Node)
	case h.session != session:
		err = errMoved("the session of the host has ended")
	case h.draining: // the drain began before this activation was complete, and so does not release it
		err = errMoved("the host gives up its actors")
		a.gone = true
		h.mu.Unlock()
		h.release(h.turnLife, []Released{{Type: a.key.Type, ID: a.key.ID, Epoch: got.Epoch}}, Target{})
		h.mu.Lock()
	default:
		a.session, a.revision, a.epoch, a.token = session, revision, got.Epoch, got.Token
		a.last = time.Since(h.begun)
		h.parts.Metrics.active.WithLabelValues(a.key.Type).Inc()
		return nil
	}
	a.gone = true
	h.removeLocked(a)
	return err
}

// notDelivered converts an error of the directory into the error of a call. If the owner of the actor could not be
// found, the result is fault.Unavailable, so that the caller may retry. The application has not received the call in
// this case. Other errors stay unchanged.
func notDelivered(err error) error {
	switch fault.CodeOf(err) {
	case fault.NotFound, fault.Indeterminate, fault.NotLeader, fault.Unavailable:
		return &fault.Error{Code: fault.Unavailable, Op: "actors.Call",
			Msg: "the owner of the actor is not known", Err: err}
	}
	return err
}

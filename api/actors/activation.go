package actors

import (
	"context"
	"slices"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// maxQueued is how many calls may wait for one actor.
const maxQueued = 1000

// activation is an actor that this host owns, or asks the directory for. Host.mu guards it.
type activation struct {
	key      api.Actor
	settings TypeConfig
	ready    chan struct{} // closed when the directory has answered
	done     chan struct{} // closed when the activation is no longer in Host.actors

	session  string // of the host
	revision uint64
	epoch    uint64
	token    string

	running bool // a turn is in the application
	chain   string
	depth   int
	queue   []*waiter
	last    time.Time // end of the last turn
	timers  map[string]*timer
	gone    bool          // gets no further turns
	dropped bool          // the application has dropped the actor, or never had it
	idle    chan struct{} // closed when the running turn of a gone activation has ended; nil = not waited for
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

// enter waits for the turn of a call. The caller must call leave if the error is nil.
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

func newActivation(key api.Actor, settings TypeConfig) *activation {
	return &activation{key: key, settings: settings, ready: make(chan struct{}), done: make(chan struct{}),
		dropped: true}
}

// unknown means that the caller asks the directory for the actor.
type unknown struct{}

// tryEnter tries to begin a turn for c, and returns the activation of the actor. If the results wait and err are both
// nil, the turn has begun. If only err is nil, the type of the result wait says what the caller must do:
//
//   - *waiter: wait until the queue grants the turn. Then the turn has begun.
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
		settings, hosted := h.config.Types[key.Type]
		if !hosted || h.session == "" || h.draining {
			return nil, nil, errMoved("this node does not host the actor")
		}
		a = newActivation(key, settings)
		h.actors[key] = a
		return a, unknown{}, nil
	}
	select {
	case <-a.ready:
	default:
		return a, a.ready, nil
	}
	switch {
	case a.gone:
		return a, a.done, nil
	case !a.running:
		a.running, a.chain, a.depth = true, chain, 1
		return a, nil, nil
	case a.settings.Reentrancy && chain != "" && chain == a.chain:
		if a.depth >= a.settings.MaxDepth {
			return nil, nil, errDepth
		}
		a.depth++
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

// leave ends a turn and begins the next one.
func (h *Host) leave(a *activation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.depth--; a.depth > 0 {
		return
	}
	a.running, a.chain, a.last = false, "", time.Now()
	switch {
	case a.gone:
		h.settleLocked(a)
	case len(a.queue) > 0:
		next := a.queue[0]
		if a.queue = a.queue[1:]; len(a.queue) == 0 {
			a.queue = nil
		}
		h.parts.Metrics.waiting.WithLabelValues(a.key.Type).Dec()
		a.running, a.chain, a.depth = true, next.chain, 1
		next.granted <- nil
	}
}

// retireLocked ends an activation. The activation gets no further turns, and calls in its queue fail with
// fault.ActorMoved, so that they are sent to the new owner. The parameter reason is a label value of the metric of
// deactivations. h.mu must be held.
func (h *Host) retireLocked(a *activation, reason string) {
	if !a.gone {
		m := h.parts.Metrics
		m.deactivations.WithLabelValues(a.key.Type, reason).Inc()
		m.active.WithLabelValues(a.key.Type).Dec()
		m.waiting.WithLabelValues(a.key.Type).Sub(float64(len(a.queue)))
	}
	a.gone = true
	for _, t := range a.timers {
		t.stop()
	}
	a.timers = nil
	for _, w := range a.queue {
		w.granted <- errMoved("the actor moves to another host")
	}
	a.queue = nil
}

// settleLocked removes a retired activation, if its session has ended and no turn is running. If the session is still
// valid, settleLocked does not remove it. In that case, the goroutine that retired the activation releases it in the
// directory and then removes it. h.mu must be held.
func (h *Host) settleLocked(a *activation) {
	if !a.running && (a.session == "" || a.session != h.session) {
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
		close(a.done)
		if !a.dropped {
			h.kept[a.key] = struct{}{}
		}
	}
}

// activate makes this host the owner of an actor in the directory. If the application still holds the actor from an
// earlier activation, the application must first deactivate it, because its state in memory may be outdated: another
// host may have changed the actor since.
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
	close(a.ready)
	defer func() { h.parts.Metrics.activations.WithLabelValues(a.key.Type, outcomeOf(err)).Inc() }()
	switch {
	case err != nil:
	case got.Owner.Session != session:
		err = errMoved("the actor is active on node " + got.Owner.Node)
	case h.session != session || h.draining:
		err = errMoved("the session of the host has ended")
	default:
		a.session, a.revision, a.epoch, a.token, a.last = session, revision, got.Epoch, got.Token, time.Now()
		a.dropped = false
		h.parts.Metrics.active.WithLabelValues(a.key.Type).Inc()
		return nil
	}
	a.gone = true
	h.removeLocked(a)
	return err
}

// notDelivered converts an error of the directory into the error of the call. If the directory could not name an
// owner, the result is fault.Unavailable: the application has not got the call, and the caller may retry.
func notDelivered(err error) error {
	switch fault.CodeOf(err) {
	case fault.NotFound, fault.Indeterminate, fault.NotLeader, fault.Unavailable:
		return &fault.Error{Code: fault.Unavailable, Op: "actors.Call",
			Msg: "the owner of the actor is not known", Err: err}
	}
	return err
}

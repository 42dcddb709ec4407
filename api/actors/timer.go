package actors

import (
	"context"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/internal/fault"
)

// maxTimers is how many timers an actor may have.
const maxTimers = 1000

// timer is a timer of an activation. It ends with it. Host.mu guards the fields.
type timer struct {
	Reminder
	plan Plan
	stop func() bool // of the next tick
}

// SetTimer starts a timer of an actor, and replaces a timer with the same name. If the actor is not active, SetTimer
// activates it on this node. If this node does not host the type, SetTimer waits up to Options.HostWait for that, and
// then returns an error. It also returns an error if the actor is active on another node. All errors are *api.Error.
func (s *Service) SetTimer(ctx context.Context, t *Reminder) error {
	if err := checkReminder(t); err != nil {
		return err
	}
	plan, err := s.runtime.options.Plan(t)
	if err == nil {
		start := func(h *Host, a *activation) error { return h.setTimerLocked(a, t, plan) }
		if err = s.onHost(t.Actor, start); err == errInactive { //nolint:errorlint // the value itself is the signal
			err = s.activated(ctx, t.Actor, start)
		}
	}
	if err != nil {
		return reminderFailed(api.CodeTimerCreate, "error creating actor timer "+api.Shorten(t.Name), t.Actor, err)
	}
	return nil
}

// RemoveTimer ends a timer of an actor. There need not be one. All errors are *api.Error.
func (s *Service) RemoveTimer(a api.Actor, name string) error {
	if err := checkReminderName(a, name); err != nil {
		return err
	}
	_ = s.onHost(a, func(_ *Host, active *activation) error {
		if t := active.timers[name]; t != nil {
			t.stop()
			delete(active.timers, name)
		}
		return nil
	}) // an actor that is not active has no timers
	return nil
}

// onHost calls f with the activation of an actor on this node. f must not block.
func (s *Service) onHost(key api.Actor, f func(h *Host, a *activation) error) error {
	if h := s.runtime.host(s.app.ID); h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		if a := h.actors[key]; a != nil && a.epoch != 0 && !a.gone && a.session == h.session {
			return f(h, a)
		}
	}
	return errInactive
}

// errInactive is the error of a timer whose actor is not active on this node.
var errInactive = fault.New(fault.Unavailable, "actors.Timer", "the actor is not active on this node (use its timers "+
	"while it handles a call)")

// activated activates an actor on this node and calls f with the activation. It does so in a turn, so that the actor
// stays active until f returns.
func (s *Service) activated(ctx context.Context, key api.Actor, f func(h *Host, a *activation) error) error {
	h := s.awaitHost(ctx, key.Type)
	if h == nil {
		return errInactive
	}
	a, err := h.enter(ctx, &Call{Actor: key}, h.parts.NewID())
	if fault.Is(err, fault.ActorMoved) {
		return errInactive
	}
	if err != nil {
		return err
	}
	defer h.leave(a)
	return s.onHost(key, f)
}

// awaitHost returns the host of an actor type on this node. It waits up to Options.HostWait for one, and
// then returns nil.
func (s *Service) awaitHost(ctx context.Context, kind string) *Host {
	for begun := time.Now(); ; sleep(ctx, noHostPause) {
		if h := s.runtime.host(s.app.ID); h != nil && h.accepts(kind) {
			return h
		}
		if time.Since(begun) >= s.runtime.options.HostWait || ctx.Err() != nil {
			return nil
		}
	}
}

func (h *Host) setTimerLocked(a *activation, r *Reminder, plan Plan) error {
	wait, ok := plan.Next()
	if !ok {
		return fault.New(fault.Invalid, "actors.Timer", "the timer has no tick: its ttl ends before its dueTime")
	}
	if old := a.timers[r.Name]; old != nil {
		old.stop()
	} else if len(a.timers) >= maxTimers {
		return &fault.Error{Code: fault.Overloaded, Op: "actors.Timer", Msg: "the actor has 1000 timers already",
			Hint: "remove timers that are not needed any more"}
	}
	if a.timers == nil {
		a.timers = map[string]*timer{}
	}
	t := &timer{Reminder: *r, plan: plan}
	a.timers[r.Name] = t
	h.armLocked(a, t, wait)
	return nil
}

func (h *Host) armLocked(a *activation, t *timer, wait time.Duration) {
	t.stop = time.AfterFunc(wait, func() { h.tick(a, t) }).Stop
}

// tick delivers one tick of a timer, and waits for the next one.
func (h *Host) tick(a *activation, t *timer) {
	h.mu.Lock()
	if a.timers[t.Name] != t {
		h.mu.Unlock()
		return
	}
	counted := h.turns.Enter()
	h.mu.Unlock()
	if !counted {
		return // the host is closed
	}
	defer h.turns.Leave()
	cancel := h.call(a, t)
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.timers[t.Name] != t {
		return // it was removed or replaced meanwhile, or the activation has ended
	}
	if wait, more := t.plan.Next(); more && !cancel {
		h.armLocked(a, t, wait)
	} else {
		delete(a.timers, t.Name)
	}
}

// call calls the application for one tick. It returns true if the application wants no more.
func (h *Host) call(a *activation, t *timer) (cancel bool) {
	c, err := t.callback(CallbackTimer)
	if err == nil {
		c.only = a
		var answer Answer
		if answer, err = h.take(h.turnLife, c); err == nil && (answer.Status < 200 || answer.Status > 299) {
			err = fault.New(fault.Internal, "actors.Timer", "the application answered "+utoa(uint64(answer.Status)))
		}
		cancel = canceled(&answer)
	}
	if err != nil && !fault.Is(err, fault.ActorMoved) {
		h.log.Warn("a tick of an actor's timer failed", "type", t.Actor.Type, "actor", t.Actor.ID, "timer", t.Name,
			"error", fault.Text(err))
	}
	return cancel
}

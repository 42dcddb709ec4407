package actors

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/invoke"
	"github.com/quorate/quorate/internal/fault"
)

// maxTimers is how many timers an actor may have.
const maxTimers = 1000

// timer is a timer of an activation. The timer ends with its activation. Host.mu guards the fields.
type timer struct {
	Reminder
	plan Plan
	stop func() bool // cancels the next tick
}

// Names of calls that set or remove a timer of an actor. Nodes send these calls to the owner of the actor. The owner
// executes them itself and does not forward them to the application.
const (
	callbackSetTimer    = "settimer"
	callbackRemoveTimer = "removetimer"
)

// timerFields is the body of a call that sets a timer.
type timerFields struct {
	DueTime  string          `json:"dueTime,omitempty"`
	Period   string          `json:"period,omitempty"`
	TTL      string          `json:"ttl,omitempty"`
	Callback string          `json:"callback,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
}

// SetTimer starts a timer of an actor, on the node where the actor is active. It replaces a timer with the same name.
// If the actor is not active, SetTimer activates it. While no node hosts the actor type, SetTimer waits up to
// Options.HostWait. It returns an error if another application hosts the type. All errors are *api.Error.
func (s *Service) SetTimer(ctx context.Context, t *Reminder) error {
	if err := checkReminder(t); err != nil {
		return err
	}
	plan, err := s.runtime.options.Plan(t)
	if err == nil {
		err = s.onHost(t.Actor, func(h *Host, a *activation) error { return h.setTimerLocked(a, t, plan) })
		if err == errInactive { //nolint:errorlint // the value itself is the signal
			err = s.setElsewhere(ctx, t)
		}
	}
	if err != nil {
		return reminderFailed(api.CodeTimerCreate, "error creating actor timer "+api.Shorten(t.Name), t.Actor, err)
	}
	return nil
}

// setElsewhere sets a timer at the owner of its actor.
func (s *Service) setElsewhere(ctx context.Context, t *Reminder) error {
	body, err := json.Marshal(timerFields{t.DueTime, t.Period, t.TTL, t.Callback, t.Data})
	if err != nil {
		return fault.Wrap(err, opTimer, "the timer cannot be encoded")
	}
	_, err = s.runtime.place(ctx, s.timerCall(callbackSetTimer, t.Actor, t.Name, body))
	if fault.Is(err, fault.NotFound) {
		err = &fault.Error{Code: fault.Unavailable, Op: opTimer, Err: err, Msg: "no node hosts actors of type " +
			api.Shorten(t.Actor.Type)}
	}
	return err
}

func (s *Service) timerCall(what string, a api.Actor, name string, body []byte) *Call {
	return &Call{Actor: a, Callback: what, Method: name, Body: body, Caller: invoke.Caller{App: s.app}}
}

// RemoveTimer ends a timer of an actor, on whichever node the actor is active. It succeeds if there is no such timer.
// All errors are *api.Error.
func (s *Service) RemoveTimer(ctx context.Context, a api.Actor, name string) error {
	if err := checkReminderName(a, name); err != nil {
		return err
	}
	err := s.onHost(a, func(_ *Host, active *activation) error {
		active.endTimerLocked(name)
		return nil
	})
	if err == errInactive { //nolint:errorlint // the value itself is the signal
		c := s.timerCall(callbackRemoveTimer, a, name, nil)
		// An actor without a host has no timers, so the first attempt need not wait for a host.
		if _, err = s.runtime.attempt(ctx, c, time.Now()); err != nil && !fault.Is(err, fault.NotFound) {
			_, err = s.runtime.place(ctx, c)
		}
	}
	if err != nil && !fault.Is(err, fault.NotFound) {
		return reminderFailed(api.CodeTimerDelete, "error deleting actor timer "+api.Shorten(name), a, err)
	}
	return nil
}

// onHost calls f with the activation of an actor on this node. f must not block. onHost returns errInactive if the
// actor is not active here.
func (s *Service) onHost(key api.Actor, f func(h *Host, a *activation) error) error {
	if h := s.runtime.host(s.app.ID); h != nil {
		return h.onActive(key, f)
	}
	return errInactive
}

// onActive calls f with the activation of an actor, while it holds h.mu. It returns errInactive if the actor is not
// active here.
func (h *Host) onActive(key api.Actor, f func(h *Host, a *activation) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.actors[key]; a != nil && a.epoch != 0 && !a.gone && a.session == h.session {
		return f(h, a)
	}
	return errInactive
}

const opTimer = "actors.Timer"

// errInactive means that the actor is not active on this node.
var errInactive = fault.New(fault.ActorMoved, opTimer, "the actor is not active on this node")

// changeTimer executes a call that sets or removes a timer of an actor. It returns fault.Denied if the call is not from
// the application that hosts the actor. If the call sets a timer and another host owns the actor, it returns
// fault.ActorMoved.
func (h *Host) changeTimer(ctx context.Context, target api.App, c *Call) (Answer, error) {
	if c.Caller.App != target {
		return Answer{}, fault.New(fault.Denied, opTimer, "the application "+target.ID+" hosts the type (an "+
			"application uses timers of its own actors only)")
	}
	done := Answer{Status: http.StatusNoContent, Header: http.Header{}}
	if c.Callback == callbackRemoveTimer {
		_ = h.onActive(c.Actor, func(_ *Host, a *activation) error {
			a.endTimerLocked(c.Method)
			return nil
		}) // the timers of an actor that is not active have ended
		return done, nil
	}
	var f timerFields
	if err := json.Unmarshal(c.Body, &f); err != nil || len(f.Data) > api.MaxJobData {
		return Answer{}, fault.New(fault.Invalid, opTimer, "the timer from another node cannot be decoded")
	}
	t := &Reminder{Actor: c.Actor, Name: c.Method, DueTime: f.DueTime, Period: f.Period, TTL: f.TTL, Data: f.Data,
		Callback: f.Callback}
	plan, err := h.parts.Plan(t)
	if err != nil {
		return Answer{}, err
	}
	set := func(_ *Host, a *activation) error { return h.setTimerLocked(a, t, plan) }
	if err = h.onActive(c.Actor, set); err != errInactive { //nolint:errorlint // the value itself is the signal
		return done, err
	}
	a, err := h.enter(ctx, &Call{Actor: c.Actor}, h.parts.NewID()) // a turn, so that the actor stays active
	if err != nil {
		return Answer{}, err
	}
	defer h.leave(a)
	return done, h.onActive(c.Actor, set)
}

// endTimerLocked ends a timer, if there is one with that name. The caller holds Host.mu.
func (a *activation) endTimerLocked(name string) {
	if t := a.timers[name]; t != nil {
		t.stop()
		delete(a.timers, name)
	}
}

func (h *Host) setTimerLocked(a *activation, r *Reminder, plan Plan) error {
	wait, ok := plan.Next()
	if !ok {
		return fault.New(fault.Invalid, opTimer, "the timer has no tick: its ttl ends before its dueTime")
	}
	if old := a.timers[r.Name]; old != nil {
		old.stop()
	} else if len(a.timers) >= maxTimers {
		return &fault.Error{Code: fault.Overloaded, Op: opTimer, Msg: "the actor has 1000 timers already",
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

// tick delivers one tick of a timer, and schedules the next one.
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
		return // the timer was removed or replaced meanwhile, or the activation has ended
	}
	if wait, more := t.plan.Next(); more && !cancel {
		h.armLocked(a, t, wait)
	} else {
		delete(a.timers, t.Name)
	}
}

// call delivers one tick of a timer to the application, as a turn of the activation. It returns true if the application
// wants no more ticks.
func (h *Host) call(a *activation, t *timer) (cancel bool) {
	c, err := t.callback(CallbackTimer)
	if err == nil {
		c.only = a
		var answer Answer
		if answer, err = h.take(h.turnLife, c); err == nil && (answer.Status < 200 || answer.Status > 299) {
			err = fault.New(fault.Internal, opTimer, "the application answered "+utoa(uint64(answer.Status)))
		}
		cancel = canceled(&answer)
	}
	if err != nil && !fault.Is(err, fault.ActorMoved) {
		h.log.Warn("a tick of an actor's timer failed", "type", t.Actor.Type, "actor", t.Actor.ID, "timer", t.Name,
			"error", fault.Text(err))
	}
	return cancel
}

package actors

import (
	"context"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// turn is a turn in the application.
type turn struct {
	cancel context.CancelCauseFunc
	next   *turn // of the same activation, which has several with reentrant calls
}

// take executes a call as one turn and counts it in the metrics. If the caller disconnects, the turn continues until
// the application answers.
func (h *Host) take(ctx context.Context, c *Call) (answer Answer, err error) {
	begun := time.Now()
	defer func() { h.parts.Metrics.turned(c, begun, &answer, err) }()
	chain := ""
	if v := c.Header[headerReentrancy]; len(v) > 0 {
		chain = v[0]
	}
	if chain == "" {
		chain = h.parts.NewID()
	}
	a, err := h.enter(ctx, c, chain)
	if err != nil {
		return Answer{}, err
	}
	if err := h.leased(ctx, a); err != nil {
		h.leave(a)
		return Answer{}, err
	}
	type result struct {
		answer Answer
		err    error
	}
	got := make(chan result, 1)
	if !h.turns.Go(func() {
		t := &Turn{Call: c, Epoch: a.epoch}
		if a.settings.Reentrancy {
			t.Chain = chain
		}
		life, end := h.beginTurn(a) // what net/http registers at its context is freed with the turn
		defer end()
		answer, err := h.application().Take(life, t)
		switch {
		case err != nil && context.Cause(life) == errDrained: //nolint:errorlint // the value itself is the signal
			err = errDrained
		case err == nil && !h.holds(a):
			err = &fault.Error{Code: fault.Indeterminate, Op: "actors.Call", Msg: "the host lost its lease while the " +
				"application worked on the call", Hint: "look at the state of the actor before you call again"}
		}
		h.leave(a)
		got <- result{answer, err}
	}) {
		h.leave(a)
		return Answer{}, errMoved("the node is stopping")
	}
	select {
	case r := <-got:
		return r.answer, r.err
	case <-ctx.Done():
		return Answer{}, &fault.Error{Code: fault.Indeterminate, Op: "actors.Call", Err: context.Cause(ctx),
			Msg: "the call ended before the application answered"}
	}
}

// beginTurn returns the context of a turn in the application. The drain of the activation a can cancel it. The caller
// must call end after the turn.
func (h *Host) beginTurn(a *activation) (life context.Context, end func()) {
	life, cancel := context.WithCancelCause(h.turnLife)
	h.mu.Lock()
	defer h.mu.Unlock()
	t := &turn{cancel: cancel, next: a.turns}
	a.turns = t
	return life, func() {
		cancel(nil)
		h.mu.Lock()
		defer h.mu.Unlock()
		for p := &a.turns; *p != nil; p = &(*p).next {
			if *p == t {
				*p = t.next
				return
			}
		}
	}
}

// cancelTurns cancels the turns of an activation, and waits at most cancelTime until they have ended. idle is closed
// when they have.
func (h *Host) cancelTurns(ctx context.Context, a *activation, idle chan struct{}) {
	h.mu.Lock()
	for t := a.turns; t != nil; t = t.next {
		t.cancel(errDrained)
	}
	h.mu.Unlock()
	limit := time.NewTimer(cancelTime)
	defer limit.Stop()
	select {
	case <-idle:
	case <-limit.C:
	case <-ctx.Done():
	}
}

package actors

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// turn is one running turn of an activation in the application.
type turn struct {
	cancel context.CancelCauseFunc
	next   *turn // another turn of the same activation, because of a reentrant call
}

// take executes a call as one turn and counts it in the metrics. If the caller disconnects, the turn continues until
// the application answers.
func (h *Host) take(ctx context.Context, c *Call) (answer Answer, err error) {
	begun := time.Now()
	defer func() { h.parts.Metrics.turned(c, begun, &answer, err) }()
	a, err := h.enter(ctx, c, cmp.Or(first(c.Header, headerChain), h.parts.NewID()))
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
			t.Chain = a.chain
		}
		life, end := h.beginTurn(a) // a context of its own, so that net/http frees its callbacks with the turn
		defer end()
		answer, err := checked(h.application().Take(life, t))
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

// verifyChain sets the header that names the call chain of a call to the host of the actor. It sets the header only if
// the application of the caller is executing a turn of that chain on this node. Without the header, the host begins a
// new chain. Otherwise callers could choose ids, and two callers with the same id could enter an actor at the same
// time.
//
// The check is not needed for a reentrant call, which is a call of an actor that is already in the chain. Only
// participants know the id of a running chain.
func (r *Runtime) verifyChain(caller string, header http.Header) {
	delete(header, headerChain)
	chain, h := first(header, headerReentrancy), r.host(caller)
	if chain == "" || h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.chains[chain] > 0 {
		header[headerChain] = []string{chain}
	}
}

// first returns the first value of a header, or "" if there is none.
func first(header http.Header, name string) string {
	if values := header[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

// beginTurn returns the context of a turn in the application. The drain of the activation a can cancel it. The caller
// must call end after the turn.
func (h *Host) beginTurn(a *activation) (life context.Context, end func()) {
	life, cancel := context.WithCancelCause(h.turnLife)
	h.mu.Lock()
	defer h.mu.Unlock()
	t := &turn{cancel: cancel, next: a.turns}
	a.turns, a.dropped = t, false
	if a.canceled {
		cancel(errDrained)
	}
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

// cancelTurns cancels the turns of an activation, and waits at most cancelTime until they have ended. The caller
// passes the channel idle, which is closed at their end.
func (h *Host) cancelTurns(ctx context.Context, a *activation, idle chan struct{}) {
	h.mu.Lock()
	a.canceled = true
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

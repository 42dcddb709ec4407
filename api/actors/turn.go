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

// take executes a call as one turn and counts it in the metrics. If ctx ends while the application works on the call,
// take returns fault.Indeterminate, but the turn continues until the application answers.
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
		life, end := h.beginTurn(a) // ends with the turn, so that net/http frees its callbacks
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

// verifyChain sets headerChain to the call chain in headerReentrancy, if the calling application is executing a turn of
// this chain on this node. Otherwise verifyChain removes headerChain, and the host of the actor begins a new chain.
//
// Without this check, a caller could choose the id of a chain. Two callers with the same id could then enter an actor
// at the same time. The host of the actor does not check the chain of a reentrant call, because only participants of a
// running chain know its id.
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

// beginTurn adds a turn to the activation, and returns the context for the request to the application. This context is
// canceled if a drain takes too long. The caller must call end after the turn.
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

// cancelTurns cancels the turns of a retired activation and waits for their end, at most for cancelTime or until ctx
// ends. The channel idle is closed when the running turn has ended.
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

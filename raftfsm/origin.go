package raftfsm

import (
	"context"
	"strconv"
	"sync"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
)

// origin numbers this node's requests to one group, so that a retry is applied once. The
// number comes from the log (command.KindRegister); sequences count up within it; done is
// the mark below which nothing will be asked again.
//
// Invariant: a sequence is used for one request only, and done passes it only after that
// request will never be sent again.
type origin struct {
	name     string // node id and boot id: never the same for two runs of a process
	register func(context.Context, func() *command.Request) (group.Answer, error)

	mu       sync.Mutex
	number   uint64 // 0 = not registered
	proven   bool   // a request with this number was answered with its outcome
	attempts uint64 // registrations asked for
	next     uint64 // last sequence given out
	done     uint64
	finished map[uint64]struct{} // above done

	registering chan struct{} // one slot: at most one registration at a time
}

func newOrigin(name string, register func(context.Context, func() *command.Request) (group.Answer, error)) *origin {
	return &origin{name: name, register: register, finished: map[uint64]struct{}{}, registering: make(chan struct{}, 1)}
}

// begin gives out an id for one request; end must follow.
func (o *origin) begin(ctx context.Context) (command.RequestID, error) {
	for {
		if id, ok := o.take(); ok {
			return id, nil
		}
		if err := o.ensure(ctx); err != nil {
			return command.RequestID{}, err
		}
	}
}

func (o *origin) take() (command.RequestID, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.number == 0 {
		return command.RequestID{}, false
	}
	o.next++
	return command.RequestID{Origin: o.number, Seq: o.next, Done: o.done}, true
}

// end says that id will not be sent again.
func (o *origin) end(id command.RequestID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if id.Origin != o.number {
		return
	}
	o.finished[id.Seq] = struct{}{}
	for {
		if _, ok := o.finished[o.done+1]; !ok {
			return
		}
		delete(o.finished, o.done+1)
		o.done++
	}
}

// drop forgets a registration that the group no longer knows.
func (o *origin) drop(number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.number == number {
		o.number, o.next, o.done, o.proven = 0, 0, 0, false
		clear(o.finished)
	}
}

// prove notes that the group answered a request of this number with an outcome: from now
// on the number can only vanish by being idle.
func (o *origin) prove(number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.number == number {
		o.proven = true
	}
}

// isProven reports whether prove was called for the number in use.
func (o *origin) isProven() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.proven
}

// ensure registers, once for all who wait. Registering needs no protection: every attempt
// has a name of its own, so one that was applied but not heard of, or comes late, replaces
// nothing and is forgotten after a while.
func (o *origin) ensure(ctx context.Context) error {
	select {
	case o.registering <- struct{}{}:
		defer func() { <-o.registering }()
	case <-ctx.Done():
		return &fault.Error{Code: fault.Timeout, Op: "raftfsm.origin", Msg: "registering with the group took too long", Err: ctx.Err()}
	}
	o.mu.Lock()
	have := o.number != 0
	o.mu.Unlock()
	if have {
		return nil
	}
	a, err := o.register(ctx, o.attempt)
	if err != nil {
		return notStarted(err)
	}
	if len(a.Result.Revisions) != 1 {
		return fault.New(fault.Internal, "raftfsm.origin", "the group answered a registration without a number")
	}
	o.mu.Lock()
	o.number, o.next, o.done, o.proven = a.Result.Revisions[0], 0, 0, false
	o.mu.Unlock()
	return nil
}

// attempt is one more registration.
func (o *origin) attempt() *command.Request {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.attempts++
	return &command.Request{Kind: command.KindRegister, Name: o.name + "/" + strconv.FormatUint(o.attempts, 10)}
}

// registrar is register for one group.
func (h *Host) registrar(gid uint32) func(context.Context, func() *command.Request) (group.Answer, error) {
	return func(ctx context.Context, attempt func() *command.Request) (group.Answer, error) {
		return h.register(ctx, gid, attempt)
	}
}

// register sends registrations until one is answered or ctx ends.
func (h *Host) register(ctx context.Context, gid uint32, attempt func() *command.Request) (group.Answer, error) {
	for {
		data, err := command.AppendRequest(nil, attempt())
		if err != nil {
			return group.Answer{}, err
		}
		a, err := h.propose(ctx, gid, data, group.Committed, false)
		if err == nil || !h.again(ctx, gid, err) {
			return a, err
		}
	}
}

// notStarted turns the failure of a preparation into one of the request it was for: that
// request surely was not applied.
func notStarted(err error) error {
	code := fault.CodeOf(err)
	if code == fault.Indeterminate || code == fault.NotLeader {
		code = fault.Unavailable
	}
	return &fault.Error{Code: code, Op: "raftfsm.origin", Msg: "the write was not started: this node could not register with the group in time",
		Hint: fault.HintOf(err)}
}

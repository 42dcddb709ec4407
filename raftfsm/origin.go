package raftfsm

import (
	"context"
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
	register func(context.Context, *command.Request) (group.Answer, error)

	mu       sync.Mutex
	number   uint64 // 0 = not registered
	next     uint64 // last sequence given out
	done     uint64
	finished map[uint64]struct{} // above done

	registering chan struct{} // one slot: at most one registration at a time
}

func newOrigin(name string, register func(context.Context, *command.Request) (group.Answer, error)) *origin {
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
		o.number, o.next, o.done = 0, 0, 0
		clear(o.finished)
	}
}

// ensure registers, once for all who wait. Registering needs no protection: a
// registration that was applied but not heard of is replaced by the next.
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
	a, err := o.register(ctx, &command.Request{Kind: command.KindRegister, Name: o.name})
	if err != nil {
		return notStarted(err)
	}
	if len(a.Result.Revisions) != 1 {
		return fault.New(fault.Internal, "raftfsm.origin", "the group answered a registration without a number")
	}
	o.mu.Lock()
	o.number, o.next, o.done = a.Result.Revisions[0], 0, 0
	o.mu.Unlock()
	return nil
}

// register sends a registration until it is applied or ctx ends.
func (h *Host) register(ctx context.Context, gid uint32, r *command.Request) (group.Answer, error) {
	a, _, err := h.send(ctx, gid, r, group.Committed)
	return a, err
}

// notStarted turns the failure of a preparation into one of the request it was for: that
// request surely was not applied.
func notStarted(err error) error {
	code := fault.CodeOf(err)
	if code == fault.Indeterminate || code == fault.NotLeader {
		code = fault.Unavailable
	}
	return &fault.Error{Code: code, Op: "raftfsm.origin", Msg: "the write was not started", Err: err}
}

package raftfsm

import (
	"context"
	"strconv"
	"sync"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
)

// origin assigns ids to the requests that this node sends to one group, so that the group applies a retried request
// only once. An id consists of the number of the origin and a sequence number. The group issues the number when the
// origin registers with it (command.KindRegister).
//
// Invariant: each sequence number is used for one request only. Every request that may be sent again has a sequence
// number above the field done.
type origin struct {
	name     string // different for every incarnation of a process
	register func(context.Context, func() *command.Request) (group.Answer, error)

	mu       sync.Mutex
	number   uint64              // 0 = not registered
	proven   bool                // a request with this number was answered with its outcome
	attempts uint64              // number of registrations sent
	next     uint64              // last sequence number that was used
	done     uint64              // the requests up to this sequence number are finished
	finished map[uint64]struct{} // sequence numbers above done whose requests are finished

	registering chan struct{} // capacity 1: at most one registration at a time
}

func newOrigin(name string, register func(context.Context, func() *command.Request) (group.Answer, error)) *origin {
	return &origin{name: name, register: register, finished: map[uint64]struct{}{}, registering: make(chan struct{}, 1)}
}

// begin returns the id for one request. It registers the origin first if necessary. The caller must call end with the
// id.
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

// end declares that the request with this id will not be sent again.
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

// drop discards the given number of the origin, which the group no longer knows. The next call of begin registers the
// origin again. If the origin already has another number, drop does nothing.
func (o *origin) drop(number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.number == number {
		o.number, o.next, o.done, o.proven = 0, 0, 0, false
		clear(o.finished)
	}
}

// prove records that the group knows the origin, because it has answered a request with this origin number. The group
// removes an origin only after a long time without requests.
func (o *origin) prove(number uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.number == number {
		o.proven = true
	}
}

// isProven reports whether prove was called for the current number.
func (o *origin) isProven() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.proven
}

// ensure registers the origin with the group if it has no number yet. Concurrent callers share one registration. Each
// attempt uses a new name. If the answer to a registration is lost, that registration is therefore never used, and
// expires. ensure returns fault.Timeout if ctx ends while another caller registers, and fault.Unavailable if the group
// does not answer in time.
func (o *origin) ensure(ctx context.Context) error {
	select {
	case o.registering <- struct{}{}:
		defer func() { <-o.registering }()
	case <-ctx.Done():
		return &fault.Error{Code: fault.Timeout, Op: "raftfsm.origin", Msg: "registering with the group took too long",
			Err: ctx.Err()}
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

// attempt returns a registration request with a name that no earlier attempt has used.
func (o *origin) attempt() *command.Request {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.attempts++
	return &command.Request{Kind: command.KindRegister, Name: o.name + "/" + strconv.FormatUint(o.attempts, 10)}
}

// registrar returns the function that newOrigin needs to register an origin with the given group.
func (r *router) registrar(gid uint32) func(context.Context, func() *command.Request) (group.Answer, error) {
	return func(ctx context.Context, attempt func() *command.Request) (group.Answer, error) {
		return r.register(ctx, gid, attempt)
	}
}

// register registers an origin with a group. It retries until the group answers, ctx ends, or a retry cannot help. The
// function attempt returns the request for each try.
func (r *router) register(ctx context.Context, gid uint32, attempt func() *command.Request) (group.Answer, error) {
	for {
		data, err := command.AppendRequest(nil, attempt())
		if err != nil {
			return group.Answer{}, err
		}
		a, err := r.replica.propose(ctx, gid, data, group.Committed, false)
		if err == nil || !r.retry.again(ctx, r.replica, gid, err) {
			if ctx.Err() != nil && (fault.Is(err, fault.NotLeader) || fault.Is(err, fault.Unavailable)) {
				err = noQuorum("raftfsm.register", r.replica, gid, err)
			}
			return a, err
		}
	}
}

// notStarted returns the error of a request that was not sent, because the registration of its origin failed with err.
// Since nothing was sent, it replaces fault.Indeterminate and fault.NotLeader by fault.Unavailable.
func notStarted(err error) error {
	code := fault.CodeOf(err)
	if code == fault.Indeterminate || code == fault.NotLeader {
		code = fault.Unavailable
	}
	return &fault.Error{Code: code, Op: "raftfsm.origin", Msg: "the write was not started: this node could not " +
		"register with the group in time", Err: err}
}

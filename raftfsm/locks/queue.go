package locks

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

const (
	opWait    = "locks.Wait"
	opRelease = "locks.Release"
)

// maxWaiting is how many callers may wait for one lock.
const maxWaiting = 10_000

// waiter is a caller that waits for a lock.
type waiter struct {
	Claim
	got  chan grant  // capacity 1
	gone atomic.Bool // the call has ended without an answer
}

type grant struct {
	token uint64
	err   error
}

func (w *waiter) answer(g grant) {
	select {
	case w.got <- g:
	default: // the waiter has an answer already
	}
}

func errMoved() error {
	return fault.New(fault.NotLeader, opWait, "this server does not lead the group of the lock")
}

// Wait waits until c gets the lock, and returns the token. Callers get the lock in the order of their calls. If ctx
// ends first, Wait returns fault.Timeout, and c does not own the lock. If this server does not lead, or loses
// leadership, Wait returns fault.NotLeader, and c may own the lock. The caller must then repeat the call at the new
// leader, which recognizes the repeated call by c.Request.
func (k *Keeper) Wait(ctx context.Context, name string, c Claim) (token uint64, err error) {
	w := &waiter{Claim: c, got: make(chan grant, 1)}
	if err := k.enqueue(name, w); err != nil {
		return 0, err
	}
	k.start(ctx, name, w)
	select {
	case g := <-w.got:
		return g.token, g.err
	case <-ctx.Done():
	}
	w.gone.Store(true)
	if k.leave(name, w) {
		return 0, errWaited(ctx)
	}
	if g := <-w.got; g.err == nil && !k.isClaimed(name, g.token) { // it was granted at the same moment
		k.running.Go(func() { _, _ = k.end(k.closing, name, g.token, 0) })
	}
	return 0, errWaited(ctx)
}

func errWaited(ctx context.Context) error {
	return &fault.Error{Code: fault.Timeout, Op: opWait, Msg: "the lock did not become free in time",
		Err: context.Cause(ctx)}
}

func (k *Keeper) enqueue(name string, w *waiter) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed || k.group == nil:
		return fault.New(fault.Unavailable, opWait, "this node is starting or shutting down")
	case !k.group.Leading():
		return errMoved()
	case len(k.queues[name]) >= maxWaiting:
		return &fault.Error{Code: fault.Overloaded, Op: opWait, Msg: "too many callers wait for the lock",
			Hint: "wait for it with fewer callers"}
	}
	k.queues[name] = append(k.queues[name], w)
	return nil
}

// leave removes w from the queue. It returns false if w is not in the queue, because w has already received an answer.
func (k *Keeper) leave(name string, w *waiter) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	queue := k.queues[name]
	i := slices.Index(queue, w)
	if i < 0 {
		return false
	}
	if queue = slices.Delete(queue, i, i+1); len(queue) == 0 {
		delete(k.queues, name)
	} else {
		k.queues[name] = queue
	}
	return true
}

// start looks whether the lock is free, or owned by an earlier attempt of the same call.
func (k *Keeper) start(ctx context.Context, name string, w *waiter) {
	k.Update()
	values, err := k.group.Machine().GetMany(kv.LockStore, Keys(name), 0)
	if err == nil {
		var l Lock
		var found bool
		if l, found, err = Parse(values); err == nil {
			switch {
			case !found:
				k.running.Go(func() { k.acquire(name) })
			case w.Request != "" && l.Request == w.Request && l.Owner == w.Owner:
				if k.leave(name, w) {
					k.claim(name, l.Token)
					w.answer(grant{token: l.Token})
				}
			}
			return
		}
	}
	if k.leave(name, w) {
		w.answer(grant{err: err})
	}
}

// Waiting returns how many callers wait for a lock.
func (k *Keeper) Waiting(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.queues[name])
}

// first returns the caller that waits longest, or nil.
func (k *Keeper) first(name string) *waiter {
	k.mu.Lock()
	defer k.mu.Unlock()
	if queue := k.queues[name]; len(queue) > 0 {
		return queue[0]
	}
	return nil
}

// acquire gives a lock without owner to the caller that waits longest.
func (k *Keeper) acquire(name string) {
	w := k.first(name)
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	k.hand(ctx, name, w, Acquire(name, w.Claim))
}

// hand commits r, a request that makes w the owner of a lock, and sends the result to w. applied reports whether the
// request was applied.
func (k *Keeper) hand(ctx context.Context, name string, w *waiter, r *command.Request) (applied bool, err error) {
	res, err := k.group.Commit(ctx, r)
	switch {
	case err != nil:
		if k.leave(name, w) {
			w.answer(grant{err: err})
		}
		return false, err
	case res.Outcome != kv.Applied:
		return false, nil // another request came first
	}
	token := res.Revisions[0]
	if k.leave(name, w) {
		w.answer(grant{token: token})
		return true, nil
	}
	if w.gone.Load() {
		_, err = k.end(ctx, name, token, 0)
	}
	return true, err
}

// claim records that a repeated call has received the lock with this token, which was granted to an earlier attempt of
// the call. The earlier attempt then does not release the lock when its context ends.
func (k *Keeper) claim(name string, token uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.claimed[name] = token
}

func (k *Keeper) isClaimed(name string, token uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.claimed[name] == token
}

// Release ends the lock with this token, and gives it to the caller that has waited longest. released is false if the
// lock has another token or no owner.
func (k *Keeper) Release(ctx context.Context, name string, token uint64) (released bool, err error) {
	k.mu.Lock()
	group := k.group
	k.mu.Unlock()
	if group == nil || !group.Leading() {
		return false, fault.New(fault.NotLeader, opRelease, "this server does not lead the group of the lock")
	}
	return k.end(ctx, name, token, 0)
}

// end ends the lock with this token. renewals is the revision of the expiry record; if it is not 0, a lock that was
// renewed since then is not ended. ended reports whether the lock was ended.
func (k *Keeper) end(ctx context.Context, name string, token, renewals uint64) (ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, proposeTimeout)
	defer cancel()
	if w := k.first(name); w != nil {
		return k.hand(ctx, name, w, release(name, token, renewals, &w.Claim))
	}
	res, err := k.group.Commit(ctx, release(name, token, renewals, nil))
	return err == nil && res.Outcome == kv.Applied, err
}

// Remaining returns how long the lock with this token stays valid if it is not renewed. It returns 0 if this server
// has no information about the lock.
func (k *Keeper) Remaining(name string, token uint64) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.locks[name]; h != nil && h.Token == token {
		return max(time.Until(h.until), 0)
	}
	return 0
}

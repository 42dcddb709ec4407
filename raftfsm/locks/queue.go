package locks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

const (
	opWait    = "locks.Wait"
	opRelease = "locks.Release"
)

// Limits of the callers that wait at one leader.
const (
	maxWaiting   = 64     // for one lock
	maxWaitingIn = 10_000 // for all locks of the group
)

// waiter is a caller that waits for a lock.
type waiter struct {
	Claim
	got chan grant // capacity 1
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

// repeats reports whether w and o are attempts of the same call.
func (w *waiter) repeats(o *waiter) bool {
	return w.Request != "" && w.Request == o.Request && w.Owner == o.Owner
}

func errMoved() error {
	return fault.New(fault.NotLeader, opWait, "this server does not lead the group of the lock")
}

// Wait waits until c gets the lock, and returns the token. Callers get the lock in the order of their calls. A repeated
// call, with the same c.Request, takes the place of the earlier one. Wait returns one of these errors:
//
//   - fault.Timeout if ctx ends first. If c gets the lock at that very moment, Wait releases it again.
//   - fault.Conflict if the call was repeated and the repeated call now waits in its place.
//   - fault.Overloaded if too many callers already wait.
//   - fault.NotLeader if this server does not lead or loses leadership. c may then own the lock. The caller must repeat
//     the call at the new leader.
func (k *Keeper) Wait(ctx context.Context, name string, c Claim) (token uint64, err error) {
	w := &waiter{Claim: c, got: make(chan grant, 1)}
	if err := k.enqueue(name, w); err != nil {
		return 0, err
	}
	claimed := k.start(ctx, name, w)
	select {
	case g := <-w.got:
		return g.token, g.err
	case <-ctx.Done():
	}
	k.withdraw(name, claimed) // before w leaves the queue, so that giveBack can then release the lock
	if k.leave(name, w) {
		return 0, errWaited(ctx)
	}
	if g := <-w.got; g.err == nil { // it was granted at the same moment
		k.running.Go(func() { _ = k.giveBack(k.closing, name, g.token) })
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
	earlier := slices.IndexFunc(k.queues[name], w.repeats)
	switch {
	case k.closed || k.group == nil:
		return fault.New(fault.Unavailable, opWait, "this node is starting or shutting down")
	case !k.group.Leading():
		return errMoved()
	case earlier >= 0:
		k.queues[name][earlier].answer(grant{err: fault.New(fault.Conflict, opWait,
			"the call was repeated, and the repeated call waits in its place")})
		k.queues[name][earlier] = w
		return nil
	case len(k.queues[name]) >= maxWaiting:
		return &fault.Error{Code: fault.Overloaded, Op: opWait, Msg: fmt.Sprintf("%d callers wait for the lock already",
			maxWaiting), Hint: "wait for it with fewer callers"}
	case k.queued >= maxWaitingIn:
		return &fault.Error{Code: fault.Overloaded, Op: opWait, Msg: fmt.Sprintf(
			"%d callers wait for locks of the group already", maxWaitingIn), Hint: "wait for locks with fewer callers"}
	}
	k.queues[name] = append(k.queues[name], w)
	k.queued++
	return nil
}

// leave removes w from the queue. It returns false if w has already received an answer and is no longer in the
// queue.
func (k *Keeper) leave(name string, w *waiter) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	queue := k.queues[name]
	i := slices.Index(queue, w)
	if i < 0 {
		return false
	}
	k.queued--
	if queue = slices.Delete(queue, i, i+1); len(queue) == 0 {
		delete(k.queues, name)
	} else {
		k.queues[name] = queue
	}
	return true
}

// start begins to acquire the lock for w if the lock has no owner. If w repeats an earlier call that already owns the
// lock, w gets the lock at once. claimed is the token that was claimed for w (see claim), or 0.
func (k *Keeper) start(ctx context.Context, name string, w *waiter) (claimed uint64) {
	k.Update()
	l, found, err := k.applied(name)
	if err == nil && found && w.Request != "" && l.Request == w.Request && l.Owner == w.Owner {
		if !k.claim(name, l.Token) {
			return 0 // the lock is released again, and w waits until then
		}
		claimed = l.Token
		l, found, err = k.applied(name) // a release that began before the claim is applied by now
	}
	switch {
	case err != nil:
		if k.leave(name, w) {
			w.answer(grant{err: err})
		}
	case !found:
		k.running.Go(func() { k.acquire(name) })
	case l.Token == claimed && k.leave(name, w):
		w.answer(grant{token: claimed})
	}
	return claimed
}

// applied returns the lock with this name from the local replica, without a read index. The result found is false if
// the lock has no owner.
func (k *Keeper) applied(name string) (l Lock, found bool, err error) {
	values, err := k.group.Machine().GetMany(kv.LockStore, Keys(name), 0)
	if err != nil {
		return l, false, err
	}
	return Parse(values)
}

// Waiting returns how many callers wait for a lock.
func (k *Keeper) Waiting(name string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.queues[name])
}

// first returns the caller that has waited longest, or nil if no caller waits.
func (k *Keeper) first(name string) *waiter {
	k.mu.Lock()
	defer k.mu.Unlock()
	if queue := k.queues[name]; len(queue) > 0 {
		return queue[0]
	}
	return nil
}

// acquire gives a lock without an owner to the caller that has waited longest.
func (k *Keeper) acquire(name string) {
	w := k.first(name)
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(k.closing, proposeTimeout)
	defer cancel()
	_, _ = k.hand(ctx, name, w, Acquire(name, w.Claim)) // w gets the error
}

// hand commits r, a request that makes w the owner of a lock, and sends the result to w.
func (k *Keeper) hand(ctx context.Context, name string, w *waiter, r *command.Request) (kv.Outcome, error) {
	res, err := k.group.Commit(ctx, r)
	switch {
	case err != nil:
		if k.leave(name, w) {
			w.answer(grant{err: err})
		}
		return 0, err
	case res.Outcome != kv.Applied: // another request came first
		return res.Outcome, nil
	case res.Replayed: // an earlier attempt of Unlock has ended the lock, and did not give it to w
		return res.Outcome, nil
	}
	token := res.Revisions[0]
	if k.leave(name, w) {
		w.answer(grant{token: token})
		return res.Outcome, nil
	}
	// w has given up, or an earlier request has already given it the lock. An error of giveBack does not change the
	// outcome of r.
	_ = k.giveBack(ctx, name, token)
	return res.Outcome, nil
}

// claims counts the calls that have claimed a token.
type claims struct {
	token uint64
	calls int
}

// claim keeps the lock with this token for a repeated call, so that giveBack does not release it. The lock was acquired
// for an earlier attempt of the call. claim returns false if the lock is already being released.
func (k *Keeper) claim(name string, token uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unclaimed[name] == token {
		return false
	}
	c := k.claimed[name]
	if c.token != token {
		c = claims{token: token}
	}
	c.calls++
	k.claimed[name] = c
	return true
}

// withdraw takes back one claim of a token, because the call has given up.
func (k *Keeper) withdraw(name string, token uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.claimed[name]; c.token == token && c.calls > 0 {
		c.calls--
		k.claimed[name] = c
	}
}

// giveBack releases the lock with this token, because the caller for which it was acquired no longer waits. giveBack
// does nothing if a repeated call has claimed the lock (see claim).
func (k *Keeper) giveBack(ctx context.Context, name string, token uint64) error {
	k.mu.Lock()
	if c := k.claimed[name]; c.token == token && c.calls > 0 {
		k.mu.Unlock()
		return nil
	}
	k.unclaimed[name] = token
	k.mu.Unlock()
	_, err := k.end(ctx, name, token, 0)
	if err != nil {
		return err // the release may still be applied
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unclaimed[name] == token {
		delete(k.unclaimed, name)
	}
	return nil
}

// Release ends the lock with this token, and gives it to the caller that has waited longest. released is false if
// the lock has no owner or another token.
func (k *Keeper) Release(ctx context.Context, name string, token uint64) (released bool, err error) {
	if err := k.leads(opRelease); err != nil {
		return false, err
	}
	return k.end(ctx, name, token, 0)
}

// leads returns fault.NotLeader if this server does not lead.
func (k *Keeper) leads(op string) error {
	k.mu.Lock()
	group := k.group
	k.mu.Unlock()
	if group == nil || !group.Leading() {
		return fault.New(fault.NotLeader, op, "this server does not lead the group of the lock")
	}
	return nil
}

// Unlock ends a lock of the given owner, and gives it to the caller that has waited longest. Unless token is 0, the
// lock must also have this token. A call costs one log entry and no read index. Repeated calls with the same id are
// applied only once. The outcome is one of these:
//
//   - kv.Applied: an attempt with this id has ended the lock.
//   - kv.Conflict: no attempt with this id has changed anything, and none will. If the lock now has this owner and this
//     token, the caller must repeat the call with another id.
//   - kv.Stale: the group no longer knows whether an attempt with this id was applied. This attempt has changed
//     nothing, but an earlier one may have ended the lock.
func (k *Keeper) Unlock(ctx context.Context, name, owner string, token uint64,
	id command.RequestID) (kv.Outcome, error) {
	if err := k.leads(opRelease); err != nil {
		return 0, err
	}
	l, found, err := k.applied(name)
	switch {
	case err != nil:
		return 0, err
	case found && l.Owner == owner && (token == 0 || l.Token == token):
		return k.endAs(ctx, id, name, l.Token, 0)
	}
	// An earlier attempt with this id may have ended the lock. So the outcome must come from the log.
	res, err := k.group.Commit(ctx, refused(name, id))
	return res.Outcome, err
}

// end ends the lock with this token, and reports whether it has done so. renewals is the value of Lock.Renewals that
// the caller has read. If the lock was renewed since that read, end does nothing. If renewals is 0, end does not check
// for renewals.
func (k *Keeper) end(ctx context.Context, name string, token, renewals uint64) (ended bool, err error) {
	outcome, err := k.endAs(ctx, command.RequestID{}, name, token, renewals)
	return err == nil && outcome == kv.Applied, err
}

// endAs works like end, but gives the request an id and returns its outcome.
func (k *Keeper) endAs(ctx context.Context, id command.RequestID, name string, token, renewals uint64) (kv.Outcome,
	error) {
	// The caller that waits for the lock must not get an error because the caller that releases it gives up.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), proposeTimeout)
	defer cancel()
	defer context.AfterFunc(k.closing, cancel)()
	if w := k.first(name); w != nil {
		r := release(name, token, renewals, &w.Claim)
		r.ID = id
		return k.hand(ctx, name, w, r)
	}
	r := release(name, token, renewals, nil)
	r.ID = id
	res, err := k.group.Commit(ctx, r)
	return res.Outcome, err
}

// Remaining returns how long the lock with this token stays valid without a renewal. It returns 0 for a lock that has
// ended, and fault.NotLeader if this server does not lead.
func (k *Keeper) Remaining(name string, token uint64) (time.Duration, error) {
	k.mu.Lock()
	h, leads := k.locks[name], k.machine != nil
	k.mu.Unlock()
	switch {
	case !leads:
		return 0, errMoved()
	case h != nil && h.Token == token:
		return max(time.Until(h.until), 0), nil
	}
	l, found, err := k.applied(name)
	if err != nil || !found || l.Token != token {
		return 0, err
	}
	return l.Expiry, nil // this server has not set the timer of the lock yet
}

package locks

import (
	"cmp"
	"context"
	"crypto/rand"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Store is a lock store of type lock.raft. It stores its locks in the groups of a state store. The locks of an
// application are in the same group as the keys of the application, so that a write can check a lock. It is safe for
// concurrent use.
type Store struct {
	access    records.Access
	store     string // id of the state store
	component string
	// reentrant makes TryLock renew the lock if the caller already owns it.
	reentrant bool
}

var _ lock.Leaser = (*Store)(nil)

// NewStore returns the lock store of a component. The parameter store is the id of the state store whose groups contain
// the locks. If reentrant is true, TryLock renews a lock that the caller already owns, instead of failing. Clients that
// have no renew operation need this.
func NewStore(a records.Access, store, component string, reentrant bool) *Store {
	return &Store{access: a, store: store, component: component, reentrant: reentrant}
}

// Close does nothing. The locks remain until they are released or expire.
func (l *Store) Close() error { return nil }

// lockMark separates the prefix of a lock from its component.
const lockMark = "||$lock||"

// RecordName returns the name of a lock within its group.
func RecordName(store, component string, k lock.Key) string {
	return store + "\x00" + k.Prefix + lockMark + component + state.Separator + k.Resource
}

// place is a lock and the group it is in.
type place struct {
	records.Access
	name string
	gid  uint32
}

func (l *Store) place(ctx context.Context, k lock.Key) (place, error) {
	gid, err := l.access.Locate(ctx, l.store, k.Prefix+state.Separator)
	return place{l.access, RecordName(l.store, l.component, k), gid}, err
}

// current reads the lock. The read is linearizable. The result found is false if the lock has no owner.
func (p *place) current(ctx context.Context) (l Lock, found bool, err error) {
	values, err := p.Values(ctx, p.gid, kv.LockStore, Keys(p.name))
	if err != nil {
		return l, false, err
	}
	return Parse(values)
}

// commit writes a request. applied is true if the conditions of the request were met.
func (p *place) commit(ctx context.Context, r *command.Request) (res kv.Result, applied bool, err error) {
	res, err = p.Write(ctx, p.gid, r)
	return res, err == nil && res.Outcome == kv.Applied, err
}

// ask sends a call about the lock to the leader. The results are those of records.AskNumber.
func (p *place) ask(ctx context.Context, c *call) (n uint64, repeated bool, err error) {
	c.name = p.name
	return records.AskNumber(ctx, p, p.gid, c.method(), c.append(nil))
}

// TryLock implements lock.Store.
func (l *Store) TryLock(ctx context.Context, c lock.Claim) (lock.Grant, error) {
	if err := c.Check("raftfsm.TryLock"); err != nil {
		return lock.Grant{}, err
	}
	p, err := l.place(ctx, c.Key)
	if err != nil {
		return lock.Grant{}, err
	}
	claim := Claim{Owner: c.Owner, Request: cmp.Or(c.RequestID, rand.Text()), Expiry: c.Expiry}
	request := Acquire(p.name, claim)
	if c.RequestID != "" && c.Wait <= 0 { // the entry that grants a lock after a wait has no client id
		request.Client = command.ClientID{Scope: l.store + "/" + c.Key.Prefix + lockMark + l.component, ID: c.RequestID}
	}
	res, applied, err := p.commit(ctx, request)
	switch {
	case err != nil:
		return lock.Grant{}, err
	case applied && res.Replayed:
		return p.granted(ctx, res.Revisions[0])
	case applied:
		return lock.Grant{Granted: true, Token: res.Revisions[0], Expiry: c.Expiry}, nil
	case res.Outcome == kv.Rejected:
		return lock.Grant{}, &fault.Error{Code: fault.Invalid, Op: "raftfsm.TryLock",
			Msg:  "the request id was used before for another lock, owner or expiry",
			Hint: "use a new Quorate-Request-Id for every request that is not a retry"}
	}
	if l.reentrant {
		if g, err := p.renew(ctx, claim); err != nil || g.Granted {
			return g, err
		}
	}
	if c.Wait <= 0 {
		return lock.Grant{}, nil
	}
	g, err := p.await(ctx, claim, c.Wait, c.RequestID != "")
	if err == nil && g.Granted && c.RequestID != "" {
		return p.granted(ctx, g.Token) // an earlier request with the same id may have acquired the lock
	}
	return g, err
}

// granted returns the grant for a request that has already acquired the lock with this token. The expiry in the grant
// is the time that is left, or 0 if the lock has ended in the meantime. If the leader does not answer, granted returns
// fault.Indeterminate.
func (p *place) granted(ctx context.Context, token uint64) (lock.Grant, error) {
	ms, _, err := p.ask(ctx, &call{what: callRemains, token: token})
	if err != nil {
		return lock.Grant{}, &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.TryLock", Err: err,
			Msg: "an earlier attempt has acquired the lock, and it is not known whether the lock has ended"}
	}
	left := min(time.Duration(ms)*time.Millisecond, lock.MaxExpiry) //nolint:gosec // bounded
	return lock.Grant{Granted: true, Token: token, Expiry: left}, nil
}

// await waits for a lock that has another owner, but not longer than patience. If the lock was granted at the last
// moment, await releases it again, unless repeatable is true.
//
// repeatable means that the client can repeat its call with the same request id. The repeated call may already own the
// lock, so await returns fault.Indeterminate and does not release it.
func (p *place) await(ctx context.Context, c Claim, patience time.Duration, repeatable bool) (lock.Grant, error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	token, _, err := p.ask(waiting, &call{what: callWait, claim: c})
	switch {
	case err == nil:
		return lock.Grant{Granted: true, Token: token, Expiry: c.Expiry}, nil
	case waiting.Err() == nil || ctx.Err() != nil:
		return lock.Grant{}, err
	}
	// The waiting time has passed. The lock may have been granted at the last moment. The leader may be about to
	// release it, so the caller must not use it. A new leader does not know that it must release it.
	now, found, err := p.current(ctx)
	switch {
	case err != nil || !found || now.Request != c.Request || now.Owner != c.Owner:
	case repeatable:
		err = &fault.Error{Code: fault.Indeterminate, Op: "raftfsm.TryLock",
			Msg:  "the lock may have been granted at the end of the wait",
			Hint: "repeat the call with the same Quorate-Request-Id"}
	default:
		_, _, err = p.ask(ctx, &call{what: callRelease, token: now.Token})
	}
	return lock.Grant{}, err
}

// Renew implements lock.Leaser.
func (l *Store) Renew(ctx context.Context, c lock.Claim) (lock.Grant, error) {
	if err := c.Check("raftfsm.Renew"); err != nil {
		return lock.Grant{}, err
	}
	p, err := l.place(ctx, c.Key)
	if err != nil {
		return lock.Grant{}, err
	}
	return p.renew(ctx, Claim{Owner: c.Owner, Expiry: c.Expiry})
}

func (p *place) renew(ctx context.Context, c Claim) (lock.Grant, error) {
	for {
		now, found, err := p.current(ctx)
		if err != nil || !found || now.Owner != c.Owner {
			return lock.Grant{}, err
		}
		_, applied, err := p.commit(ctx, Renew(p.name, now, c))
		if err != nil {
			return lock.Grant{}, err
		}
		if applied {
			return lock.Grant{Granted: true, Token: now.Token, Expiry: c.Expiry}, nil
		}
		// The lock has changed since it was read.
	}
}

// Unlock implements lock.Store. Only the leader can release a lock, because only the leader knows which callers wait
// for it.
func (l *Store) Unlock(ctx context.Context, r lock.Release) (lock.Status, error) {
	p, err := l.place(ctx, r.Key)
	if err != nil {
		return lock.InternalError, err
	}
	switch outcome, err := p.unlock(ctx, &r); {
	case err != nil:
		return lock.InternalError, err
	case outcome == kv.Applied:
		return lock.Unlocked, nil
	}
	return p.readAndUnlock(ctx, &r)
}

// unlock ends a lock without reading it first. The outcome kv.Conflict means that nothing was changed: at some moment
// during the call, the lock did not have the owner and the token in r.
func (p *place) unlock(ctx context.Context, r *lock.Release) (outcome kv.Outcome, err error) {
	err = p.WithID(ctx, p.gid, func(id command.RequestID) (known bool, err error) {
		n, repeated, err := p.ask(ctx, &call{what: callUnlock, token: r.Token, claim: Claim{Owner: r.Owner}, id: id})
		outcome = kv.Outcome(n) //nolint:gosec // a small number
		switch {
		case err != nil || outcome != kv.Stale:
			return true, err
		case repeated:
			return true, fault.New(fault.Indeterminate, opRelease,
				"the lock may have been released: the result is no longer kept")
		}
		return false, nil
	})
	return outcome, err
}

// readAndUnlock reads a lock and ends it. It returns lock.DoesNotExist if the lock does not exist, and
// lock.BelongsToOthers if the lock does not have the owner and the token in r.
func (p *place) readAndUnlock(ctx context.Context, r *lock.Release) (lock.Status, error) {
	ended := uint64(0) // token of the lock that an attempt may have ended
	for {
		now, found, err := p.current(ctx)
		switch {
		case err != nil:
			return lock.InternalError, err
		case ended != 0 && (!found || now.Token != ended):
			return lock.Unlocked, nil
		case !found:
			return lock.DoesNotExist, nil
		case now.Owner != r.Owner || r.Token != 0 && now.Token != r.Token:
			return lock.BelongsToOthers, nil
		}
		n, repeated, err := p.ask(ctx, &call{what: callRelease, token: now.Token})
		if err != nil {
			return lock.InternalError, err
		}
		if n == 1 {
			return lock.Unlocked, nil
		}
		if repeated {
			ended = now.Token
		}
	}
}

// Look implements lock.Leaser.
func (l *Store) Look(ctx context.Context, k lock.Key) (lock.Grant, error) {
	p, err := l.place(ctx, k)
	if err != nil {
		return lock.Grant{}, err
	}
	now, found, err := p.current(ctx)
	if err != nil || !found {
		return lock.Grant{}, err
	}
	ms, _, err := p.ask(ctx, &call{what: callRemains, token: now.Token})
	if err != nil {
		return lock.Grant{}, err
	}
	return lock.Grant{Granted: true, Token: now.Token,
		Expiry: min(time.Duration(ms)*time.Millisecond, now.Expiry)}, nil //nolint:gosec // bounded by the expiry
}

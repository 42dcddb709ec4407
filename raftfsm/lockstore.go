package raftfsm

import (
	"context"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/datadir"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/locks"
)

// Locks is a lock store of type lock.raft. It stores its locks in the groups of a Store. The locks of an application
// are in the same group as the keys of the application, so that a write can check a lock. It is safe for concurrent
// use.
type Locks struct {
	store     *Store
	component string
	// reentrant lets TryLock of the owner renew the lock.
	reentrant bool
}

var _ lock.Leaser = (*Locks)(nil)

// Locks returns the lock store of a component, which stores its locks in the groups of s. If reentrant is true and the
// caller already owns the lock, TryLock renews it instead of failing. Clients that have no renew operation need this.
func (s *Store) Locks(component string, reentrant bool) *Locks {
	return &Locks{store: s, component: component, reentrant: reentrant}
}

// Close does nothing: locks belong to the Host.
func (l *Locks) Close() error { return nil }

// lockMark separates the prefix of a lock from its component.
const lockMark = "||$lock||"

// lockRecordName returns the name of a lock within its group.
func lockRecordName(store, component string, k lock.Key) string {
	return store + "\x00" + k.Prefix + lockMark + component + state.Separator + k.Resource
}

// place is a lock and the group it is in.
type place struct {
	*router
	name string
	gid  uint32
}

func (l *Locks) place(ctx context.Context, k lock.Key) (place, error) {
	r := l.store.router
	if err := l.store.enter(ctx, "raftfsm.lock"); err != nil {
		return place{}, err
	}
	if _, err := r.node.wait(ctx); err != nil {
		return place{}, err
	}
	n, err := r.replica.waitPartitions(ctx)
	if err != nil {
		return place{}, err
	}
	return place{r, lockRecordName(l.store.id, l.component, k), partitionOf(l.store.id, k.Prefix+"||", n)}, nil
}

// current returns the lock as of now; found is false if it has no owner.
func (p *place) current(ctx context.Context) (l locks.Lock, found bool, err error) {
	q := query{kind: queryMany, store: kv.LockStore, keys: locks.Keys(p.name)}
	if _, err := p.read(ctx, p.gid, &state.ReadOptions{Consistency: state.Strong}, &q); err != nil {
		return l, false, err
	}
	return locks.Parse(q.values)
}

// commit writes a request. applied is true if the conditions of the request were met.
func (p *place) commit(ctx context.Context, r *command.Request) (res kv.Result, applied bool, err error) {
	a, err := p.write(ctx, p.gid, r, group.Committed)
	return a.Result, err == nil && a.Result.Outcome == kv.Applied, err
}

// maxExpiry is the longest expiry that a caller may request. Records that were written by an earlier version may have
// a longer expiry.
const maxExpiry = 24 * time.Hour

func checkExpiry(c *lock.Claim) error {
	if c.Expiry <= maxExpiry {
		return nil
	}
	return &fault.Error{Code: fault.TooLarge, Op: "raftfsm.TryLock", Key: c.Key.Resource,
		Msg:  "an expiry of " + c.Expiry.String() + " is longer than 24 hours",
		Hint: "renew the lock while it is needed"}
}

// TryLock implements lock.Store.
func (l *Locks) TryLock(ctx context.Context, c lock.Claim) (lock.Grant, error) {
	if err := checkExpiry(&c); err != nil {
		return lock.Grant{}, err
	}
	p, err := l.place(ctx, c.Key)
	if err != nil {
		return lock.Grant{}, err
	}
	claim := locks.Claim{Owner: c.Owner, Request: datadir.RandomID(), Expiry: c.Expiry}
	res, applied, err := p.commit(ctx, locks.Acquire(p.name, claim))
	if applied {
		return lock.Grant{Granted: true, Token: res.Revisions[0], Expiry: c.Expiry}, nil
	}
	if err != nil {
		return lock.Grant{}, err
	}
	if l.reentrant {
		if g, err := p.renew(ctx, claim); err != nil || g.Granted {
			return g, err
		}
	}
	if c.Wait <= 0 {
		return lock.Grant{}, nil
	}
	return p.await(ctx, claim, c.Wait)
}

// await waits for a lock that has another owner.
func (p *place) await(ctx context.Context, c locks.Claim, patience time.Duration) (lock.Grant, error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	token, _, err := p.askLock(waiting, p.gid, &lockCall{what: lockWait, name: p.name, claim: c})
	switch {
	case err == nil:
		return lock.Grant{Granted: true, Token: token, Expiry: c.Expiry}, nil
	case waiting.Err() == nil || ctx.Err() != nil:
		return lock.Grant{}, err
	}
	// The waiting time has passed. If the leader changed at the last moment, the lock may have been granted
	// nevertheless.
	if now, found, err := p.current(ctx); err != nil || found && now.Request == c.Request {
		return lock.Grant{Granted: err == nil, Token: now.Token, Expiry: c.Expiry}, err
	}
	return lock.Grant{}, nil
}

// Renew implements lock.Leaser.
func (l *Locks) Renew(ctx context.Context, c lock.Claim) (lock.Grant, error) {
	if err := checkExpiry(&c); err != nil {
		return lock.Grant{}, err
	}
	p, err := l.place(ctx, c.Key)
	if err != nil {
		return lock.Grant{}, err
	}
	return p.renew(ctx, locks.Claim{Owner: c.Owner, Expiry: c.Expiry})
}

func (p *place) renew(ctx context.Context, c locks.Claim) (lock.Grant, error) {
	for {
		now, found, err := p.current(ctx)
		if err != nil || !found || now.Owner != c.Owner {
			return lock.Grant{}, err
		}
		_, applied, err := p.commit(ctx, locks.Renew(p.name, now, c))
		if err != nil {
			return lock.Grant{}, err
		}
		if applied {
			return lock.Grant{Granted: true, Token: now.Token, Expiry: c.Expiry}, nil
		}
		// The lock has changed since it was read.
	}
}

// Unlock implements lock.Store. It asks the leader to release the lock, because only the leader knows which callers
// wait for the lock.
func (l *Locks) Unlock(ctx context.Context, k lock.Key, owner string) (lock.Status, error) {
	p, err := l.place(ctx, k)
	if err != nil {
		return lock.InternalError, err
	}
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
		case now.Owner != owner:
			return lock.BelongsToOthers, nil
		}
		n, repeated, err := p.askLock(ctx, p.gid, &lockCall{what: lockRelease, name: p.name, token: now.Token})
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
func (l *Locks) Look(ctx context.Context, k lock.Key) (lock.Grant, error) {
	p, err := l.place(ctx, k)
	if err != nil {
		return lock.Grant{}, err
	}
	now, found, err := p.current(ctx)
	if err != nil || !found {
		return lock.Grant{}, err
	}
	ms, _, err := p.askLock(ctx, p.gid, &lockCall{what: lockRemains, name: p.name, token: now.Token})
	if err != nil && !fault.Is(err, fault.Unimplemented) {
		return lock.Grant{}, err
	}
	return lock.Grant{Granted: true, Token: now.Token,
		Expiry: min(time.Duration(ms)*time.Millisecond, now.Expiry)}, nil //nolint:gosec // bounded by the expiry
}

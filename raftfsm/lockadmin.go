package raftfsm

import (
	"context"
	"strings"
	"time"

	"github.com/quorate/quorate/component/state"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/locks"
)

// HeldLock is a lock that has an owner.
type HeldLock struct {
	Component  string // of the lock store
	StateStore string // store whose writes can carry the token
	Namespace  string
	Prefix     string // of the keys that it protects, such as the id of the application; may be empty
	Resource   string
	Owner      string
	Token      uint64
	Expiry     time.Duration // from the acquisition or the last renewal on

	name string
	gid  uint32
}

// HeldLocks returns every lock that has an owner, ordered by group and name. It reads in pages. Each page is a
// linearizable read, but different pages may show different moments.
func (h *Host) HeldLocks(ctx context.Context) ([]HeldLock, error) {
	n, err := h.replica.waitPartitions(ctx)
	if err != nil {
		return nil, err
	}
	var out []HeldLock
	for gid := range n {
		for q := (query{kind: queryList, store: kv.LockStore, prefix: locks.Owners, limit: maxPage}); ; {
			if _, err := h.router.read(ctx, gid, &state.ReadOptions{Consistency: state.Strong}, &q); err != nil {
				return nil, err
			}
			for i := range q.listed {
				l, found, err := h.heldLock(ctx, gid, q.listed[i].Key[len(locks.Owners):])
				if err != nil {
					return nil, err
				}
				if found {
					out = append(out, l)
				}
				q.after = q.listed[i].Key
			}
			if !q.more || len(q.listed) == 0 {
				break
			}
			q = query{kind: queryList, store: kv.LockStore, prefix: locks.Owners, limit: maxPage, after: q.after}
		}
	}
	return out, nil
}

func (h *Host) heldLock(ctx context.Context, gid uint32, name string) (HeldLock, bool, error) {
	p := place{h.router, name, gid}
	l, found, err := p.current(ctx)
	if err != nil || !found {
		return HeldLock{}, false, err
	}
	space, rest, _ := strings.Cut(name, "\x00")
	out := HeldLock{Owner: l.Owner, Token: l.Token, Expiry: l.Expiry, name: name, gid: gid}
	out.Namespace, out.StateStore, _ = strings.Cut(space, "/")
	out.Prefix, rest, _ = strings.Cut(rest, lockMark)
	out.Component, out.Resource, _ = strings.Cut(rest, state.Separator)
	return out, true, nil
}

// LockLeft returns how long the lock l, which HeldLocks has returned, stays valid if it is not renewed. It returns 0
// if the lock has ended. The leader of the lock's group measures this time from the moment at which it learned of the
// last renewal.
func (h *Host) LockLeft(ctx context.Context, l *HeldLock) (time.Duration, error) {
	ms, _, err := h.router.askLock(ctx, l.gid, &lockCall{what: lockRemains, name: l.name, token: l.Token})
	ms = min(ms, uint64(locks.MaxExpiry/time.Millisecond))
	return time.Duration(ms) * time.Millisecond, err //nolint:gosec // bounded
}

// ReleaseLock ends a lock on behalf of an operator, whoever owns it. released is false if the lock was released, or
// granted again, after HeldLocks returned it. ReleaseLock returns fault.Indeterminate if the answer of the leader was
// lost, and fault.Invalid for a lock that HeldLocks did not return.
func (h *Host) ReleaseLock(ctx context.Context, l *HeldLock) (released bool, err error) {
	if l.name == "" {
		return false, fault.New(fault.Invalid, "raftfsm.ReleaseLock", "the lock does not come from HeldLocks")
	}
	n, repeated, err := h.router.askLock(ctx, l.gid, &lockCall{what: lockRelease, name: l.name, token: l.Token})
	return n == 1 || repeated && err == nil, err
}

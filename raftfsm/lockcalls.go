package raftfsm

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/group"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/locks"
)

// What MethodLock does. The numbers are part of the protocol.
const (
	lockWait    = 1 // wait for a lock; answered with its token
	lockRelease = 2 // end the lock with a token; answered with 1 if that has happened
	lockRemains = 3 // how long the lock with a token is valid, in milliseconds
)

// lockGroup is a group as its Keeper uses it.
type lockGroup struct{ *group.Group }

// Commit implements locks.Group.
func (g lockGroup) Commit(ctx context.Context, r *command.Request) (kv.Result, error) {
	a, err := g.ProposeRequest(ctx, r, group.Committed)
	return a.Result, err
}

// lockCall is a call to the leader about one lock.
type lockCall struct {
	what  byte
	name  string
	token uint64
	claim locks.Claim // lockWait
}

func (c *lockCall) append(b []byte) []byte {
	b = appendString(append(b, c.what), c.name)
	b = binary.AppendUvarint(b, c.token)
	b = appendString(appendString(b, c.claim.Owner), c.claim.Request)
	return binary.AppendUvarint(b, uint64(c.claim.Expiry.Milliseconds())) //nolint:gosec // positive
}

func readLockCall(f *frame) (lockCall, error) {
	c := lockCall{what: f.Byte(), name: f.Text(), token: f.Uvarint()}
	c.claim.Owner, c.claim.Request = f.Text(), f.Text()
	ms := f.Uvarint()
	if f.Bad || len(f.Rest) > 0 || c.name == "" {
		return c, errFrame(MethodLock)
	}
	ms = min(ms, uint64(locks.MaxExpiry/time.Millisecond))
	c.claim.Expiry = time.Duration(ms) * time.Millisecond //nolint:gosec // bounded
	return c, nil
}

// serveLock answers a call about a lock of a group that this server leads.
func (s *server) serveLock(ctx context.Context, gid uint32, f *frame) ([]byte, error) {
	c, err := readLockCall(f)
	if err != nil {
		return nil, err
	}
	k := s.keepers[gid]
	n := uint64(0)
	switch c.what {
	case lockWait:
		n, err = k.Wait(ctx, c.name, c.claim)
	case lockRelease:
		var released bool
		released, err = k.Release(ctx, c.name, c.token)
		n = uint64(boolByte(released))
	case lockRemains:
		n = uint64(k.Remaining(c.name, c.token).Milliseconds()) //nolint:gosec // not negative
	default:
		return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "this version does not know the call about a lock")
	}
	if err != nil {
		return nil, err
	}
	return binary.AppendUvarint(nil, n), nil
}

// askLock sends a call to the leader of a group, and retries until the leader answers or ctx ends. n is the number in
// the leader's answer. repeated is true if an earlier attempt may have been executed.
func (r *router) askLock(ctx context.Context, gid uint32, c *lockCall) (n uint64, repeated bool, err error) {
	return r.askNumber(ctx, gid, MethodLock, c.append(message(formFirst, gid)))
}

// askNumber sends a call of the given method to the leader of a group. The answer of the method must be a number. The
// results are those of askLock.
func (r *router) askNumber(ctx context.Context, gid uint32, method string, b []byte) (n uint64, repeated bool,
	err error) {
	for {
		out, err := r.replica.ask(ctx, gid, method, b)
		if err == nil {
			f := newFrame(out)
			if n = f.Uvarint(); f.Bad {
				return 0, repeated, errFrame(method)
			}
			return n, repeated, nil
		}
		repeated = repeated || fault.Is(err, fault.Indeterminate)
		if !r.retry.again(ctx, r.replica, gid, err) {
			if ctx.Err() != nil && fault.Is(err, fault.NotLeader) {
				err = noQuorum(method, r.replica, gid, err)
			}
			if repeated && !fault.Is(err, fault.Indeterminate) {
				err = &fault.Error{Code: fault.Indeterminate, Op: method, Err: err,
					Msg: "an attempt may have changed it, and its answer was lost", Hint: "look at it, and try again"}
			}
			return 0, repeated, err
		}
	}
}

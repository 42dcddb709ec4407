package locks

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
	"github.com/quorate/quorate/raftfsm/records"
)

// Methods of the calls between nodes about a lock. A server limits the calls of each method. Calls that wait for a lock
// have a separate method, so that they cannot block the calls that release locks.
const (
	Method     = "raft.lock"
	MethodWait = "raft.lock-wait"
)

// What a call does. The numbers are part of the protocol.
const (
	callWait    = 1 // wait for a lock; answered with its token
	callRelease = 2 // end the lock with a token; answered with 1 if this call has ended it, otherwise 0
	callRemains = 3 // answered with the time for which the lock with a token is still valid, in milliseconds
	callUnlock  = 4 // end the lock of an owner; answered with a kv.Outcome
)

// call is a call to the leader about one lock.
type call struct {
	what  byte
	name  string
	token uint64            // callRelease, callRemains; callUnlock: 0 = any
	claim Claim             // callWait; callUnlock: only Owner
	id    command.RequestID // callUnlock
}

func (c *call) method() string {
	if c.what == callWait {
		return MethodWait
	}
	return Method
}

func (c *call) append(b []byte) []byte {
	b = lenprefix.Append(append(b, c.what), c.name)
	b = binary.AppendUvarint(b, c.token)
	b = lenprefix.Append(lenprefix.Append(b, c.claim.Owner), c.claim.Request)
	expiry := uint64(c.claim.Expiry.Milliseconds()) //nolint:gosec // positive
	for _, n := range [...]uint64{expiry, c.id.Origin, c.id.Seq, c.id.Done} {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

func readCall(r *lenprefix.Reader) (call, error) {
	c := call{what: r.Byte(), name: r.Text(), token: r.Uvarint()}
	c.claim.Owner, c.claim.Request = r.Text(), r.Text()
	ms := r.Uvarint()
	c.id = command.RequestID{Origin: r.Uvarint(), Seq: r.Uvarint(), Done: r.Uvarint()}
	if r.Bad || len(r.Rest) > 0 || c.name == "" {
		return c, records.Truncated(Method)
	}
	ms = min(ms, uint64(lock.MaxExpiry/time.Millisecond))
	c.claim.Expiry = time.Duration(ms) * time.Millisecond //nolint:gosec // bounded
	return c, nil
}

// Serve executes a call about a lock of this group. It decodes the call from r, and returns the encoded answer. Any
// node may send such a call.
func (k *Keeper) Serve(ctx context.Context, r *lenprefix.Reader) ([]byte, error) {
	c, err := readCall(r)
	if err != nil {
		return nil, err
	}
	n := uint64(0)
	switch c.what {
	case callWait:
		n, err = k.Wait(ctx, c.name, c.claim)
	case callRelease:
		var released bool
		released, err = k.Release(ctx, c.name, c.token)
		n = records.Bit(released)
	case callUnlock:
		var outcome kv.Outcome
		outcome, err = k.Unlock(ctx, c.name, c.claim.Owner, c.token, c.id)
		n = uint64(outcome)
	case callRemains:
		var remaining time.Duration
		remaining, err = k.Remaining(c.name, c.token)
		n = uint64(remaining.Milliseconds()) //nolint:gosec // not negative
	default:
		return nil, fault.New(fault.Unimplemented, "raftfsm.Serve", "this version does not know the call about a lock")
	}
	if err != nil {
		return nil, err
	}
	return records.Number(n), nil
}

package locks

import (
	"encoding/binary"
	"time"

	"github.com/quorate/quorate/component/lock"
	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/lenprefix"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// First bytes of the keys of the two records of a lock.
const (
	ownerRecord  = "o"
	expiryRecord = "e"
)

// Keys returns the keys of the two records of a lock: the owner record and the expiry record. name identifies the
// lock within the group.
func Keys(name string) []string { return []string{ownerRecord + name, expiryRecord + name} }

// Owners is the common prefix of the keys of all owner records. The rest of each key is the name of the lock.
const Owners = ownerRecord

// nameOf returns the name of the lock to which the record with this key belongs. The result ok is false if the record
// belongs to package actors, which uses the same store.
func nameOf(key string) (name string, ok bool) {
	if key == "" || key[:1] != ownerRecord && key[:1] != expiryRecord {
		return "", false
	}
	return key[1:], true
}

// Claim is what a caller requests of a lock.
type Claim struct {
	Owner   string
	Request string // identifies the call, so that a repeated call recognizes the lock of the first; may be empty
	Expiry  time.Duration
}

// Lock is the state of a lock that has an owner.
type Lock struct {
	Claim
	Token    uint64 // fencing token; greater than that of every earlier owner
	Renewals uint64 // revision of the record that has the expiry; it changes with each renewal
}

// Parse decodes a lock. records has the two records of the lock, in the order of Keys. The result found is false if the
// lock has no owner. Parse returns fault.Corrupt if a record cannot be decoded.
func Parse(records []kv.Value) (l Lock, found bool, err error) {
	owner, expiry := records[0], records[1]
	if !owner.Found || !expiry.Found {
		return Lock{}, false, nil
	}
	r := lenprefix.Reader{Rest: owner.Value}
	l.Owner, l.Request = r.Text(), r.Text()
	e := lenprefix.Reader{Rest: expiry.Value}
	ms := e.Uvarint()
	if r.Bad || e.Bad || len(r.Rest)+len(e.Rest) > 0 {
		return Lock{}, false, &fault.Error{Code: fault.Corrupt, Op: "locks.Parse", Msg: "a lock has a record that " +
			"cannot be decoded", Hint: "run the newest version on every server"}
	}
	ms = min(ms, uint64(lock.MaxExpiry/time.Millisecond))
	l.Expiry = time.Duration(ms) * time.Millisecond //nolint:gosec // bounded
	l.Token, l.Renewals = owner.Revision, expiry.Revision
	return l, true, nil
}

// set returns the operations that write both records of a lock. The write of the owner record has the given condition
// and revision.
func (c Claim) set(name string, cond command.Cond, revision uint64) []command.Op {
	owner := binary.AppendUvarint(nil, uint64(len(c.Owner)))
	owner = binary.AppendUvarint(append(owner, c.Owner...), uint64(len(c.Request)))
	keys := Keys(name)
	return []command.Op{
		{Kind: command.OpSet, Cond: cond, Revision: revision, Store: kv.LockStore, Key: keys[0],
			Value: append(owner, c.Request...)},
		c.setExpiry(keys[1], command.CondNone, 0),
	}
}

func (c Claim) setExpiry(key string, cond command.Cond, revision uint64) command.Op {
	ms := max(min(c.Expiry, lock.MaxExpiry).Milliseconds(), 1)
	return command.Op{Kind: command.OpSet, Cond: cond, Revision: revision, Store: kv.LockStore, Key: key,
		Value: binary.AppendUvarint(nil, uint64(ms))} //nolint:gosec // positive
}

// Acquire returns the request that makes c the owner of the lock with this name. The request fails if the lock has an
// owner. The first revision in its result is the token.
func Acquire(name string, c Claim) *command.Request {
	check := command.Op{Kind: command.OpCheck, Cond: command.CondAbsent, Store: kv.LockStore, Key: Keys(name)[1]}
	return &command.Request{Kind: command.KindWrite,
		Ops: append(c.set(name, command.CondAbsent, 0), check)}
}

// Renew returns the request that renews the lock l. The lock then expires after c.Expiry, counted from the renewal.
func Renew(name string, l Lock, c Claim) *command.Request {
	return &command.Request{Kind: command.KindWrite,
		Ops: []command.Op{c.setExpiry(Keys(name)[1], command.CondRevision, l.Renewals)}}
}

// release returns the request that ends the lock with this token. If successor is not nil, the request also makes
// successor the owner of the lock. renewals is the value of Lock.Renewals that the caller has read. The request fails
// if the lock was renewed since that read. If renewals is 0, the request does not check for renewals.
func release(name string, token, renewals uint64, successor *Claim) *command.Request {
	keys := Keys(name)
	r := &command.Request{Kind: command.KindWrite}
	if successor != nil {
		r.Ops = successor.set(name, command.CondRevision, token)
	} else {
		r.Ops = []command.Op{
			{Kind: command.OpDelete, Cond: command.CondRevision, Revision: token, Store: kv.LockStore, Key: keys[0]},
			{Kind: command.OpDelete, Store: kv.LockStore, Key: keys[1]},
		}
	}
	if renewals != 0 {
		r.Ops[1].Cond, r.Ops[1].Revision = command.CondRevision, renewals
	}
	return r
}

// refused returns a request that changes nothing. Its result shows the outcome of an earlier request with the same id,
// or kv.Conflict if the group has decided none.
func refused(name string, id command.RequestID) *command.Request {
	return &command.Request{Kind: command.KindWrite, ID: id, Ops: []command.Op{
		{Kind: command.OpDelete, Cond: command.CondNever, Store: kv.LockStore, Key: Keys(name)[0]}}}
}

// Expire returns the request that ends l unless it was renewed or released.
func Expire(name string, l Lock) *command.Request { return release(name, l.Token, l.Renewals, nil) }

// Check returns the operation to add to a write that requires a lock. The write then fails unless the lock with this
// name has this token.
func Check(name string, token uint64) command.Op {
	return command.Op{Kind: command.OpCheck, Cond: command.CondRevision, Revision: token, Store: kv.LockStore,
		Key: Keys(name)[0]}
}

package locks

import (
	"strconv"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/raftfsm/command"
	"github.com/quorate/quorate/raftfsm/kv"
)

// MaxLocks is the default for the maximum number of locks of a group.
const MaxLocks = 100_000

// Admit returns fault.Overloaded if the encoded request acquires a new lock and the group has the maximum number of
// locks. It returns nil for every other request, for example for a lock that already has an owner. On a server that
// does not lead, Admit returns nil.
//
// The leader counts the locks that it has applied and read. The limit may therefore be exceeded by the number of
// requests in flight, and a new leader counts no locks until it has read them.
func (k *Keeper) Admit(encoded []byte) error {
	if !k.full() {
		return nil
	}
	name, ok := acquires(encoded)
	if !ok || k.hasOwner(name) {
		return nil
	}
	return &fault.Error{Code: fault.Overloaded, Op: "locks.TryLock", Msg: "the group has " + strconv.Itoa(k.limit) +
		" locks already, which is the limit",
		Hint: "release locks that are not needed, or let them expire earlier; 'quorate locks list' shows them"}
}

func (k *Keeper) full() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.locks) >= k.limit
}

func (k *Keeper) hasOwner(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.locks[name] != nil
}

// acquires returns the name of the lock that an encoded request acquires. The result ok is false if the request was
// not made by Acquire.
func acquires(encoded []byte) (name string, ok bool) {
	b, err := command.Decode(append(command.AppendHeader(nil, command.Needs(encoded), 0, 1), encoded...))
	if err != nil || len(b.Requests) != 1 || len(b.Requests[0].Ops) == 0 {
		return "", false
	}
	o := b.Requests[0].Ops[0]
	if o.Kind != command.OpSet || o.Cond != command.CondAbsent || o.Store != kv.LockStore || o.Key[:1] != ownerRecord {
		return "", false
	}
	return o.Key[1:], true
}

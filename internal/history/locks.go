package history

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// LockOp is what a call on a lock does.
type LockOp uint8

// The operations on locks.
const (
	OpLock LockOp = iota
	OpUnlock
	OpRenew
	OpLook
	OpWrite // a write that carries a token
)

// String returns the name of the operation.
func (o LockOp) String() string { return []string{"lock", "unlock", "renew", "look", "write"}[o] }

// The results of OpUnlock.
const (
	Unlocked      = 0
	LockNotFound  = 1
	LockOfAnother = 2
)

// LockCall is a request about a lock. Times are in nanoseconds since the start of the history.
type LockCall struct {
	Lock   string
	Op     LockOp
	Owner  string        // owner, for OpLock, OpUnlock and OpRenew
	Expiry time.Duration // expiry, for OpLock and OpRenew
	Token  uint64        // token, for OpWrite
	Begin  int64
	end    int64 // the latest time at which the call may have taken effect, if the outcome is known
}

// LockAnswer is the answer to a LockCall.
type LockAnswer struct {
	Unknown bool   // the call may have been done, or may still be done at any later time
	OK      bool   // granted, renewed, held, written
	Token   uint64 // token, for OpLock, OpRenew and OpLook if OK is true
	Status  int    // result of OpUnlock
}

// lockState is the state of one lock.
type lockState struct {
	owner string // empty = free
	token uint64 // 0 = not known, because the answer to its owner was lost
	last  uint64 // greatest token that was seen
	until int64  // earliest time of its expiry
}

// lockModel returns the porcupine model of one lock. Unless the owner unlocks the lock, it must not be freed before its
// expiry. The expiry is counted from the start of the call that acquired or renewed the lock. After the expiry, the
// lock may be freed at any time.
func lockModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{lockState{}} },
		Step: func(s, in, out any) (next []any) {
			i, o := in.(LockCall), out.(LockAnswer)
			have := s.(lockState)
			next = lockStep(have, i, o)
			if have.owner != "" && (o.Unknown || i.end >= have.until) {
				next = append(next, lockStep(lockState{last: have.last}, i, o)...)
			}
			return next
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	}
	return m.ToModel()
}

// lockStep returns the possible states of a lock after a call. It assumes that the lock has not expired before the
// call. The result is empty if a correct lock service could not have given this answer.
func lockStep(s lockState, in LockCall, out LockAnswer) []any {
	held := s.owner != ""
	mine := held && s.owner == in.Owner
	until := in.Begin + int64(in.Expiry)
	var changed lockState
	possible := false
	switch in.Op {
	case OpLock:
		changed, possible = lockState{in.Owner, out.Token, max(s.last, out.Token), until}, !held
	case OpUnlock:
		changed, possible = lockState{last: s.last}, mine
	case OpRenew:
		changed, possible = s, mine
		changed.until = until
	case OpLook, OpWrite:
	}
	if out.Unknown {
		if possible {
			return []any{s, changed}
		}
		return []any{s}
	}
	switch in.Op {
	case OpLock:
		if out.OK {
			return when(possible && out.Token > s.last, changed)
		}
		return when(held, s)
	case OpUnlock:
		switch out.Status {
		case Unlocked:
			return when(mine, changed)
		case LockNotFound:
			return when(!held, s)
		default:
			return when(held && !mine, s)
		}
	case OpRenew:
		if !out.OK {
			return when(!mine, s)
		}
		return when(possible && changed.learn(out.Token), changed)
	case OpLook:
		if !out.OK {
			return when(!held, s)
		}
		return when(held && s.learn(out.Token), s)
	case OpWrite:
		if !out.OK {
			return when(!held || s.token != in.Token, s)
		}
		return when(held && s.learn(in.Token), s)
	}
	return nil
}

// learn sets the fencing token of the lock, if it is not known yet and the given token is higher than the tokens of all
// earlier grants. learn returns true if the lock now has the given token.
func (s *lockState) learn(token uint64) bool {
	if s.token == 0 && token > s.last {
		s.token, s.last = token, token
	}
	return s.token == token
}

func when(holds bool, s lockState) []any {
	if holds {
		return []any{s}
	}
	return nil
}

// Locks records calls on locks. It is safe for concurrent use.
type Locks struct {
	clock func() int64

	mu      sync.Mutex
	names   []string                         // locks in the order of their first calls; guarded by mu, as below
	calls   map[string][]porcupine.Operation // calls by lock
	size    int
	unknown int
	granted int
	fenced  int // writes with a token that were refused
}

// NewLocks returns an empty history. The function clock returns the current time in nanoseconds, like the clock of
// WallClock.
func NewLocks(clock func() int64) *Locks {
	return &Locks{clock: clock, calls: map[string][]porcupine.Operation{}}
}

// Now returns the current time, with which the caller records the begin of a call.
func (h *Locks) Now() int64 { return h.clock() }

// Add records a call that ends now.
func (h *Locks) Add(client int, in LockCall, out LockAnswer) {
	in.end = h.clock()
	h.mu.Lock()
	defer h.mu.Unlock()
	end := in.end
	if out.Unknown {
		h.unknown++
		client, end = 1_000_000+h.size, never
	}
	if in.Op == OpLock && out.OK {
		h.granted++
	}
	if in.Op == OpWrite && !out.OK {
		h.fenced++
	}
	h.size++
	if h.calls[in.Lock] == nil {
		h.names = append(h.names, in.Lock)
	}
	h.calls[in.Lock] = append(h.calls[in.Lock],
		porcupine.Operation{ClientId: client, Input: in, Call: in.Begin, Output: out, Return: end})
}

// Size returns the number of calls.
func (h *Locks) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.size
}

// Check returns a *NotLinearizable if the answers about a lock cannot come from a correct lock service. It then writes
// a visualization to a file in dir. Check also returns a *NotLinearizable if the check of one lock takes longer than
// the given limit.
func (h *Locks) Check(limit time.Duration, dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range h.names {
		if err := search(lockModel(), name, h.calls[name], limit, dir); err != nil {
			return err
		}
	}
	return nil
}

// WriteTo writes all calls as text, one on each line.
func (h *Locks) WriteTo(w io.Writer) (n int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []porcupine.Operation
	for _, name := range h.names {
		all = slices.Concat(all, h.calls[name])
	}
	return writeLines(w, describe(all))
}

// String returns a summary.
func (h *Locks) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d operations, %d grants, %d writes with a token refused, %d of unknown outcome", h.size,
		h.granted, h.fenced, h.unknown)
}

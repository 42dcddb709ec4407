package faulttest

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// lockCall is what an operation on a lock does.
type lockCall uint8

const (
	callLock lockCall = iota
	callUnlock
	callRenew
	callLook
	callWrite // a write that carries a token
)

// String returns the name of the operation.
func (c lockCall) String() string { return []string{"lock", "unlock", "renew", "look", "write"}[c] }

// lockIn is a request about a lock. Times are in nanoseconds since the start of the history.
type lockIn struct {
	lock   string
	call   lockCall
	owner  string        // callLock, callUnlock, callRenew
	expiry time.Duration // callLock, callRenew
	token  uint64        // callWrite
	begin  int64
	end    int64 // the latest time at which it may have taken effect, if the outcome is known
}

// lockOut is the response.
type lockOut struct {
	unknown bool
	ok      bool   // granted, renewed, held, written
	token   uint64 // of callLock, callRenew and callLook, if ok
	status  int    // of callUnlock
}

// lockState is the state of one lock.
type lockState struct {
	owner string // empty = free
	token uint64 // 0 = not known, because the answer to its owner was lost
	last  uint64 // greatest token that was seen
	until int64  // earliest time of its expiry
}

// lockModel returns the model of a lock service that never fails. The service may free a lock at any time after its
// expiry, but never before. The expiry is counted from the start of the request that acquired or renewed the lock.
func lockModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(h []porcupine.Operation) [][]porcupine.Operation {
			var out [][]porcupine.Operation
			index := map[string]int{}
			for _, o := range h {
				name := o.Input.(lockIn).lock
				i, known := index[name]
				if !known {
					i = len(out)
					index[name], out = i, append(out, nil)
				}
				out[i] = append(out[i], o)
			}
			return out
		},
		Init: func() []any { return []any{lockState{}} },
		Step: func(s, in, out any) (next []any) {
			i, o := in.(lockIn), out.(lockOut)
			have := s.(lockState)
			next = lockStep(have, i, o)
			if have.owner != "" && (o.unknown || i.end >= have.until) {
				next = append(next, lockStep(lockState{last: have.last}, i, o)...)
			}
			return next
		},
		DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
	}
	return m.ToModel()
}

// lockStep returns the possible states of a lock after an operation. It assumes that the lock has not expired before
// the operation. The result is empty if a correct lock service could not have given this response.
func lockStep(s lockState, in lockIn, out lockOut) []any {
	held := s.owner != ""
	mine := held && s.owner == in.owner
	until := in.begin + int64(in.expiry)
	var changed lockState
	possible := false
	switch in.call {
	case callLock:
		changed, possible = lockState{in.owner, out.token, max(s.last, out.token), until}, !held
	case callUnlock:
		changed, possible = lockState{last: s.last}, mine
	case callRenew:
		changed, possible = s, mine
		changed.until = until
	case callLook, callWrite:
	}
	if out.unknown {
		if possible {
			return []any{s, changed}
		}
		return []any{s}
	}
	same := []any{s}
	switch in.call {
	case callLock:
		if out.ok {
			return when(possible && out.token > s.last, changed)
		}
		return when(held, s)
	case callUnlock:
		switch out.status {
		case 0:
			return when(mine, changed)
		case 1:
			return when(!held, s)
		default:
			return when(held && !mine, s)
		}
	case callRenew:
		if !out.ok {
			return when(!mine, s)
		}
		return when(possible && changed.learn(out.token), changed)
	case callLook:
		if !out.ok {
			return when(!held, s)
		}
		return when(held && s.learn(out.token), s)
	case callWrite:
		if !out.ok {
			return when(!held || s.token != in.token, s)
		}
		return when(held && s.learn(in.token), s)
	}
	return same
}

// learn sets the fencing token of the lock if it is not known yet. It returns false if the lock has another token, or
// if token is not higher than the tokens of all earlier grants.
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

// LockHistory records operations on locks. It is safe for concurrent use.
type LockHistory struct {
	begun time.Time

	mu      sync.Mutex
	ops     []porcupine.Operation // guarded by mu, as are the fields below
	unknown int
	granted int
	fenced  int // writes with a token that were refused
}

// NewLockHistory starts a history.
func NewLockHistory() *LockHistory { return &LockHistory{begun: time.Now()} }

func (h *LockHistory) now() int64 { return int64(time.Since(h.begun)) }

// add records an operation that ends now.
func (h *LockHistory) add(client int, in lockIn, out lockOut) {
	h.mu.Lock()
	defer h.mu.Unlock()
	in.end = h.now()
	ret := in.end
	if out.unknown {
		h.unknown++
		client, ret = 1_000_000+len(h.ops), int64(1)<<62
	}
	if in.call == callLock && out.ok {
		h.granted++
	}
	if in.call == callWrite && !out.ok {
		h.fenced++
	}
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: in.begin, Output: out, Return: ret})
}

// Size returns the number of operations.
func (h *LockHistory) Size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// Check returns an error if the responses for a lock cannot come from a correct lock service, or if the search for an
// explanation exceeds the time limit. In both cases it writes a visualization to a file in dir.
func (h *LockHistory) Check(limit time.Duration, dir string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, ops := range lockModel().Partition(h.ops) {
		if err := search(lockModel(), i, ops, limit, dir); err != nil {
			return err
		}
	}
	return nil
}

// WriteTo writes all operations as text, one on each line.
func (h *LockHistory) WriteTo(w io.Writer) (n int64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return writeLines(w, tell(h.ops))
}

// String returns a summary.
func (h *LockHistory) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return fmt.Sprintf("%d operations, %d grants, %d writes with a token refused, %d of unknown outcome", len(h.ops),
		h.granted, h.fenced, h.unknown)
}

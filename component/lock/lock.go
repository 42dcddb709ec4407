// Package lock defines the contract of a lock store, which grants exclusive locks. A lock has at most one owner at a
// time, and it expires unless the owner renews it.
//
// The package has the request and answer types, the limits of a claim, and the metrics of lock stores. It starts no
// goroutines.
package lock

import (
	"context"
	"fmt"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Bounds of a claim in every lock store.
const (
	MaxExpiry = 24 * time.Hour
	MaxName   = 1 << 10 // bytes of a resource, and of an owner
)

// Key identifies a lock. Prefix separates the locks of different applications, and may be empty.
type Key struct {
	Prefix   string
	Resource string
}

// Claim is a request for a lock.
type Claim struct {
	Key
	Owner  string        // the owner of the lock if the claim succeeds
	Expiry time.Duration // how long the lock is valid without a renewal; above 0
	// Wait is how long the call may wait for the lock; 0 = not at all. Only a Leaser supports more than 0.
	Wait time.Duration
	// RequestID is the caller's own id of the request; empty = none. A retry with the same id gets the answer to the
	// original request. If Wait is above 0, it gets this answer only while the lock of the original request lasts,
	// and otherwise waits again. Only a Leaser supports RequestID.
	RequestID string
}

// Check returns fault.TooLarge if the resource, the owner or the expiry exceeds its limit. op is the operation to name
// in the error.
func (c *Claim) Check(op string) error {
	e := &fault.Error{Code: fault.TooLarge, Op: op, Hint: "use a shorter name"}
	switch {
	case len(c.Key.Resource) > MaxName:
		e.Msg = fmt.Sprintf("a resource of %d bytes is longer than 1 KiB", len(c.Key.Resource))
	case len(c.Owner) > MaxName:
		e.Msg = fmt.Sprintf("an owner of %d bytes is longer than 1 KiB", len(c.Owner))
	case c.Expiry > MaxExpiry:
		e.Key, e.Msg = c.Key.Resource, "an expiry of "+c.Expiry.String()+" is longer than 24 hours"
		e.Hint = "renew the lock while it is needed"
	default:
		return nil
	}
	return e
}

// Release is a request to end a lock.
type Release struct {
	Key
	Owner string
	// Token limits the request to the acquisition with this token; 0 = any. Only a Leaser supports more than 0.
	Token uint64
}

// Grant is the result of a Claim, or the state of a lock.
type Grant struct {
	Granted bool
	// Token is greater than the token of every earlier owner of the lock; 0 = the store has no tokens.
	Token  uint64
	Expiry time.Duration // how long the lock is valid from now on
}

// Status is the result of Unlock. The values are the same as in Dapr's API.
type Status int

// The results of Unlock.
const (
	Unlocked        Status = 0
	DoesNotExist    Status = 1
	BelongsToOthers Status = 2
	InternalError   Status = 3
)

// Store is implemented by every lock store. All methods are safe for concurrent use. A method with a parameter ctx
// returns when ctx ends. Errors are *fault.Error with the same codes as those of state.Store. After
// fault.Indeterminate, the caller does not know whether it owns the lock.
type Store interface {
	// TryLock makes a caller the owner of a lock unless the lock has an owner.
	TryLock(ctx context.Context, c Claim) (Grant, error)
	// Unlock ends a lock, if the owner in the request owns it. If r.Token is not 0 and the lock has another token,
	// Unlock changes nothing and returns BelongsToOthers.
	Unlock(ctx context.Context, r Release) (Status, error)
	Close() error
}

// Leaser is implemented by lock stores that support fencing tokens, renewal, and waiting for a lock.
type Leaser interface {
	Store
	// Renew restarts the expiry of a lock. The token stays the same. If the caller does not own the lock, Renew
	// changes nothing and Grant.Granted is false.
	Renew(ctx context.Context, c Claim) (Grant, error)
	// Look returns the state of a lock: the grant of its owner. The read is linearizable.
	Look(ctx context.Context, k Key) (Grant, error)
}

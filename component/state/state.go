// Package state defines the interface of state stores. The API reads and writes all state through this interface. The
// package owns the request and answer types, the key prefix strategies, and the wrappers for settings, metrics,
// encryption and monitoring. The stores themselves are in other packages and pass the test suite in statetest.
//
// A Store is safe for concurrent use. The only goroutine of this package is that of a Monitor, which ends when the
// Monitor is closed.
package state

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Consistency is the level that a caller requests.
type Consistency uint8

// The consistency levels of requests. DefaultConsistency means that the request sets no level. The default of the store
// then applies, which is Eventual unless the component file sets another level.
const (
	DefaultConsistency Consistency = iota
	Eventual
	Strong
)

// Concurrency is the concurrency mode of a write.
type Concurrency uint8

// The concurrency modes. With FirstWrite, a Set without an ETag fails if the key exists. The mode has no effect on
// other writes: a write with an ETag is always conditional, and a Delete without an ETag is always unconditional.
const (
	LastWrite Concurrency = iota
	FirstWrite
)

// Level is the consistency of an answer. See docs/consistency.md.
type Level string

// The levels of answers.
const (
	Linearizable Level = "linearizable" // as if read at one instant between call and return
	SessionLevel Level = "session"      // includes own writes, never goes backward
	Bounded      Level = "bounded"      // no older than the requested bound
	Stale        Level = "stale"        // no promise
)

// Proof describes how consistent an answer is. It also contains the session token for later requests. The zero value
// promises nothing.
type Proof struct {
	Level   Level
	Age     time.Duration // upper bound of the answer's age, for eventual reads; negative = unknown
	Session string        // token to send with later requests; empty if the store has no sessions
}

// LargestValue is the default limit, in bytes, for a value that a store reads from an external server. It protects the
// memory of the node from a hostile server. The settings of the node or of the component can change the limit.
const LargestValue = 64 << 20

// ReadOptions are the consistency options of a read.
type ReadOptions struct {
	Consistency  Consistency
	Session      string            // token of an earlier answer; empty = none
	MaxStaleness time.Duration     // bound on the age of an eventual read; 0 = none
	MaxValue     int64             // for a larger value, Get may return only the size; 0 = no bound
	Metadata     map[string]string // metadata for a specific store type; nil = none
}

// GetRequest reads one key.
type GetRequest struct {
	Key string // stored key, prefix included
	ReadOptions
}

// Item is one stored value. ETag is set, except in these cases: the key does not exist or has expired, Unversioned is
// true, or Err is set.
type Item struct {
	Key         string
	Value       []byte    // exactly the bytes that were saved; the caller must not modify them
	Size        int64     // bytes of a value above ReadOptions.MaxValue, which was not read; Value is nil then
	ContentType string    // empty = JSON text
	ETag        string    // opaque to clients
	Expires     time.Time // zero = never
	Unversioned bool      // the key exists, in a store that has no ETag for it
	Err         error     // only inside bulk answers and pages: this key could not be read
	Proof
}

// Found reports whether the key exists.
func (i Item) Found() bool { return i.ETag != "" || i.Unversioned }

// Write is one change of one key. It may have a condition.
type Write struct {
	Key         string // stored key, prefix included
	Value       []byte // kept byte for byte; ignored for a delete. The store may keep the slice
	ContentType string // empty = JSON text
	ETag        string // empty = no condition
	Concurrency Concurrency
	TTL         TTL
	Metadata    map[string]string
}

// LastExpiry is the last time at which a value can expire, in Unix seconds: 9999-12-31T23:59:59Z.
const LastExpiry = 253402300799

// ExpirySecond rounds an expiry time up to a whole second, because answers contain whole seconds and some stores keep
// no fractions. The result is at most LastExpiry.
func ExpirySecond(at time.Time) time.Time {
	second := at.Truncate(time.Second)
	if second.Before(at) {
		second = second.Add(time.Second)
	}
	if second.Unix() > LastExpiry {
		second = time.Unix(LastExpiry, 0)
	}
	return second.UTC()
}

// TTL is the time to live of a written value.
type TTL struct {
	Set     bool       // false: the store's default applies (none, unless configured)
	Seconds int64      // > 0: seconds from the write to the expiry; 0 or less with Set: never expires
	At      *time.Time // if not nil: time of the expiry, any time from the year 0 to 9999; overrides Seconds
}

// LockToken is the fencing token of a lock. A write with a LockToken is executed only if the token is still the current
// one of the lock. Only the replicated store checks the token. If the locks of Component do not protect the store that
// is written, the API rejects the token.
//
// Component is the name of the lock component. Prefix and Resource are the fields of lock.Key.
type LockToken struct {
	Component string
	Prefix    string
	Resource  string
	Token     uint64
}

// ActorEpoch is a fencing condition for writes of actor state. A write is executed only if the actor still has this
// epoch and the session of the actor's host has not ended. Only the replicated store checks the condition. Other stores
// ignore it.
type ActorEpoch struct {
	App      string // application that hosts the actor
	Type, ID string
	Epoch    uint64
	Host     string // id of the session
	Revision uint64 // revision of the session
}

// SetRequest is a request to write one or several items. A store with transactions writes all items atomically (see
// Transactor for the exceptions). It first checks all conditions against the state before the request. Then it
// writes the items in order, so the last write to a key wins.
type SetRequest struct {
	Items       []Write
	Consistency Consistency
	Session     string
	RequestID   string      // client's own id for exactly-once retries; empty = none
	Locks       []LockToken // each lock must have its token; otherwise the error is lock_lost
}

// DeleteRequest deletes one key. Without an ETag, the request succeeds even if the key does not exist.
type DeleteRequest struct {
	Key         string
	ETag        string
	Concurrency Concurrency
	Consistency Consistency
	Session     string
	RequestID   string
	Metadata    map[string]string
	Locks       []LockToken
}

// OpKind is the kind of one operation of a transaction.
type OpKind uint8

// The kinds.
const (
	Upsert OpKind = iota
	Remove
)

// Operation is one step of a transaction.
type Operation struct {
	Kind OpKind
	Write
}

// Effect is a change in another component, such as the publication of events, that is part of a transaction. Either all
// operations and effects of the transaction are applied, or none. Effects may only be used with a store whose
// Instance.Effects is true. A store returns fault.Unimplemented for an unknown effect.
type Effect interface {
	// Effect returns a description of the effect for errors, such as "events for the topic orders".
	Effect() string
}

// TransactRequest is a request to execute all operations atomically. Conditions and order are as in SetRequest.
type TransactRequest struct {
	Operations  []Operation
	Consistency Consistency
	Session     string
	RequestID   string
	Metadata    map[string]string
	Locks       []LockToken
	Actor       *ActorEpoch // nil = no condition; if it is not met, the error is actor_moved
	Effects     []Effect    // empty unless Instance.Effects is true
}

// Written is the outcome of a write. ETags has one element for each item or operation, in request order; the element of
// a deletion is empty. ETags is nil if the store does not know the new ETags. For example, some stores acknowledge a
// write with eventual consistency before they know its ETag.
type Written struct {
	ETags []string
	Proof
}

// Store is implemented by every state store. All methods are safe for concurrent use and return when ctx ends. Errors
// are *fault.Error. These are the most important codes:
//
//	conflict       an ETag or create-only condition failed; Key names the key; nothing was changed
//	lock_lost      a lock of the request no longer has its token; nothing was changed
//	invalid        this store cannot serve the request
//	too_large      a limit of this store is exceeded; Msg names it
//	unavailable    not executed: there is no quorum, or the store is closing
//	read_only      not executed: values cannot be written now, because the disk is nearly full
//	overloaded     not executed: too many requests are waiting
//	timeout        not executed in time
//	indeterminate  it is not known whether the request was executed
//
// An error can have another code, such as denied, corrupt or internal.
type Store interface {
	// Get reads one key. An absent key is an Item for which Found is false, not an error.
	Get(ctx context.Context, r GetRequest) (Item, error)
	// Set writes items.
	Set(ctx context.Context, r SetRequest) (Written, error)
	// Delete removes a key.
	Delete(ctx context.Context, r DeleteRequest) (Written, error)
	// Close releases the resources of the store and waits for its goroutines. It is idempotent.
	Close() error
}

// Transactor is implemented by stores that can execute several operations atomically. In such a store, a Set of several
// items is also atomic, with these exceptions:
//
//   - items in several slots of a Redis Cluster
//   - items in several partitions of Cosmos DB
//   - a standalone MongoDB server
type Transactor interface {
	Transact(ctx context.Context, r TransactRequest) (Written, error)
}

// BulkGetRequest reads several keys.
type BulkGetRequest struct {
	Keys        []string // stored keys; duplicates are allowed
	Parallelism int      // upper bound of concurrent reads; 0 or less = the store's choice
	// MaxBytes limits the total size of the values; 0 = no limit. A store that can determine the size returns
	// ValuesTooLarge for more.
	MaxBytes int64
	ReadOptions
}

// ValuesTooLarge returns the error of a bulk read whose values together exceed a limit in bytes. IsValuesTooLarge
// recognises the error.
func ValuesTooLarge(op string, max int64) error {
	return valuesTooLarge{&fault.Error{Code: fault.TooLarge, Op: op, Msg: "the values of the keys exceed " +
		strconv.FormatInt(max, 10) + " bytes together",
		Hint: "read fewer keys at once"}}
}

// valuesTooLarge is the error of a bulk read whose values exceed BulkGetRequest.MaxBytes.
type valuesTooLarge struct{ err error }

func (e valuesTooLarge) Error() string { return e.err.Error() }

func (e valuesTooLarge) Unwrap() error { return e.err }

// IsValuesTooLarge reports whether a bulk read failed only because its values exceed BulkGetRequest.MaxBytes. It
// returns false for all other errors with the code fault.TooLarge, such as the error for a long key.
func IsValuesTooLarge(err error) bool { return errors.As(err, new(valuesTooLarge)) }

// BulkGetter is implemented by stores that can read many keys in one call. The returned items are in request order;
// a key that is requested twice is returned twice. If a key cannot be read, Err of its item is set.
type BulkGetter interface {
	BulkGet(ctx context.Context, r BulkGetRequest) ([]Item, error)
}

// ListRequest is a request for one page of the stored keys that begin with Prefix. The keys are in the order of the
// store (see Lister).
type ListRequest struct {
	Prefix string // stored key prefix, never empty for an application's own listing
	// After is the stored key to continue after; empty = from the start. If After is a non-empty prefix followed by
	// the byte 0xff, the page continues after all keys with this prefix.
	After string
	Limit int // maximum number of keys; the store may return fewer
	ReadOptions
}

// Page is one page of a listing. Items have Key, ETag and Expires, but in most stores no Value, because it may be
// large. If ETag or Expires of an item cannot be read, Err of the item is set. Stores that list with outside.Listing
// omit such an item instead.
type Page struct {
	Items []Item
	More  bool // there may be keys after the last one
	Proof
}

// Lister is implemented by stores that can list keys in order. The order is byte order, except in state.sqlserver,
// which has the order of UTF-16 code units.
type Lister interface {
	List(ctx context.Context, r ListRequest) (Page, error)
}

// Feature is a capability as GET /v1.0/metadata names it.
type Feature string

// The features.
const (
	FeatureETag          Feature = "ETAG"
	FeatureTransactional Feature = "TRANSACTIONAL"
	FeatureTTL           Feature = "TTL"
	// FeatureKeysLike means that the keys of a prefix can be listed.
	FeatureKeysLike Feature = "KEYS_LIKE"
	// FeatureActorUnfenced means that the store contains the state of actors, but does not implement fencing. So it
	// accepts a write from a node that no longer hosts the actor.
	FeatureActorUnfenced Feature = "ACTOR_UNFENCED"
	// FeatureDeleteWithPrefix is a feature of Dapr's state.in-memory. No API depends on it.
	FeatureDeleteWithPrefix Feature = "DELETE_WITH_PREFIX"
)

// Featurer is implemented by stores that report their capabilities.
type Featurer interface {
	Features() []Feature
}
